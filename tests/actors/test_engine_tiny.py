"""On real networks each recipe equals its naive cache-free reference: the text, and what every forward revealed."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import canvas_oracle
import diffusion_checkpoints
import frontier_oracle
import pytest
import sub_blocks_oracle
import tiny
from block_oracle import BLOCK_RECIPES, oracle_of, watch
from rig import ids, request, run
from self_verify_oracle import Naive
from tree_oracle import JacobiBlocks, Lookahead

from drawloom.models.checkpoint import ZOO


def cases(*names: str) -> list[tuple[str, int]]:
    """Three on random networks, and one on each of the zoo that is there."""
    return [*(("random", number) for number in range(3)), *((name, 1) for name in names if (ZOO / name / "config.json").is_file())]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a network by name and kind."""
    made: dict[tuple[str, int], str] = {}

    def folder(name: str, block: int) -> str:
        if name != "random":
            return str(ZOO / name)
        if (name, block) not in made:
            made[name, block] = tiny.written(tmp_path_factory.mktemp("tiny") / "x", block=block)
        return made[name, block]

    return folder


@pytest.fixture(scope="module")
def plain_of():
    """The reference network of a folder, loaded once."""
    known: dict[str, tiny.Plain] = {}
    return lambda folder: known.setdefault(folder, tiny.Plain(folder))


def prompt_of(rng: random.Random, model: tiny.Plain) -> list[int]:
    special = {*model.info.eos_token_ids, model.info.mask_token_id}
    return [rng.choice([token for token in range(model.info.vocab_size) if token not in special]) for _ in range(rng.randrange(1, 30))]


TRAINED_FOR = {"tiny-bd": ("block", "sdar-static"), "tiny-mbd": BLOCK_RECIPES, "tiny-mbd-dmax": ("dmax", "dmax-multi-block", "llada2.1")}
BLOCKS = [
    (where, number, name)
    for where, number in cases("tiny-bd", "tiny-mbd", "tiny-mbd-dmax")
    for name in BLOCK_RECIPES
    if name in TRAINED_FOR.get(where, BLOCK_RECIPES)
]


@pytest.mark.parametrize(("where", "number", "name"), BLOCKS)
def test_block_recipes_step_by_step(where: str, name: str, number: int, at, plain_of) -> None:
    rng = random.Random(f"{where} {name} {number}")
    folder = at(where, (4, 8, 16)[number])
    model = plain_of(folder)
    size = model.info.block_tokens
    params, naive = oracle_of(name, model, size, rng)
    one = request("x", prompt_of(rng, model), name, number, params, max_tokens=rng.randrange(1, 40), temperature=(0.0, 0.8)[number % 2])
    machine = tiny.engine_of(folder)
    trace = watch(machine, size)
    done = run(machine, [one])["x"]
    want, want_trace = naive.run(one.prompt_token_ids, one.sampling, number)
    assert trace == want_trace
    assert ids(done) == want


@pytest.mark.parametrize(("where", "number"), cases("tiny-bd", "tiny-mbd"))
@pytest.mark.parametrize("estimate", ["entropy", "margin"])
def test_self_verification_forward_by_forward(where: str, estimate: str, number: int, at, plain_of) -> None:
    rng = random.Random(f"{where} {estimate} {number}")
    folder = at(where, 8)
    model = plain_of(folder)
    params = {"threshold": 0.7, "on": 0.5, "cost": 0.5, "cost_of": "static", "estimate": estimate}
    one = request("x", prompt_of(rng, model), "s2d2", number, params, max_tokens=rng.randrange(10, 40), temperature=(0.0, 0.8)[number % 2])
    done = run(tiny.engine_of(folder), [one])["x"]
    want, counts = Naive(model, "s2d2", {"block": model.info.block_tokens, **params}).run(list(one.prompt_token_ids), one.sampling, number)
    assert ids(done) == want
    assert done.stats.accepted == sum(counts)


