"""Every block recipe equals its cache-free oracle step by step: what each block reveals and rewrites in each forward."""

import random

import pytest
from block_oracle import BLOCK_RECIPES, oracle_of, watch
from rig import engine, ids, request, run, same_in_company

from drawloom.models.hash_lm import HashLM

SIZES = (4, 8, 32)


@pytest.mark.parametrize("name", BLOCK_RECIPES)
@pytest.mark.parametrize("number", range(16))
def test_equals_its_oracle_step_by_step(name, number):
    rng = random.Random(f"{name} {number}")
    size, model = SIZES[number % 3], HashLM(rng.randrange(1000))
    length = rng.randrange(1, 4) * size if number % 2 else rng.randrange(1, 40)
    prompt = [rng.randrange(62) for _ in range(length)]
    params, naive = oracle_of(name, model, size, rng)
    one = request(
        "x", prompt, name, number, {"block": size, **params},
        max_tokens=rng.randrange(1, 40), temperature=rng.choice([0.0, 0.8]), ignore_eos=number % 4 == 3,
    )  # fmt: skip
    machine = engine(model)
    trace = watch(machine, size)
    done = run(machine, [one])["x"]
    want, want_trace = naive.run(prompt, one.sampling, number)
    assert trace == want_trace
    assert ids(done) == want
    assert done.stats.forwards == len(want_trace)
    assert model.info.mask_token_id not in ids(done)
    assert (done.samples[0].finish_reason == "length") == (len(ids(done)) == one.sampling.max_tokens)


def test_recipes_in_one_batch_say_what_they_say_alone():
    model, rng = HashLM(5), random.Random(5)
    requests = []
    for number in range(3 * len(BLOCK_RECIPES)):
        name = BLOCK_RECIPES[number % len(BLOCK_RECIPES)]
        prompt = [rng.randrange(62) for _ in range(rng.randrange(1, 40))]
        params, _ = oracle_of(name, model, 8, rng)
        requests.append(
            request(f"{number}", prompt, name, number, {"block": 8, **params}, max_tokens=rng.randrange(1, 50), temperature=0.7)
        )
    same_in_company(model, requests, num_pages=150, prefill_rows=16)  # few pages: some are preempted
