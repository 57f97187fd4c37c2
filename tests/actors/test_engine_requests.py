"""What a request may ask of the engine: ends, lengths, log-probabilities, samples, cancellation, and errors that name the way out."""

import random

import pytest
import torch
from oracles import autoregressive, hash_logits
from rig import engine, ids, prompts, request, run

from drawloom.actors import harvest as harvest_module
from drawloom.decoders.recipes import RECIPES, build
from drawloom.errors import RowError
from drawloom.models.hash_lm import HashLM, HashText

ALL = list(RECIPES)
SMALL = {name: {"block": 8} for name, row in RECIPES.items() if "block" in row.params}


@pytest.mark.parametrize("decoder", ALL)
def test_max_tokens_is_exact_whatever_the_block(decoder):
    lengths = (1, 2, 7, 31, 32, 33, 40)
    requests = [request(str(n), [1, 2, 3, 4, 5], decoder, n, max_tokens=n, temperature=0.9, ignore_eos=True) for n in lengths]
    done = run(engine(), requests)
    for n in lengths:
        assert len(ids(done[str(n)])) == n
        assert done[str(n)].samples[0].finish_reason == "length"
        assert engine().model.info.mask_token_id not in ids(done[str(n)])


@pytest.mark.parametrize("decoder", [name for name in ALL if name != "d3llm"])
def test_end_of_text_and_stop_tokens(decoder):
    """Text ends before the first end token; a stop token id is reported, end-of-text is not."""
    model, params = HashLM(5, sway=4.0), SMALL.get(decoder, {})
    common = {"max_tokens": 40, "temperature": 1.2}
    free = run(engine(model), [request(str(s), [s, 7], decoder, s, params, ignore_eos=True, **common) for s in range(12)])
    texts = {name: ids(done) for name, done in free.items()}
    stopped = [request(str(s), [s, 7], decoder, s, params, stop_token_ids=(texts[str(s)][3],), **common) for s in range(12)]
    reasons = set()
    for name, done in run(engine(model), stopped).items():
        got, text, stop = done.samples[0], texts[name], texts[name][3]
        end = min(text.index(token) for token in (62, stop) if token in text)
        assert list(got.token_ids) == text[:end]
        assert got.finish_reason == "stop"
        assert got.stop_reason == (stop if text[end] == stop else None)
        reasons.add(got.stop_reason is None)
    assert False in reasons


def test_in_d3llm_an_end_token_fills_what_stands_behind_it():
    """By its rule 4 the tokens that end a text change what is left to decode before them: the text still ends before the first of them."""
    model = HashLM(5, sway=4.0)
    for seed in range(12):
        one = request("x", [seed, 7], "d3llm", seed, {"block": 8}, max_tokens=40, temperature=1.2, stop_token_ids=(seed, seed + 20))
        sample = run(engine(model), [one])["x"].samples[0]
        assert not {62, seed, seed + 20} & set(sample.token_ids)
        assert sample.finish_reason == "stop" or len(sample.token_ids) == 40


@pytest.mark.parametrize("decoder", ALL)
def test_stop_strings_are_found_across_step_borders(decoder):
    """Whatever the decoder commits at once, text is cut before the first stop string and its tokens stay."""
    text, model, params = HashText(), HashLM(6, sway=4.0), SMALL.get(decoder, {})
    common = {"max_tokens": 50, "ignore_eos": True}
    free = run(engine(model), [request(str(seed), [seed], decoder, seed, params, **common) for seed in range(8)])
    cut, want = [], {}
    for seed in range(8):
        whole = free[str(seed)].samples[0].text
        for start, size in ((0, 1), (5, 3), (17, 6), (40, 10)):
            stop, name = whole[start : start + size], f"{seed} {start}"
            cut.append(request(name, [seed], decoder, seed, params, stop=("never\x00", stop), **common))
            want[name] = (whole[: whole.index(stop)], whole[: whole.index(stop) + size], stop)
    for name, done in run(engine(model), cut).items():
        got = done.samples[0]
        tokens = text.decode(list(got.token_ids))
        assert (got.text, tokens, got.stop_reason) == want[name], "tokens end with the one that completes the stop string"


