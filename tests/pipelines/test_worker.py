"""A Ray worker of ours can import transformers and load a model: our folder `kernels` does not stand in for the package of that name."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle

from drawloom.pipelines.cluster import connected
from drawloom.pipelines.shape import Shape

ROOT = Path(__file__).parents[2]


def load_and_run(folder: str) -> dict[str, Any]:
    """In a worker: make, save, load and run a tiny random network; say where names come from."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    import drawloom.kernels

    config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    LlamaForCausalLM(config).save_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    logits = network(torch.arange(8)[None]).logits
    spec = importlib.util.find_spec("kernels")
    return {
        "shape": tuple(logits.shape),
        "finite": bool(logits.isfinite().all()),
        "ours": str(drawloom.kernels.__file__),
        "bare": "" if spec is None else f"{spec.origin} {spec.submodule_search_locations}",
        "path": list(sys.path),
    }


def test_transformers_loads_in_a_worker(ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a driver that stands in the root of the repository, as `make run` does."""
    monkeypatch.chdir(ROOT)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a worker knows drawloom, not the tests
    with connected(Shape(1, 1.0), ray_address):
        remote: Any = ray.remote(load_and_run)
        found: Any = ray.get(remote.remote(str(tmp_path / "net")))
    assert found["shape"] == (1, 8, 64)
    assert found["finite"]
    assert Path(found["ours"]).resolve() == ROOT / "kernels/__init__.py"
    assert str(ROOT / "kernels") not in found["bare"]
    assert {"", ".", str(ROOT)}.isdisjoint(found["path"])
    assert Path.cwd() == ROOT
