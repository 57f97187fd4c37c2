"""Every block recipe equals its cache-free oracle step by step: what each block reveals and rewrites in each forward."""

import random
from typing import Any

import block_oracle as oracle
import pytest
from block_oracle import Blocks
from rig import engine, ids, request, run

from drawloom.decoders.denoise import Denoise
from drawloom.decoders.recipes import RECIPES, build
from drawloom.models.hash_lm import HashLM

SIZES = (4, 8, 32)


def oracles(name: str, model: HashLM, size: int, rng: random.Random) -> tuple[dict, Blocks]:
    """Random parameters of a recipe, and its oracle with the same."""
    tau, steps = rng.choice([0.2, 0.5, 0.8, 0.95]), rng.randrange(1, size + 1)
    if name in ("block", "llada2"):
        return {"threshold": tau}, Blocks(model, size, 2, oracle.threshold(tau))
    if name == "block-static":
        return {"per_step": steps}, Blocks(model, size, 2, lambda block: oracle.surest(block, steps))
    if name == "sdar-static":
        return {"steps": steps}, Blocks(model, size, 2, oracle.static(size, steps))
    if name == "sdar-sequential":
        return {"steps": steps}, Blocks(model, size, 2, oracle.sequential(size, steps))
    if name == "sdar-dynamic":
        return {"steps": steps, "threshold": tau}, Blocks(model, size, 2, oracle.dynamic(tau, size, steps))
    if name == "sdar-entropy":
        return {"bound": tau * 4}, Blocks(model, size, 2, oracle.entropy_bound(tau * 4))
    if name == "llada2.1":
        edit, post = rng.choice([0.0, 0.3, 0.7]), rng.choice([0, 1, 3, 16])
        params = {"threshold": tau, "edit": edit, "post_steps": post}
        return params, Blocks(model, size, 2, oracle.threshold(tau), revision=oracle.edits(edit, post))
    sure = rng.choice([0.5, 0.9, 0.99])
    if name == "dmax":
        params = {"threshold": tau, "sure": sure, "steps": steps}
        return params, Blocks(model, size, 2, oracle.contiguous(tau), revision=oracle.repredict(sure, steps))
    window: dict[str, Any] = {"open_at": rng.choice([0.1, 0.5, 1.0]), "semi_at": rng.choice([0.25, 0.9])}
    buffer = rng.randrange(1, 5)
    if name == "multi-block":
        return {"threshold": tau, "buffer": buffer, **window}, Blocks(model, size, buffer, oracle.threshold(tau), **window)
    assert name == "dmax-multi-block"
    window["stable_at"] = rng.choice([0.0, 0.5, 0.9])
    params = {"threshold": tau, "sure": sure, "steps": steps, "buffer": buffer, **window}
    return params, Blocks(model, size, buffer, oracle.contiguous(tau), revision=oracle.repredict(sure, steps), **window)


BLOCK_RECIPES = [name for name, row in RECIPES.items() if row.diffusion and isinstance(build(name, {}, 63), Denoise)]


def watch(machine, size: int) -> list[dict[int, tuple[list[int], list[int]]]]:
    """Per step, what the engine's only sequence revealed and rewrote in each block, by comparing its canvas before and after."""
    trace: list[dict[int, tuple[list[int], list[int]]]] = []
    plan_of = machine.planner.plan

    def plan(now):
        out = plan_of(now)
        group = out.groups[0]
        if group is None:
            return out
        decoder, state = group.decoder, group.state
        first = int(state.first[0])

        def note(chosen, rewritten):
            found = {}
            for n in range(chosen.shape[1]):
                both = chosen[0, n].nonzero()[:, 0].tolist(), rewritten[0, n].nonzero()[:, 0].tolist()
                if any(both):
                    found[first + n] = both
            trace.append(found)

        revised = decoder._revised

        def spy(lines, state, picks, score, chosen):
            result = revised(lines, state, picks, score, chosen)
            note(chosen.unflatten(1, (-1, size)), result[0].unflatten(1, (-1, size)))
            decoder._revised = revised
            return result

        decoder._revised = spy
        return out

    machine.planner.plan = plan
    return trace


@pytest.mark.parametrize("name", BLOCK_RECIPES)
@pytest.mark.parametrize("number", range(16))
def test_equals_its_oracle_step_by_step(name, number):
    rng = random.Random(f"{name} {number}")
    size, model = SIZES[number % 3], HashLM(rng.randrange(1000))
    length = rng.randrange(1, 4) * size if number % 2 else rng.randrange(1, 40)
    prompt = [rng.randrange(62) for _ in range(length)]
    params, naive = oracles(name, model, size, rng)
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
        params, _ = oracles(name, model, 8, rng)
        requests.append(
            request(f"{number}", prompt, name, number, {"block": 8, **params}, max_tokens=rng.randrange(1, 50), temperature=0.7)
        )
    together = run(engine(model, num_pages=150, prefill_rows=16), requests)  # few pages: some are preempted
    for one in requests:
        assert ids(together[one.id]) == ids(run(engine(model), [one])[one.id]), one.decoder