@pytest.mark.parametrize("decoder", [name for name, row in RECIPES.items() if row.lossless])
def test_logprobs_are_the_models_own(decoder):
    model = HashLM(8)
    prompt = [3, 1, 4, 1, 5]
    one = request("x", prompt, decoder, 5, max_tokens=20, temperature=0.7, top_p=0.9, logprobs=3)
    other = request("y", prompt, decoder, 6, max_tokens=9)
    done = run(engine(model), [one, other])
    sample = done["x"].samples[0]
    assert done["y"].samples[0].logprobs is None
    assert sample.logprobs is not None
    assert len(sample.logprobs) == len(sample.token_ids)
    logits = hash_logits(model, prompt + list(sample.token_ids), lambda i, j: j <= i)
    logits[:, model.info.mask_token_id or 0] = -torch.inf
    want = logits.double().log_softmax(-1)
    total = 0.0
    for offset, (own, *top) in enumerate(sample.logprobs):
        row = want[len(prompt) - 1 + offset]
        assert own.token_id == sample.token_ids[offset]
        assert own.logprob == pytest.approx(float(row[own.token_id]), abs=1e-4)
        assert own.rank == int((row > row[own.token_id]).sum()) + 1
        best = row.sort(descending=True)
        assert [one.token_id for one in top] == best.indices[:3].tolist()
        assert [one.logprob for one in top] == pytest.approx(best.values[:3].tolist(), abs=1e-4)
        total += own.logprob
    assert sample.cumulative_logprob == pytest.approx(total)


def test_logprobs_of_diffusion_are_those_of_the_revealing_step():
    """Zero alternatives give the token's own, which is finite."""
    one = request("x", [1, 2], "multi-block", 5, {"block": 4, "threshold": 0.5}, max_tokens=21, logprobs=0, ignore_eos=True)
    sample = run(engine(), [one])["x"].samples[0]
    assert sample.logprobs is not None
    assert [[own.token_id] for (own,) in sample.logprobs] == [[token] for token in sample.token_ids]
    assert all(-20 < own.logprob <= 0 for (own,) in sample.logprobs)


def test_cancel_frees_pages_at_once_and_leaves_others_alone():
    machine = engine(max_sequences=4, prefill_rows=6)
    requests = [request(str(i), p, ALL[i % len(ALL)], i, max_tokens=30, ignore_eos=True) for i, p in enumerate(prompts(12, 1))]
    want = run(engine(), [one for one in requests if int(one.id) % 2])
    for one in requests:
        machine.add(one)
    rng, got = random.Random(3), {}
    to_cancel = [one.id for one in requests if not int(one.id) % 2]
    rng.shuffle(to_cancel)
    while machine.num_unfinished:
        for done in machine.step():
            got[done.id] = done
        if to_cancel and rng.random() < 0.4:
            name = to_cancel.pop()
            here = name in machine.jobs
            held = machine.pool.num_held
            assert machine.cancel(name) == here
            assert machine.cancel(name) is False
            assert machine.pool.num_held <= held
        machine.pool.check()
    assert machine.pool.num_held == 0
    for name, done in want.items():
        assert ids(got[name]) == ids(done)


def test_cancel_of_everything_leaves_nothing():
    machine = engine(num_pages=30)
    for i, prompt in enumerate(prompts(8, 4)):
        machine.add(request(str(i), prompt, "lookup", i, max_tokens=25, n=2, temperature=1.0))
    machine.step()
    for i in range(8):
        machine.cancel(str(i))
    assert machine.pool.num_held == 0
    assert machine.num_unfinished == 0
    assert machine.step() == []
    assert machine.stats().running == machine.stats().waiting == 0


