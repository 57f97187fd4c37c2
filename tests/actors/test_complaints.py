"""What users of other diffusion engines complained of, one test each. The numbers are those of the list in docs/decoding.md."""

import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from rig import engine, ids, prompts, request, run, same_in_company

from drawloom.actors import harvest
from drawloom.actors.request import Request
from drawloom.decoders.recipes import RECIPES
from drawloom.jobs.bench.decode import engine_and_text, held_out, measure
from drawloom.models.hash_lm import HashLM

# One recipe of each kind in every run, the others among the slow tests.
KINDS = (
    "block",
    "sdar-entropy",
    "llada2.1",
    "multi-block",
    "dmax-multi-block",
    "s2d2",
    "llada",
    "dream",
    "fast-dllm",
    "d3llm",
    "fast-dllm-v2",
)
DIFFUSION = [name for name, row in RECIPES.items() if row.diffusion]
EACH = [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in DIFFUSION]
# On a real network: one recipe of each kind of selection, window, revision and verification.
BLOCKWISE = ["block", "sdar-entropy", "llada2.1", "multi-block", "dmax-multi-block", "s2d2"]
CACHES = [("fast-dllm", cache) for cache in ("none", "prefix", "dual")] + [("fast-dllm-v2", cache) for cache in ("none", "sub")]


def small(name: str, **more: Any) -> dict[str, Any]:
    """Parameters with blocks of 8, where the recipe has blocks."""
    return {**({"block": 8} if "block" in RECIPES[name].params else {}), **more}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A real block-diffusion network with blocks of 8."""
    return tiny.written(tmp_path_factory.mktemp("tiny") / "bd", block=8)


def real(name: str, number: int, **sampling: Any) -> Request:
    rng = random.Random(number)
    prompt = [rng.randrange(90) for _ in range(rng.randrange(3, 40))]
    return request(f"{name}-{number}", prompt, name, number, **{"max_tokens": 16, "temperature": 0.0, **sampling})


@pytest.mark.parametrize(("name", "cache"), [*CACHES, ("d3llm", "")])
def test_01_a_batch_of_ragged_prompts_says_what_each_says_alone(name: str, cache: str) -> None:
    params = small(name, cache=cache) if cache else small(name)
    asked = [request(str(k), prompt, name, k, params, max_tokens=10 + k, temperature=0.0) for k, prompt in enumerate(prompts(9, 1, 50))]
    same_in_company(HashLM(1), asked, num_pages=600)


@pytest.mark.parametrize("name", BLOCKWISE)
def test_02_answers_do_not_depend_on_the_batch_size(name: str, network: str) -> None:
    """On a real network in float32."""
    asked = [real(name, number, max_tokens=10) for number in range(5)]
    texts = {size: run(tiny.engine_of(network, max_sequences=size), asked) for size in (1, 2, 5)}
    for one in asked:
        assert ids(texts[1][one.id]) == ids(texts[2][one.id]) == ids(texts[5][one.id])


@pytest.mark.parametrize("name", EACH)
def test_03_fast_rows_do_not_wait_for_the_slowest_one(name: str) -> None:
    machine, params = engine(), small(name)
    machine.add(request("long", [1, 2, 3], name, 1, params, max_tokens=64, ignore_eos=True))
    machine.add(request("short", [4, 5, 6], name, 2, params, max_tokens=2, ignore_eos=True))
    order = []
    while machine.num_unfinished:
        order += [done.id for done in machine.step()]
        assert machine.stats().running + machine.stats().waiting == machine.num_unfinished
    assert order == ["short", "long"]


@pytest.mark.parametrize("name", EACH)
def test_04_no_forward_is_spent_after_a_finished_end(name: str) -> None:
    """The last forward is the one that made the end token final; texts that end early take fewer forwards than texts that may not end."""
    found = 0
    for number in range(12):
        one = replace(request("x", [number, 7, 9], name, number, small(name), max_tokens=60, temperature=0.8), trace=True)
        done = run(engine(HashLM(number, sway=5.0)), [one])["x"]
        if done.samples[0].finish_reason == "stop":
            found += 1
            assert done.samples[0].reveals is not None
            assert max(reveal.final for reveal in done.samples[0].reveals) == done.stats.forwards
    assert found >= 2


@pytest.mark.parametrize("number", range(4))
def test_05_an_accelerated_path_without_its_shortcuts_is_the_plain_one(number: int) -> None:
    """A threshold that nothing reaches and no cache: one surest position a forward, as LLaDA does."""
    params = {"fast-dllm": {"block": 8, "threshold": 1.5, "cache": "none"}, "llada": {"block": 8}}
    said = {
        name: run(engine(HashLM(number)), [request("x", [number, 3], name, number, own, max_tokens=40, temperature=0.0)])["x"]
        for name, own in params.items()
    }
    assert ids(said["fast-dllm"]) == ids(said["llada"])
    assert said["fast-dllm"].stats.forwards == said["llada"].stats.forwards


@pytest.mark.parametrize("name", EACH)
def test_06_no_mask_is_left_and_the_noise_does_not_know_the_machine(name: str) -> None:
    asked = [request(str(k), prompt, name, k, small(name), max_tokens=3 + 5 * k, temperature=0.9) for k, prompt in enumerate(prompts(6, 6))]
    layouts: list[dict[str, Any]] = [{}, {"max_sequences": 2, "page_tokens": 16}, {"pack": "padded"}]
    texts = [run(engine(HashLM(6), **layout), asked) for layout in layouts]
    for one in asked:
        assert HashLM(6).info.mask_token_id not in ids(texts[0][one.id])
        assert ids(texts[0][one.id]) == ids(texts[1][one.id]) == ids(texts[2][one.id])


@pytest.mark.parametrize("name", EACH)
def test_07_a_text_cut_by_length_holds_that_many_tokens(name: str) -> None:
    for length in (1, 7, 8, 9, 31):
        done = run(engine(), [request("x", [5, 6, 7], name, length, small(name), max_tokens=length, ignore_eos=True)])["x"]
        assert done.samples[0].finish_reason == "length"
        assert len(ids(done)) == length
        assert HashLM().info.mask_token_id not in ids(done)


@pytest.mark.parametrize("block", [4, 32])
def test_08_a_real_network_says_what_a_plain_script_makes_it_say(block: int, tmp_path: Path) -> None:
    """SDAR's dynamic rule: a full forward without a cache for each step, in transformers' own attention."""
    folder = tiny.written(tmp_path / "bd", block=block)
    own, machine = tiny.plain(folder), tiny.engine_of(folder)
    for number in range(4):
        prompt = list(real("x", number).prompt_token_ids)
        one = request("x", prompt, "sdar-dynamic", 0, {"threshold": 0.6}, max_tokens=30, temperature=0.0)
        assert ids(run(machine, [one])["x"]) == script(own, prompt, block, 30, 0.6)


def script(network: Any, prompt: list[int], block: int, new: int, tau: float) -> list[int]:
    """Block after block, at least one position a forward, all above tau when that is at least one."""
    text, mask = list(prompt), tiny.MASK
    while len(text) < len(prompt) + new:
        text += [mask] * (block - len(text) % block)
        while mask in text:
            logits = tiny.logits_of(network, text, block)
            logits[:, mask] = -torch.inf
            probs = logits.softmax(-1)
            open_ = [p for p in range(len(text)) if text[p] == mask]
            sure = [p for p in open_ if float(probs[p].max()) > tau]
            for p in sure or [max(open_, key=lambda p: float(probs[p].max()))]:
                text[p] = int(logits[p].argmax())
    said = text[len(prompt) : len(prompt) + new]
    return said[: said.index(tiny.END)] if tiny.END in said else said


@pytest.mark.parametrize("tied", [True, False])
def test_11_tied_and_untied_weights_load(tied: bool, tmp_path: Path) -> None:
    folder = tiny.written(tmp_path / "bd", block=4, tied=tied)
    own, one = tiny.plain(folder), real("sdar-sequential", 5)
    assert ids(run(tiny.engine_of(folder), [one])[one.id]) == left_to_right(own, list(one.prompt_token_ids), 4, 16)


def left_to_right(network: Any, prompt: list[int], block: int, new: int) -> list[int]:
    text = [*prompt, *[tiny.MASK] * (-len(prompt) % block)]
    while len(text) < len(prompt) + new:
        text += [tiny.MASK] * block
    for p in range(len(prompt), len(prompt) + new):
        seen = text[: (p // block + 1) * block]
        logits = tiny.logits_of(network, seen, block)[p]
        logits[tiny.MASK] = -torch.inf
        text[p] = int(logits.argmax())
        if text[p] == tiny.END:
            return text[len(prompt) : p]
    return text[len(prompt) : len(prompt) + new]


def test_11_a_dynamic_rule_that_never_fires_is_the_static_one() -> None:
    said = {}
    for name, params in (("sdar-dynamic", {"threshold": 1.5}), ("sdar-static", {})):
        one = request("x", [3, 1, 4], name, 3, {"block": 8, "steps": 4, **params}, max_tokens=50, ignore_eos=True)
        done = run(engine(HashLM(11)), [one])["x"]
        said[name] = (ids(done), done.stats.forwards)
    assert said["sdar-dynamic"] == said["sdar-static"]


def test_11_the_host_is_asked_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once a token or a sequence."""
    copies = Counter[str]()
    to_host = harvest.to_host
    monkeypatch.setattr(harvest, "to_host", lambda tensors: copies.update(["copy"]) or to_host(tensors))
    machine = engine()
    run(machine, [request(f"{name}-{k}", [k, 2], name, k, small(name), max_tokens=20) for name in DIFFUSION for k in range(2)])
    assert copies["copy"] == machine.stats().steps