@pytest.mark.parametrize(("where", "number"), cases("tiny-ar", "tiny-jf"))
@pytest.mark.parametrize("name", ["jacobi-forcing", "lookahead"])
def test_tree_drafts_step_by_step(where: str, name: str, number: int, at, plain_of) -> None:
    rng = random.Random(f"{where} {name} {number}")
    folder = at(where, 0)
    model = plain_of(folder)
    params, naive = (
        ({"window": 5, "ngram": 3, "guesses": 3, "pool": 20}, Lookahead(5, 3, 3, 20))
        if name == "lookahead"
        else ({"block": 8, "blocks": 2, "spawn": 0.5, "pool": 2, "width": 4}, JacobiBlocks(8, 2, 0.5, 2, 4))
    )
    one = request("x", prompt_of(rng, model), name, number, params, max_tokens=rng.randrange(10, 40), temperature=(0.0, 0.8)[number % 2])
    done = run(tiny.engine_of(folder), [replace(one, trace=True)])["x"]
    want, counts = naive.run(model, list(one.prompt_token_ids), one.sampling, number)
    assert ids(done) == want
    assert done.samples[0].reveals is not None
    by_forward = Counter(reveal.final for reveal in done.samples[0].reveals)
    assert [by_forward[forward] for forward in sorted(by_forward)] == counts


CACHES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [  # family, recipe, parameters, and those of the exact version
    ("llada", "fast-dllm", {"block": 16, "cache": "prefix", "threshold": 0.6}, {"cache": "none"}),
    ("llada", "fast-dllm", {"block": 16, "cache": "dual", "threshold": 0.6}, {"cache": "none"}),
    ("llada", "fast-dllm-factor", {"block": 8, "cache": "dual", "factor": 1.0}, {"cache": "none"}),
    (
        "llada",
        "d3llm",
        {"block": 8, "threshold": 1.0, "open_at": 0.5, "full_at": 0.95, "delay": 1, "refresh": 10_000},
        {"delay": -1},
    ),
    ("Fast_dLLM_Qwen", "fast-dllm-v2", {"block": 16, "sub": 4, "threshold": 0.6, "cache": "sub"}, {"cache": "none"}),
]


@pytest.mark.parametrize(("family", "name", "params", "exact"), CACHES)
def test_an_approximate_cache_equals_its_books(family: str, name: str, params: Any, exact: Any, tmp_path_factory: Any) -> None:
    """On a network, too: which positions a forward recomputed, and what K/V the others kept. The cache must have changed some text."""
    folder = tmp_path_factory.mktemp(family) / "x"
    own = {"bd_size": params["block"]} if family == "Fast_dLLM_Qwen" else {}
    diffusion_checkpoints.written(folder, family, sharp=0.5, **own)
    model, machine = tiny.Plain(str(folder)), tiny.engine_of(str(folder))
    changed = 0
    for number in range(6):
        rng = random.Random(f"{name} {params} {number}")
        prompt, limit = prompt_of(rng, model), rng.randrange(20, 50)
        sampling = {"max_tokens": limit, "temperature": (0.0, 0.8)[number % 2], "ignore_eos": number % 3 > 0}
        asked = [request(kind, prompt, name, number, one, **sampling) for kind, one in (("x", params), ("exact", {**params, **exact}))]
        done = run(machine, asked)
        changed += ids(done["x"]) != ids(done["exact"])
        for one in asked:
            told = dict(one.decoder_params)
            if name == "d3llm":
                want = frontier_oracle.naive(model, prompt, one.sampling, number, told)[0]
            elif name == "fast-dllm-v2":
                want = sub_blocks_oracle.naive(model, prompt, one.sampling, number, told)[0]
            else:
                want = canvas_oracle.naive(model, prompt, one.sampling, number, name, told)[0]
            assert ids(done[one.id]) == want
    assert changed
