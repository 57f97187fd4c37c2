"""The engine with the Triton kernels switched on, in the interpreter: every way to decode says what it says without them."""

from typing import Any

import pytest
import tiny
import torch
import triton
from rig import engine, ids, request, run

from drawloom.actors.engine import Engine
from drawloom.actors.request import Request
from drawloom.actors.settings import EngineSettings
from drawloom.kernels import on_gpu, pick
from drawloom.models.load import load_model
from drawloom.models.ragged import ModelInfo
from drawloom.models.settings import ModelSettings
from drawloom.models.transformer import TransformersModel

assert triton.__version__  # who asks whether kernels can run here looks whether it is there


def asked(block: int) -> list[Request]:
    names: list[tuple[str, dict[str, Any]]] = [("block", {"block": block}), ("multi-block", {"block": block})] if block else [
        ("ar", {}), ("lookup", {}), ("lookahead", {"window": 3, "ngram": 3}), ("jacobi", {"width": 3, "verifier": "rejection"}),
    ]  # fmt: skip
    return [
        request(f"{name} {k}", [5, 6, 7, 5, 6, *range(9, 9 + 4 * k)], name, k, params, max_tokens=6, temperature=(0.0, 0.9)[k % 2])
        for name, params in names
        for k in range(2)
    ]


def picks_by(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pick by this implementation alone."""
    monkeypatch.setattr(pick, "PATHS", {own: pick.PATHS[own]})
    monkeypatch.setattr(on_gpu, "why_not", lambda _device, **_how: "")


@pytest.mark.parametrize("block", [0, 4], ids=["autoregressive", "diffusion"])
def test_texts_are_those_of_the_reference(block: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.written(tmp_path / "x", block, sharp=0.5)
    info: ModelInfo = load_model(ModelSettings(name=folder)).info
    found = {}
    for layout, own in (("reference", "torch"), ("triton", "triton")):
        model = TransformersModel(tiny.plain(folder), info, layout)
        assert model.layout == layout
        picks_by(own, monkeypatch)
        done = run(Engine(model, tiny.Nothing(), EngineSettings(num_pages=60, page_tokens=4)), asked(block))
        found[layout] = {name: ids(one) for name, one in done.items()}
        monkeypatch.undo()
    assert found["reference"] == found["triton"]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_hash_model_says_the_same_by_the_kernels_draws(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for own in ("torch", "triton"):
        picks_by(own, monkeypatch)
        some = [
            request(f"{name} {k}", [k, 3, seed], name, 10 * seed + k, {}, max_tokens=8, temperature=0.7 * k, top_p=0.9, min_p=0.01 * k)
            for name in ("ar", "recycling", "draft-model")
            for k in range(3)
        ]
        texts.append({name: ids(one) for name, one in run(engine(), some).items()})
        monkeypatch.undo()
    assert texts[0] == texts[1]


def test_nothing_falls_back_silently(tmp_path: Any) -> None:
    """On a CPU without the interpreter the layout is refused with the reason, and a model says why it did not take it."""
    folder = tiny.written(tmp_path / "x")
    model = load_model(ModelSettings(name=folder))
    assert model.layout == "native"
    assert "not " not in model.describe()
    padded = TransformersModel(tiny.plain(folder), model.info, "padded")
    assert "not triton: " in padded.describe()
    assert torch.__version__