@pytest.mark.parametrize("name", BLOCKWISE)
def test_12_padding_leaks_into_no_row(name: str, network: str) -> None:
    """Rows of fixed shapes carry padding; a real network's text is the same without it."""
    asked = [real(name, number) for number in range(5)]
    bare, padded = (run(tiny.engine_of(network, pack=pack), asked) for pack in ("exact", "padded"))
    for one in asked:
        assert ids(bare[one.id]) == ids(padded[one.id])


def test_13_a_text_that_repeats_itself_can_be_ended() -> None:
    """And says so: finish reason `repetition`."""
    bias = {5: 100.0}
    for name in ("ar", "multi-block", "llada"):
        params = {} if name == "ar" else small(name)
        one = request("x", [1, 2], name, 1, params, max_tokens=50, logit_bias=bias, max_repeats=4, temperature=0.0)
        done = run(engine(), [one])["x"]
        assert (done.samples[0].finish_reason, ids(done)) == ("repetition", [5] * 4)
        one = request("x", [1, 2], name, 1, params, max_tokens=20, logit_bias=bias, temperature=0.0)
        assert (run(engine(), [one])["x"].samples[0].finish_reason, len(ids(run(engine(), [one])["x"]))) == ("length", 20)


@pytest.mark.parametrize("name", BLOCKWISE)
def test_14_a_future_block_moves_no_earlier_logit(name: str, network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every forward runs a second time with the rows of the last block changed; all rows before that block keep their logits."""
    machine, seen = tiny.engine_of(network, share_prefix=False), 0
    forward = machine.model.forward

    def probe(ragged: Any) -> torch.Tensor:
        nonlocal seen
        block = ragged.positions // 8
        late = block == block.max()
        every = replace(ragged, logit_rows=torch.arange(ragged.num_rows), scratch={})
        other = replace(every, tokens=torch.where(late, (ragged.tokens + 7) % 90, ragged.tokens), scratch={})
        moved, kept = forward(other), forward(every)
        if not late.all():
            seen += 1
            torch.testing.assert_close(moved[~late], kept[~late], atol=1e-5, rtol=1e-5)
            assert not torch.allclose(moved[late], kept[late], atol=1e-2)
        return forward(ragged)

    monkeypatch.setattr(machine.model, "forward", probe)
    for number in range(3):
        run(machine, [real(name, number)])
    assert seen


@pytest.mark.parametrize("name", EACH)
def test_16_samples_differ_when_they_should(name: str) -> None:
    """n=4 at temperature 1: different; at temperature 0: equal; with the same seed again: the same four."""
    prompt, params = [9, 8, 7], small(name)

    def four(seed: int, temperature: float) -> list[list[int]]:
        done = run(
            engine(HashLM(2, sway=3.0)),
            [request("x", prompt, name, seed, params, max_tokens=24, temperature=temperature, n=4, ignore_eos=True)],
        )
        return [ids(done["x"], index) for index in range(4)]

    first = four(5, 1.0)
    assert len({tuple(text) for text in first}) == 4
    assert four(5, 1.0) == first
    assert four(6, 1.0) != first
    cold = four(5, 0.0)
    if name != "dream-origin":  # a random order is drawn for each sample
        assert cold == [cold[0]] * 4


@pytest.mark.parametrize("name", BLOCKWISE)
def test_22_committed_keys_and_values_are_those_of_a_clean_prefill(name: str, network: str) -> None:
    """Behind a finished block: the K/V that a prefill of the same tokens writes."""
    machine = tiny.engine_of(network, share_prefix=False)
    one = real(name, 3, max_tokens=40, ignore_eos=True)
    machine.add(one)
    sequence = machine.jobs[one.id].sequences[0]
    while sequence.filled < 40:
        assert not machine.step()
    own = slots_of(sequence.pages, 40)
    fresh = tiny.engine_of(network, share_prefix=False)
    fresh.add(request("y", sequence.tokens[:40], "block", 0, max_tokens=20, ignore_eos=True))
    again = fresh.jobs["y"].sequences[0]
    while again.filled < 40:
        fresh.step()
    other = slots_of(again.pages, 40)
    for left, right in zip(caches(machine), caches(fresh), strict=True):
        torch.testing.assert_close(left[own], right[other], atol=1e-5, rtol=1e-5)


def slots_of(pages: list[int], count: int) -> torch.Tensor:
    index = torch.arange(count)
    return torch.tensor(pages)[index // 4] * 4 + index % 4


def caches(machine: Any) -> list[torch.Tensor]:
    return [*machine.model._pages.keys, *machine.model._pages.values]


@pytest.mark.parametrize("name", ["block", "multi-block", "llada2.1", "llada", "d3llm"])
def test_23_logprobs_are_those_of_the_forward_that_wrote_the_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sum is the sample's; each is the natural log of the model's own probability when the token took its value."""
    written: dict[int, dict[int, list[float]]] = {}
    pick = harvest.pick
    machine = engine(HashLM(4))

    def spy(logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        picked = pick(logits, *args, **kwargs)
        written[len(written) + 1] = {}
        for token, logprob in zip(picked.token.tolist(), picked.logprob.tolist(), strict=True):
            written[len(written)].setdefault(token, []).append(logprob)
        return picked

    monkeypatch.setattr(harvest, "pick", spy)
    one = request("x", [1, 2], name, 1, small(name), max_tokens=30, temperature=0.7, logprobs=0, ignore_eos=True)
    sample = run(machine, [replace(one, trace=True)])["x"].samples[0]
    assert sample.reveals is not None
    assert sample.logprobs is not None
    for token, reveal, (chosen, *_) in zip(sample.token_ids, sample.reveals, sample.logprobs, strict=True):
        assert chosen.token_id == token
        if not reveal.edits:
            assert any(math.isclose(chosen.logprob, value, abs_tol=1e-6) for value in written[reveal.shown][token])
    assert math.isclose(sample.cumulative_logprob, sum(chosen.logprob for chosen, *_ in sample.logprobs), rel_tol=1e-6)


def test_24_cost_is_told_in_its_parts() -> None:
    """A cache that saves rows and no forwards shows as that: forwards, tokens per forward, rows per forward and time a step apart."""
    tasks, found = held_out(4, 1), {}
    for cache in ("none", "dual"):
        params = {"block": 8, "threshold": 1.5, "cache": cache}
        found[cache] = measure(*engine_and_text("hash", 4), tasks, "fast-dllm", params)
    assert found["none"]["rows_per_forward"] > 2 * found["dual"]["rows_per_forward"]
    for record in found.values():
        assert record["tpf"] == record["tokens"] / record["forwards"] <= 1
        assert record["ms_per_step"] > 0
        assert 0 < record["outside_forward"] < 1


@pytest.mark.parametrize("name", EACH)
def test_27_the_length_that_was_asked_for_is_exact(name: str) -> None:
    """Not rounded to blocks, whatever the prompt's length."""
    for prompt in range(1, 18, 4):
        done = run(engine(), [request("x", [7] * prompt, name, prompt, small(name), max_tokens=32, ignore_eos=True)])["x"]
        assert len(ids(done)) == 32


def test_28_rows_of_one_batch_keep_their_own_thresholds() -> None:
    """Threshold and entropy bound belong to a request."""
    sets = [("multi-block", "threshold", (0.3, 0.9)), ("sdar-entropy", "bound", (0.1, 2.0)), ("d3llm", "threshold", (0.1, 2.0))]
    asked = [
        request(f"{name}-{value}-{k}", [k, 4], name, k, {"block": 8, key: value}, max_tokens=40, temperature=0.0, ignore_eos=True)
        for name, key, values in sets
        for value in values
        for k in range(2)
    ]
    together = run(engine(HashLM(3), num_pages=900), asked)
    forwards = Counter[str]()
    for one in asked:
        alone = run(engine(HashLM(3)), [one])[one.id]
        assert ids(together[one.id]) == ids(alone)
        assert together[one.id].stats.forwards == alone.stats.forwards
        forwards[one.id.rsplit("-", 1)[0]] += alone.stats.forwards
    assert forwards["multi-block-0.3"] < forwards["multi-block-0.9"]
    assert forwards["sdar-entropy-2.0"] < forwards["sdar-entropy-0.1"]
    assert forwards["d3llm-2.0"] < forwards["d3llm-0.1"]


@pytest.mark.parametrize("name", [name for name in DIFFUSION if name.startswith("s2d2")])
def test_29_self_verification_draws_nothing_at_temperature_0(name: str) -> None:
    texts = [
        ids(run(engine(HashLM(8)), [request("x", [2, 3], name, seed, small(name), max_tokens=50, temperature=0.0)])["x"])
        for seed in (1, 1, 99)
    ]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("name", EACH)
def test_30_a_used_slot_tells_nothing_to_the_next_request(name: str) -> None:
    """On one engine, one at a time, in the same pages."""
    machine = engine(HashLM(9), max_sequences=1, num_pages=24, share_prefix=False)
    asked = [
        request(str(k), prompt, name, k, small(name), max_tokens=12 + k, temperature=0.8) for k, prompt in enumerate(prompts(5, 30, 20))
    ]
    for one in asked:
        assert ids(run(machine, [one])[one.id]) == ids(run(engine(HashLM(9)), [one])[one.id])