@pytest.mark.parametrize(
    ("bad", "code", "says"),
    [
        ({"prompt": []}, "empty_prompt", "no tokens"),
        ({"prompt": [1, 64]}, "invalid_token_id", "64 is outside the vocabulary of 64"),
        ({"prompt": [1, -1]}, "invalid_token_id", "-1"),
        ({"prompt": [1] * 5000}, "prompt_too_long", "at most"),
        ({"max_tokens": 4096}, "prompt_too_long", "lower max_tokens"),
        ({"prompt": [1] * 1500}, "prompt_too_long", "raise kv_gib"),
        ({"decoder": "lokup"}, "invalid_decoder", "did you mean 'lookup'"),
        ({"decoder": "lookup", "params": {"widht": 3}}, "invalid_decoder", "did you mean 'width'"),
        ({"decoder": "lookup", "params": {"width": "three"}}, "invalid_decoder", "takes a int"),
        ({"decoder": "block", "params": {"block": 0}}, "invalid_decoder", "at least 1"),
        ({"decoder": "block", "params": {"score": "margn"}}, "invalid_decoder", "did you mean 'margin'"),
        ({"logit_bias": {99: 1.0}}, "invalid_token_id", "99"),
        ({"stop_token_ids": (640,)}, "invalid_token_id", "640"),
    ],
    ids=str,
)
def test_bad_requests_are_refused_with_the_way_out(bad, code, says):
    machine = engine()
    prompt = bad.pop("prompt", [1, 2])
    with pytest.raises(RowError) as caught:
        machine.add(request("x", prompt, **bad))
    assert caught.value.code == code
    assert says in str(caught.value)
    assert machine.num_unfinished == 0


def test_an_id_runs_once():
    machine = engine()
    machine.add(request("x", [1]))
    with pytest.raises(RowError, match="own id"):
        machine.add(request("x", [2]))


def test_diffusion_on_a_model_without_mask_token_is_refused():
    model = HashLM()
    model.info = type(model.info)(**{**vars(model.info), "mask_token_id": None})
    with pytest.raises(RowError, match="needs a masked diffusion model"):
        engine(model).add(request("x", [1], "multi-block"))


def test_visibility_that_the_network_was_not_trained_for_is_refused():
    model = HashLM()
    model.info = type(model.info)(**{**vars(model.info), "block_tokens": 4})
    with pytest.raises(RowError, match="block-causal with blocks of 4"):
        engine(model).add(request("x", [1], "ar"))
    run(engine(model), [request("x", [1], "block", params={"block": 4})])


def test_parameters_of_rows_do_not_mix():
    """Thresholds of one row never reach another: a batch of different parameters equals each alone."""
    rng = random.Random(0)
    requests = [
        request(
            str(i), p, "multi-block", i, {"block": 4, "threshold": rng.choice([0.3, 0.6, 0.9]), "buffer": rng.choice([2, 3])}, max_tokens=30
        )
        for i, p in enumerate(prompts(10, 2))
    ]
    together = run(engine(), requests)
    for one in requests:
        assert ids(together[one.id]) == ids(run(engine(), [one])[one.id])


def test_priority_and_arrival_decide_who_runs_first():
    machine = engine(max_sequences=1)
    order = []
    for name, priority in (("a", 0), ("b", 0), ("c", 5)):
        machine.add(type(request(name, [1]))(**{**vars(request(name, [1], max_tokens=3, ignore_eos=True)), "priority": priority}))
    while machine.num_unfinished:
        order += [done.id for done in machine.step()]
    assert order == ["c", "a", "b"]


