"""Engines from settings: networks that draft are loaded beside their target, and refused when they cannot draft for it."""

import json
import shutil
from pathlib import Path

import pytest
from rig import ids, request
from rig import run as run_on

from drawloom.actors.build import build_engine
from drawloom.actors.engine import Engine
from drawloom.actors.settings import EngineSettings
from drawloom.errors import SettingError
from drawloom.jobs.train.tasks import rows
from drawloom.models.checkpoint import ZOO
from drawloom.models.settings import ModelSettings

SMALL = EngineSettings(num_pages=200, max_sequences=4)
PROMPT = "Reverse the list: cat ant bear lime wolf dew\n"


def built(draft: str, **params: float) -> Engine:
    engine = build_engine(ModelSettings(name="tiny-ar"), SMALL, "draft-model", {"draft": draft, **params})
    assert isinstance(engine, Engine)
    return engine


def test_a_network_drafts_for_itself_without_a_refusal() -> None:
    """Real weights, K/V read by chunks and rows: what it drafts is what it says."""
    engine = built("tiny-ar", width=3)
    params = {"draft": "tiny-ar", "width": 3}
    prompts = [engine.text.encode(PROMPT + "and " * k) for k in range(5)]
    asked = [
        request(f"{decoder} {k}", prompt, decoder, k, own, max_tokens=24, temperature=(0.0, 0.9)[k % 2])
        for k, prompt in enumerate(prompts)
        for decoder, own in (("draft-model", params), ("ar", {}))
    ]
    done = run_on(engine, asked)
    for k in range(5):
        one = done[f"draft-model {k}"]
        assert ids(one) == ids(done[f"ar {k}"])
        assert one.stats.accepted >= one.stats.drafted - 3  # behind the end of the text nothing counts


def test_the_zoos_drafter_is_worth_its_forwards() -> None:
    engine = built("tiny-draft")
    prompts = [engine.text.encode(task.prompt) for task in rows("held-out", 0, 3, ("arithmetic",))]
    asked = [
        request(f"{decoder} {k}", prompt, decoder, k, {}, max_tokens=50, temperature=0.0)
        for k, prompt in enumerate(prompts)
        for decoder in ("draft-model", "ar")
    ]
    done = run_on(engine, asked)
    assert all(ids(done[f"draft-model {k}"]) == ids(done[f"ar {k}"]) for k in range(3))
    forwards = {name: sum(done[f"{name} {k}"].stats.forwards for k in range(3)) for name in ("draft-model", "ar")}
    assert forwards["draft-model"] < 0.8 * forwards["ar"]


REFUSED = [("hash", "has another tokenizer than"), ("tiny-bd", "is a diffusion model"), ("tiny-arr", "tiny-arr")]


@pytest.mark.parametrize(("draft", "says"), REFUSED)
def test_networks_that_cannot_draft_are_refused(draft: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        built(draft)


DRAFTERS = [("dflash", "tiny-dflash"), ("eagle", "tiny-eagle3"), ("medusa", "tiny-medusa")]


@pytest.mark.parametrize(("decoder", "draft"), DRAFTERS)
@pytest.mark.parametrize("nodes", [0, 12])
def test_a_drafter_on_hidden_states_is_worth_its_forwards(decoder: str, draft: str, nodes: int) -> None:
    engine = build_engine(ModelSettings(name="tiny-ar"), SMALL, decoder, {"draft": draft})
    assert isinstance(engine, Engine)
    assert engine.stats().steps == 0  # the trial left no trace
    prompts = [engine.text.encode(task.prompt) for task in rows("held-out", 0, 6, ("arithmetic",))]
    asked = [
        request(f"{name} {k}", prompt, name, k, {"draft": draft, "nodes": nodes} if name == decoder else {}, max_tokens=50, temperature=t)
        for k, (prompt, t) in enumerate(zip(prompts, (0.0, 0.0, 0.0, 0.7, 0.7, 0.7), strict=True))
        for name in (decoder, "ar")
    ]
    done = run_on(engine, asked)
    assert all(ids(done[f"{decoder} {k}"]) == ids(done[f"ar {k}"]) for k in range(6))
    forwards = {name: sum(done[f"{name} {k}"].stats.forwards for k in range(6)) for name in (decoder, "ar")}
    assert forwards[decoder] < 0.6 * forwards["ar"]


def test_17_a_drafter_for_other_layers_is_found_out(tmp_path: Path) -> None:
    """Layers that are off by one load without a complaint, and draft nonsense."""
    folder = tmp_path / "off"
    shutil.copytree(ZOO / "tiny-dflash", folder)
    config = json.loads((folder / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [5, 5]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        SettingError,
        match=r"accepts \d+% of what .* drafts \(at least 63% is expected\).* set draft_floor=0",
    ):
        build_engine(ModelSettings(name="tiny-ar"), SMALL, "dflash", {"draft": str(folder)})
    engine = build_engine(ModelSettings(name="tiny-ar"), SMALL.model_copy(update={"draft_floor": 0.0}), "dflash", {"draft": str(folder)})
    prompt = engine.text.encode(PROMPT)  # pyright: ignore[reportAttributeAccessIssue]
    asked = [request("a", prompt, "dflash", 1, {"draft": str(folder)}, max_tokens=20), request("b", prompt, "ar", 1, {}, max_tokens=20)]
    done = run_on(engine, asked)  # pyright: ignore[reportArgumentType]
    assert ids(done["a"]) == ids(done["b"])


def test_a_drafter_is_no_model() -> None:
    with pytest.raises(SettingError, match="is a drafter for another model, not a model; run that one with decoder 'dflash'"):
        build_engine(ModelSettings(name="tiny-dflash"), SMALL, "ar", {})
