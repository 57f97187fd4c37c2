"""Multi-block decoding equals the cache-free oracle step by step: which offsets each block reveals, in every step."""

import random

import pytest
from oracles import MultiBlock
from rig import engine, ids, request, run

from drawloom.models.hash_lm import HashLM

SETTINGS = [(block, buffer, seed) for block in (4, 8, 32) for buffer in (1, 2, 3, 4) for seed in range(4)]


def revealed(machine, block: int) -> list[dict[int, list[int]]]:
    """Record, per step, the offsets that the engine's only sequence revealed in each block, by watching its canvas."""
    trace: list[dict[int, list[int]]] = []
    plan_of, mask = machine.planner.plan, machine.model.info.mask_token_id

    def plan(now):
        out = plan_of(now)
        group = out.groups[0]
        if group is not None:
            before, first = group.state.tokens[0].clone(), int(group.state.first[0])
            accept = group.decoder.select

            def select(look):
                chosen = accept(look)
                step = {first + n: chosen[0, n].nonzero()[:, 0].tolist() for n in range(chosen.shape[1])}
                assert all(before[n * block + offset] == mask for n in range(chosen.shape[1]) for offset in step[first + n])
                trace.append({k: v for k, v in step.items() if v})
                group.decoder.select = accept
                return chosen

            group.decoder.select = select
        return out

    machine.planner.plan = plan
    return trace


@pytest.mark.parametrize(("block", "buffer", "seed"), SETTINGS)
def test_equals_the_oracle_step_by_step(block, buffer, seed):
    """48 random settings: thresholds, aligned and unaligned prompts, lengths that cut inside a block."""
    rng = random.Random(f"{block} {buffer} {seed}")
    model = HashLM(rng.randrange(1000))
    length = rng.randrange(1, 12) * block if seed % 2 else rng.randrange(1, 50)
    prompt = [rng.randrange(62) for _ in range(length)]
    params = {
        "block": block,
        "buffer": buffer,
        "open_at": rng.choice([0.1, 0.5, 0.9, 1.0]),
        "semi_at": rng.choice([0.25, 0.75, 0.9]),
        "threshold": rng.choice([0.3, 0.6, 0.9, 0.99]),
    }
    temperature = rng.choice([0.0, 0.7])
    one = request("x", prompt, "multi-block", seed, params, max_tokens=rng.randrange(1, 90), temperature=temperature, ignore_eos=seed == 3)
    machine = engine(model)
    trace = revealed(machine, block)
    done = run(machine, [one])["x"]
    oracle = MultiBlock(model, block, buffer, params["open_at"], params["semi_at"], params["threshold"])
    want, want_trace = oracle.run(prompt, one.sampling, seed)
    assert ids(done) == want
    assert [step for step in trace if step] == [step for step in want_trace if step]
    assert done.stats.forwards == len(want_trace), "a commit never takes a step of its own"
    assert model.info.mask_token_id not in ids(done)
    assert len(ids(done)) <= one.sampling.max_tokens
    assert (done.samples[0].finish_reason == "length") == (len(ids(done)) == one.sampling.max_tokens)


def test_one_block_at_a_time_is_a_window_of_one():
    """`block` keeps a second slot only so that a finished block's rows ride beside the next block's: same text, fewer forwards."""
    model = HashLM(9)
    prompt = list(range(10))
    riding = request("x", prompt, "block", 1, {"block": 4, "threshold": 0.6}, max_tokens=40, ignore_eos=True)
    alone = request("x", prompt, "multi-block", 1, {"block": 4, "buffer": 1, "threshold": 0.6}, max_tokens=40, ignore_eos=True)
    one, two = run(engine(model), [riding])["x"], run(engine(model), [alone])["x"]
    assert ids(one) == ids(two)
    assert one.stats.forwards < two.stats.forwards


@pytest.mark.parametrize("score", ["max_probability", "margin", "neg_entropy"])
def test_scores_order_what_is_revealed(score):
    """block-static reveals exactly per_step positions of a block a step, the surest by its score."""
    model = HashLM(2)
    params = {"block": 8, "per_step": 2, "score": score}
    done = run(engine(model), [request("x", [1, 2, 3], "block-static", 0, params, max_tokens=29, ignore_eos=True)])["x"]
    assert len(ids(done)) == 29
    assert done.stats.accepted == 8 * 4 - 3
    assert done.stats.forwards == 3 + 4 + 4 + 4  # 5 masked positions in the first block, 8 in each of the others


def test_scores_differ():
    texts = set()
    for score in ("max_probability", "margin", "neg_entropy"):
        params = {"block": 8, "per_step": 1, "score": score}
        one = request("x", [1, 2, 3], "block-static", 0, params, max_tokens=60, ignore_eos=True)
        texts.add(tuple(ids(run(engine(HashLM(2)), [one])["x"])))
    assert len(texts) > 1