@pytest.mark.parametrize("pack", ["exact", "padded"])
def test_one_copy_to_the_host_a_step(pack, monkeypatch):
    copies = []
    monkeypatch.setattr(harvest_module, "to_host", lambda tensors, real=harvest_module.to_host: copies.append(1) or real(tensors))
    machine = engine(pack=pack)
    kinds = [request(str(i), p, ALL[i % len(ALL)], i, max_tokens=20, logprobs=i % 3 or None) for i, p in enumerate(prompts(12, 6))]
    run(machine, kinds)
    assert len(copies) == machine.stats().steps


def test_statistics_add_up():
    machine = engine()
    requests = [request(str(i), p, "lookup", i, max_tokens=30, ignore_eos=True) for i, p in enumerate(prompts(6, 7))]
    done = run(machine, requests).values()
    stats = machine.stats()
    assert stats.finished == 6
    assert stats.tokens == 180
    assert stats.rows == sum(one.stats.rows for one in done)
    assert stats.drafted == sum(one.stats.drafted for one in done)
    assert stats.accepted == sum(one.stats.accepted for one in done)
    for one in done:
        assert one.stats.forwards + one.stats.accepted >= 30
        by_position = one.stats.accepted_by_position
        assert sum(by_position) == one.stats.accepted
        assert list(by_position) == sorted(by_position, reverse=True)
        assert all(by_position)
        assert 0 <= one.stats.queued_s <= one.stats.first_token_s <= one.stats.total_s
        assert one.lossless
    assert 0 < stats.forward_s < stats.step_s


@pytest.mark.parametrize("decoder", [name for name, row in RECIPES.items() if row.lossless and name != "ar"])
def test_drafts_behind_the_end_of_a_text_are_not_accepted(decoder):
    """Every forward emits its accepted tokens and one more, the last one at most that: so much adds up to the text and its end token."""
    model = HashLM(5, sway=60.0)
    free = ids(run(engine(model), [request("x", [1, 2], "ar", 1, max_tokens=60, temperature=0.0, ignore_eos=True)])["x"])
    stop = free[29]
    machine = engine(model)
    for k in range(2):  # the second time, drafters that remember know how it goes on
        asked = request(f"{k}", [1, 2], decoder, 1, max_tokens=60, temperature=0.0, ignore_eos=True, stop_token_ids=(stop,))
        done = run(machine, [asked])[f"{k}"]
        assert ids(done) == free[: free.index(stop)]
        decoding = done.stats.forwards - build(decoder, {}, None).drafts_trees  # the prompt of a tree takes one of its own
        assert done.stats.accepted <= free.index(stop) + 1 - (decoding - 1)


def test_text_does_not_depend_on_order_of_arrival():
    requests = [request(str(i), p, ALL[i % len(ALL)], i, max_tokens=25, temperature=0.8) for i, p in enumerate(prompts(15, 9))]
    first = run(engine(max_sequences=5), requests)
    second = run(engine(max_sequences=4, window=3), requests[::-1])
    assert {name: ids(done) for name, done in first.items()} == {name: ids(done) for name, done in second.items()}


def test_a_long_request_does_not_drain_the_engine():
    """Slots that short requests free are refilled within a step, beside one that runs on."""
    machine = engine(max_sequences=4)
    machine.add(request("long", [1], max_tokens=120, ignore_eos=True))
    for i in range(30):
        machine.add(request(str(i), [2, i], max_tokens=10, ignore_eos=True))
    busy = []
    while machine.num_unfinished > 4:
        machine.step()
        busy.append(len(machine.planner.running()) + 0)
    assert min(busy[1:]) >= 1
    assert machine.stats().steps < 115, "30 short requests on three slots ran beside the long one, not after it"


def test_autoregression_after_stop_matches_the_oracle_reason():
    model = HashLM(5, sway=0.0)
    for seed in range(10):
        one = request("x", [seed], "ar", seed, max_tokens=100, temperature=1.5)
        done = run(engine(model), [one])["x"].samples[0]
        assert (list(done.token_ids), done.finish_reason) == autoregressive(model, [seed], one.sampling, seed)
