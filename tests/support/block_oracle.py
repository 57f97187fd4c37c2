"""The naive reference of every block recipe: one sequence, no cache, dictionaries and loops. A rule says what is revealed, another what
is rewritten and when a block has settled."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oracles import choose, hash_logits

from drawloom.actors.request import Sampling
from drawloom.decoders.denoise import Denoise
from drawloom.decoders.recipes import RECIPES, build
from drawloom.models.hash_lm import HashLM


@dataclass
class Block:
    """An open block as its rules see it."""

    masked: list[int]  # positions
    sure: dict[int, float]  # of the picked token, for own positions
    entropy: dict[int, float]
    may_fall_back: bool
    age: int
    own: list[int]
    filled: list[int]  # of own, before this forward
    differs: list[int]  # of filled, the pick is another
    post: int  # forwards without masks, this one among them


Reveal = Callable[[Block], list[int]]


@dataclass
class Revision:
    rewrite: Callable[[Block], list[int]]
    settled: Callable[[Block, list[int]], bool]  # block, rewritten
    soft: bool = False


@dataclass
class State:
    canvas: dict[int, int]
    weight: dict[int, float] = field(default_factory=dict)
    status: dict[int, str] = field(default_factory=dict)
    age: dict[int, int] = field(default_factory=dict)
    post: dict[int, int] = field(default_factory=dict)
    stable: dict[int, float] = field(default_factory=dict)
    low: int = 0


@dataclass
class Blocks:
    """`run` gives the text, and for each step what each block revealed and rewrote (offsets)."""

    model: HashLM
    block: int
    buffer: int
    reveal: Reveal
    open_at: float = 1.0
    semi_at: float = 1.0
    stable_at: float = 0.0
    revision: Revision | None = None

    def run(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> tuple[list[int], list[dict[int, tuple[list[int], list[int]]]]]:
        size, limit = self.block, len(prompt) + sampling.max_tokens
        ends = () if sampling.ignore_eos else self.model.info.eos_token_ids
        state = State(dict(enumerate(prompt)), low=len(prompt) // size)
        if len(prompt) % size:
            self._activate(state, state.low)
        trace = []
        while True:
            self._open(state, limit, ends, len(prompt))
            trace.append(self._step(state, len(prompt), sampling, seed))
            final_blocks = state.low + sum(status == "to_cache" for status in state.status.values())
            out = self._finished(state, len(prompt), limit, ends, final_blocks * size if self.revision else limit)
            if out is not None:
                return out, trace

    def _activate(self, state: State, number: int) -> None:
        state.status[number], state.age[number], state.post[number], state.stable[number] = "active", 0, 0, 0.0

    def _open(self, state: State, limit: int, ends: Sequence[int], prompt_len: int) -> None:
        last = max(state.status, default=None)
        new = state.low if last is None else last + 1
        ready = last is None or (self._progress(state, last) >= self.open_at and state.stable[last] >= self.stable_at)
        if self.revision and self.open_at >= 1 and last is not None:
            ready = ready and state.status[last] == "to_cache"
        ended = any(token in ends for position, token in state.canvas.items() if position >= prompt_len)
        if ready and not ended and new - state.low < self.buffer and new * self.block < limit:
            self._activate(state, new)

    def _step(self, state: State, prompt_len: int, sampling: Sampling, seed: int) -> dict[int, tuple[list[int], list[int]]]:
        mask, size = self.model.info.mask_token_id, self.block
        assert mask is not None
        text = [state.canvas.get(p, mask) for p in range((max(state.status) + 1) * size)]
        weights = [state.weight.get(p, 1.0) for p in range(len(text))] if self.revision and self.revision.soft else None
        logits = hash_logits(self.model, text, lambda i, j: j // size <= i // size, weights)
        logits[:, mask] = float("-inf")
        before = {k: self._progress(state, k) for k in range(max(state.status) + 1)}
        trace, settled = {}, {}
        for k in sorted(k for k in state.status if state.status[k] == "active"):
            own = [p for p in range(k * size, (k + 1) * size) if p >= prompt_len]
            picks = {p: choose(logits[p], sampling, [], 0, seed, 0, p) for p in own}
            probs = {p: logits[p].softmax(0) for p in own}
            masked = [p for p in own if p not in state.canvas]
            state.post[k] += not masked
            seen = Block(
                masked=masked,
                sure={p: float(logits[p].log_softmax(0)[picks[p]].exp()) for p in own},
                entropy={p: -float((probs[p] * probs[p].log()).nan_to_num(0).sum()) for p in own},
                may_fall_back=k == state.low or before[k - 1] >= self.semi_at,
                age=state.age[k],
                own=own,
                filled=[p for p in own if p in state.canvas],
                differs=[p for p in own if p in state.canvas and picks[p] != state.canvas[p]],
                post=state.post[k],
            )
            shown = self.reveal(seen) if masked else []
            again = self.revision.rewrite(seen) if self.revision else []
            same = size - sum(state.canvas.get(p) != picks[p] for p in [*shown, *again])
            for p in [*shown, *again]:
                state.canvas[p], state.weight[p] = picks[p], seen.sure[p]
            full = len(shown) == len(masked)
            settled[k] = full and (self.revision is None or self.revision.settled(seen, again))
            state.age[k] += 1
            state.stable[k] = same / size
            trace[k] = (sorted(p - k * size for p in shown), sorted(p - k * size for p in again))
        self._settle(state, settled)
        return {k: both for k, both in trace.items() if any(both)}

    def _settle(self, state: State, settled: dict[int, bool]) -> None:
        for k in sorted(state.status):
            if state.status[k] == "to_cache":
                del state.status[k]
                state.low = k + 1
            elif settled[k] and (k == state.low or state.status.get(k - 1) == "to_cache"):
                state.status[k] = "to_cache"
                for p in range(k * self.block, (k + 1) * self.block):
                    state.weight.pop(p, None)

    def _progress(self, state: State, k: int) -> float:
        return sum(p in state.canvas for p in range(k * self.block, (k + 1) * self.block)) / self.block

    def _finished(self, state: State, prompt_len: int, limit: int, ends: Sequence[int], final: int) -> list[int] | None:
        out = []
        for position in range(prompt_len, limit):
            if position not in state.canvas or position >= final:
                return None
            if state.canvas[position] in ends:
                return out
            out.append(state.canvas[position])
        return out


def surest(block: Block, count: int) -> list[int]:
    return sorted(block.masked, key=lambda p: (-block.sure[p], p))[:count]


def share(block: Block, size: int, steps: int) -> int:
    """SDAR's even split of a block over its forwards."""
    return size // steps + (block.age < size % steps)


def threshold(tau: float) -> Reveal:
    return lambda block: [p for p in block.masked if block.sure[p] > tau] or (surest(block, 1) if block.may_fall_back else [])


def static(size: int, steps: int) -> Reveal:
    return lambda block: surest(block, share(block, size, steps))


def sequential(size: int, steps: int) -> Reveal:
    return lambda block: block.masked[: share(block, size, steps)]


def dynamic(tau: float, size: int, steps: int) -> Reveal:
    def reveal(block: Block) -> list[int]:
        hits = [p for p in block.masked if block.sure[p] > tau]
        return hits if len(hits) >= share(block, size, steps) else surest(block, share(block, size, steps))

    return reveal


def entropy_bound(bound: float) -> Reveal:
    def reveal(block: Block) -> list[int]:
        order, total, hits = sorted(block.masked, key=lambda p: (block.entropy[p], p)), 0.0, []
        for p in order:
            total += block.entropy[p]
            if total >= bound and hits:
                break
            hits.append(p)
            if total >= bound:
                break
        return hits

    return reveal


def contiguous(tau: float) -> Reveal:
    def reveal(block: Block) -> list[int]:
        hits = []
        for p in block.masked:
            if block.sure[p] < tau:
                break
            hits.append(p)
        return hits or (block.masked[:1] if block.may_fall_back else [])

    return reveal


def edits(tau: float, post_steps: int) -> Revision:
    return Revision(
        lambda block: [p for p in block.differs if block.sure[p] > tau],
        lambda block, again: (not again and block.post >= 1) or block.post >= post_steps,
    )


def repredict(sure: float, steps: int) -> Revision:
    return Revision(
        lambda block: block.filled,
        lambda block, again: (
            all(block.sure[p] >= sure for p in block.own) or (block.post >= 1 and not block.differs) or block.age + 1 >= steps
        ),
        soft=True,
    )


def oracle_of(name: str, model: HashLM, size: int, rng: random.Random) -> tuple[dict, Blocks]:
    """Random parameters of a recipe, and its oracle with the same."""
    tau, steps = rng.choice([0.2, 0.5, 0.8, 0.95]), rng.randrange(1, size + 1)
    if name in ("block", "llada2"):
        return {"threshold": tau}, Blocks(model, size, 2, threshold(tau))
    if name == "block-static":
        return {"per_step": steps}, Blocks(model, size, 2, lambda block: surest(block, steps))
    if name == "sdar-static":
        return {"steps": steps}, Blocks(model, size, 2, static(size, steps))
    if name == "sdar-sequential":
        return {"steps": steps}, Blocks(model, size, 2, sequential(size, steps))
    if name == "sdar-dynamic":
        return {"steps": steps, "threshold": tau}, Blocks(model, size, 2, dynamic(tau, size, steps))
    if name == "sdar-entropy":
        return {"bound": tau * 4}, Blocks(model, size, 2, entropy_bound(tau * 4))
    if name == "llada2.1":
        edit, post = rng.choice([0.0, 0.3, 0.7]), rng.choice([0, 1, 3, 16])
        params = {"threshold": tau, "edit": edit, "post_steps": post}
        return params, Blocks(model, size, 2, threshold(tau), revision=edits(edit, post))
    sure = rng.choice([0.5, 0.9, 0.99])
    if name == "dmax":
        params = {"threshold": tau, "sure": sure, "steps": steps}
        return params, Blocks(model, size, 2, contiguous(tau), revision=repredict(sure, steps))
    window: dict[str, Any] = {"open_at": rng.choice([0.1, 0.5, 1.0]), "semi_at": rng.choice([0.25, 0.9])}
    buffer = rng.randrange(1, 5)
    if name == "multi-block":
        return {"threshold": tau, "buffer": buffer, **window}, Blocks(model, size, buffer, threshold(tau), **window)
    assert name == "dmax-multi-block"
    window["stable_at"] = rng.choice([0.0, 0.5, 0.9])
    params = {"threshold": tau, "sure": sure, "steps": steps, "buffer": buffer, **window}
    return params, Blocks(model, size, buffer, contiguous(tau), revision=repredict(sure, steps), **window)


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
