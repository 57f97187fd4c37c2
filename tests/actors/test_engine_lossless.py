"""Every lossless recipe equals the naive autoregressive oracle, token for token: alone, mixed, preempted, shared, chunked."""

import random

import pytest
from oracles import MultiBlock, autoregressive
from rig import engine, ids, prompts, request, run

from drawloom.actors.request import Sampling
from drawloom.decoders.recipes import RECIPES
from drawloom.models.hash_lm import HashLM

LOSSLESS = [name for name, row in RECIPES.items() if row.lossless]
DIFFUSION = {"block": 4, "buffer": 3, "threshold": 0.6, "open_at": 0.25}
# how the engine is squeezed; every setting must leave the text alone
SQUEEZES = {
    "roomy": {},
    "chunked": {"prefill_rows": 5},
    "preempting": {"num_pages": 32, "prefill_rows": 7},
    "few at once": {"max_sequences": 3},
    "no sharing": {"share_prefix": False},
    "fixed shapes": {"pack": "padded"},
    "large pages": {"page_tokens": 16, "num_pages": 100},
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("squeeze", SQUEEZES)
def test_mixed_batches_equal_autoregression(squeeze, temperature):
    """7 squeezes x 2 temperatures x 18 lossless requests = 252 random cases, in one batch with diffusion sequences."""
    rng = random.Random(f"{squeeze} {temperature}")
    model = HashLM(rng.randrange(1000))
    texts = prompts(24, rng.randrange(1000))
    requests = []
    for index, prompt in enumerate(texts):
        common = {"max_tokens": rng.randrange(1, 32), "temperature": temperature, "seed": rng.randrange(2**64)}
        if index % 4 == 3:
            requests.append(request(str(index), prompt, "multi-block", params=DIFFUSION, **common))
        else:
            requests.append(request(str(index), prompt, LOSSLESS[(index - index // 4) % len(LOSSLESS)], **common))
    machine = engine(model, **SQUEEZES[squeeze])
    done = run(machine, requests)
    for one in requests:
        if one.decoder == "multi-block":
            oracle = MultiBlock(model, 4, 3, 0.25, 0.9, 0.6)
            want = oracle.run(one.prompt_token_ids, one.sampling, _signed(one.seed))[0]
        else:
            want, reason = autoregressive(model, one.prompt_token_ids, one.sampling, _signed(one.seed))
            assert done[one.id].samples[0].finish_reason == reason
        assert ids(done[one.id]) == want, (one.decoder, one.id)
    assert {one.decoder for one in requests} == {*LOSSLESS, "multi-block"}
    stats = machine.stats()
    assert stats.accepted > 0
    if squeeze == "preempting":
        assert stats.preemptions > 0
    if squeeze == "no sharing":
        assert stats.prefix_hit_tokens == 0
    elif squeeze != "large pages":
        assert stats.prefix_hit_tokens > 0


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_alone_equals_autoregression(name, temperature):
    model = HashLM(11)
    for index, prompt in enumerate(prompts(6, 5)):
        one = request("x", prompt, name, seed=index, max_tokens=24, temperature=temperature)
        assert ids(run(engine(model), [one])["x"]) == autoregressive(model, prompt, one.sampling, index)[0]


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize(
    "sampling",
    [
        {"top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"repetition_penalty": 1.7},
        {"frequency_penalty": 1.2, "presence_penalty": 0.6},
        {"logit_bias": {5: 6.0, 9: -4.0}, "top_k": 9},
        {"repetition_penalty": 0.8, "temperature": 0.0},
    ],
    ids=str,
)
def test_sampling_settings_equal_the_oracle(name, sampling):
    """Each row is processed with its draft prefix as context, so penalties do not depend on how text was drafted."""
    model = HashLM(21, sway=8.0)
    settings = Sampling(**{"max_tokens": 30, "temperature": 1.1, "ignore_eos": True, **sampling})
    requests = [request(str(i), prompt, name, seed=i, **settings.model_dump()) for i, prompt in enumerate(prompts(5, 8))]
    neighbours = [request(f"n{i}", prompt, "lookup", seed=i, max_tokens=20) for i, prompt in enumerate(prompts(3, 9))]
    done = run(engine(model), requests + neighbours)
    for one in requests:
        assert ids(done[one.id]) == autoregressive(model, one.prompt_token_ids, one.sampling, one.seed)[0]


def test_samples_are_streams_of_their_own():
    model = HashLM(4)
    prompt = prompts(1, 3)[0]
    one = request("x", prompt, "lookup", seed=77, n=5, temperature=1.0, max_tokens=16)
    machine = engine(model)
    done = run(machine, [one])["x"]
    for index in range(5):
        assert ids(done, index) == autoregressive(model, prompt, one.sampling, 77, index)[0]
    assert len({tuple(ids(done, index)) for index in range(5)}) > 1
    shared = (len(prompt) - 1) // 4 * 4
    assert machine.stats().prefix_hit_tokens == 4 * shared, "four samples take the first one's prompt pages"


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed
