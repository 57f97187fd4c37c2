"""The first loop with several continuations at once: a tree of drafted rows, verified in one forward, of which one path is kept.

Row 0 is the last final token. Every other row names its parent and sees its ancestors alone, as one chain would. With the usual verifier
what is emitted is the target's own draw after each kept row, so the text is that of plain autoregression whatever was drafted. Others
test the drafted tokens against their law, and keep the law of the text, not the text (decoders/verifiers.py).
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from drawloom.decoders.drafters import Drafter, Proposed, Unaided
from drawloom.decoders.drafting import Drafted, Drafting
from drawloom.decoders.pace import Pace
from drawloom.decoders.step import Commit, Law, Lines, Memory, Picks, Plain, Step, gathered, up_to_end
from drawloom.decoders.verifiers import COUPLED, Verifier, check_law
from drawloom.kernels.noise import REST, TEST, gumbel, uniform_at
from drawloom.kernels.verify import reach, walk_tree
from drawloom.kernels.verify_sampled import Draft

WORD = 64  # bits of an ancestor word


@dataclass(frozen=True)
class Tree:
    """Drafted rows in the drafter's own order, all [S, K]; row 0 is the last final token and a parent stands before its children."""

    tokens: Tensor  # int64
    parent: Tensor  # int64; row 0 is its own
    depth: Tensor  # int64; 0 for row 0
    valid: Tensor  # bool; a valid row's parent is valid
    q: Tensor | None = None  # [S, K, V] float32, what each row's token was drawn from; None: nothing was drawn


@dataclass(frozen=True)
class Outcome:
    """What a drafter may learn from: the target's picks in the drafter's own order, and what became final."""

    picked: Tensor  # [S, K] int64, after each row; the row's own token where it was not valid
    valid: Tensor  # [S, K] bool
    last: Tensor  # [S] int64, the last final token
    emitted: Tensor  # [S] int64
    tokens: Tensor  # [S, K] int64
    top: Tensor | None  # [S, K, needs_top] int64, the likeliest tokens behind each row


class TreeDrafter(Protocol):
    law: str  # of its drafts, as in verifiers.py
    paths: bool  # its drafts are independent paths from the root, of equal length
    rows: int  # K, row 0 included
    depth: int  # of the deepest row
    remembers: str  # as a decoder's
    drafting: Drafting | None  # as a decoder's
    needs_top: int

    def remember(self, vocab_size: int) -> Memory | None: ...

    def begin(self, lines: Lines) -> Any: ...

    def propose(self, lines: Lines, state: Any) -> Tree: ...

    def learn(self, lines: Lines, state: Any, outcome: Outcome) -> Any: ...

    def receive(self, state: Any, drafted: Drafted) -> Any:
        """State with what a network drafted."""
        ...


@dataclass(frozen=True)
class TreeState:
    """The drafter's state, and the tree of the running step in the order of its rows."""

    drafter: Any
    parent: Tensor  # [S, K] int64
    seen: Tensor  # [S, K, K] bool: who is whose ancestor
    order: Tensor  # [S, K] int64: row k of the step is row order[k] of the drafter


class TreeVerify(Plain):
    """TreeVerify(drafter x verifier)."""

    shifted = True
    block_tokens = 1
    keeps_leading = False
    drafts_trees = True

    def __init__(self, drafter: TreeDrafter, verifier: Verifier = COUPLED) -> None:
        check_law(verifier, drafter.law, paths=drafter.paths)
        self.drafter, self.verifier, self.lossless = drafter, verifier, verifier.lossless
        self.needs_law, self.needs_top, self.remembers = verifier.judge is not None, drafter.needs_top, drafter.remembers
        self.drafting = drafter.drafting
        self.max_rows, self.max_commit = drafter.rows, drafter.depth + 1

    def remember(self, vocab_size: int) -> Memory | None:
        return self.drafter.remember(vocab_size)

    def receive(self, state: TreeState, drafted: Drafted) -> TreeState:
        return replace(state, drafter=self.drafter.receive(state.drafter, drafted))

    def committed(self, length: int) -> int:
        return length - 1

    def begin(self, lines: Lines) -> TreeState:
        rows = torch.arange(self.max_rows, device=lines.length.device).expand(len(lines.length), -1)
        nobody = torch.zeros(*rows.shape, self.max_rows, dtype=torch.bool, device=rows.device)
        return TreeState(self.drafter.begin(lines), rows * 0, nobody, rows)

    def plan(self, lines: Lines, state: TreeState, budget: Tensor) -> tuple[TreeState, Step]:
        """Rows that could still be wanted, valid ones first; the budget cuts the last ones."""
        tree = self.drafter.propose(lines, state.drafter)
        wanted = tree.valid & (tree.depth < (lines.limit - lines.length)[:, None])
        order = (~wanted).int().sort(dim=1, stable=True).indices
        parent = order.argsort(1).gather(1, tree.parent.gather(1, order))
        row = torch.arange(self.max_rows, device=order.device).expand_as(order)
        valid = (row < budget[:, None]) & wanted.gather(1, order)
        parent = torch.where(valid, parent, row)
        positions = lines.length[:, None] - 1 + tree.depth.gather(1, order)
        seen = reach(parent)
        q = None if tree.q is None else tree.q.gather(1, order[..., None].expand_as(tree.q))
        step = Step(tree.tokens.gather(1, order), positions, row + 1, valid, valid, bits_of(seen), q=q)
        return TreeState(state.drafter, parent, seen, order), step

    def accept(self, lines: Lines, state: TreeState, step: Step, picks: Picks) -> tuple[TreeState, Commit]:
        if picks.law is None:
            path = walk_tree(step.tokens, state.parent, state.seen, step.valid, picks.token)
            index = _first(path, self.max_commit)
            tokens, logprob = picks.token.gather(1, index), picks.logprob.gather(1, index)
        else:
            path, said = self._judged(lines, state, step, picks.law)
            index = _first(path, self.max_commit)
            tokens = _after(step.tokens, index, path.sum(1), said)
            logprob = picks.law.logprob.gather(1, index[..., None].expand(-1, -1, picks.law.logprob.shape[2]))
            logprob = logprob.gather(2, tokens[..., None])[..., 0]
        emitted = path.sum(1)
        of_text = torch.minimum(emitted - 1, up_to_end(lines, tokens, emitted))
        commit = Commit(tokens, logprob, emitted, path, step.valid.sum(1) - 1, of_text, source=index)
        answers = torch.where(step.valid, picks.token, step.tokens)
        back = state.order.argsort(1)
        last = tokens.gather(1, (emitted - 1)[:, None])[:, 0]
        top = None if picks.top is None else picks.top.gather(1, back[..., None].expand_as(picks.top))
        answers, valid, tokens = gathered(back, answers, step.valid, step.tokens)
        outcome = Outcome(answers, valid, last, emitted, tokens, top)
        return replace(state, drafter=self.drafter.learn(lines, state.drafter, outcome)), commit

    def _judged(self, lines: Lines, state: TreeState, step: Step, law: Law) -> tuple[Tensor, Tensor]:
        """The path [S, K] that the verifier keeps, and the token [S] behind it. Coins belong to the place where the step begins: no two
        steps of a text begin at the same one, so none is used twice."""
        assert self.verifier.judge is not None
        vocab = law.prob.shape[2]
        q = torch.nn.functional.one_hot(step.tokens, vocab).to(law.prob.dtype) if step.q is None else step.q
        stream = torch.stack([lines.seed, lines.sample, lines.length])[..., None].expand(-1, -1, self.max_rows)
        row = torch.arange(self.max_rows, device=stream.device).expand_as(stream[0])
        coin = uniform_at(stream[0], stream[1], stream[2], TEST, row)
        path, left = self.verifier.judge(Draft(step.tokens, state.parent, step.valid, q), law.prob, coin)
        noise = gumbel(lines.seed, lines.sample, lines.length + path.sum(1) - 1, vocab, REST)
        return path, (left.log() + noise).argmax(1)


def _first(path: Tensor, most: int) -> Tensor:
    """Rows of a path [S, K] in order, then others: [S, most]."""
    return (~path).int().sort(dim=1, stable=True).indices[:, :most]


def _after(tokens: Tensor, index: Tensor, count: Tensor, said: Tensor) -> Tensor:
    """What stands behind each row of a path [S, M]: the token of the next row, and `said` [S] behind the last of `count` rows."""
    own = tokens.gather(1, index)
    place = torch.arange(index.shape[1], device=index.device)
    return torch.where(place == (count - 1)[:, None], said[:, None], torch.nn.functional.pad(own[:, 1:], (0, 1)))


class chain(Unaided):
    """A chain drafter without memory as a tree without branches."""

    def __init__(self, drafter: Drafter, width: int) -> None:
        self.drafter, self.law, self.paths, self.drafting = drafter, drafter.law, True, drafter.drafting
        self.rows, self.depth = width + 1, width

    def begin(self, lines: Lines) -> Any:
        return self.drafter.begin(lines)

    def propose(self, lines: Lines, state: Any) -> Tree:
        draft, num = self.drafter.propose(lines, state, self.depth)
        row = torch.arange(self.rows, device=num.device).expand(len(num), -1)
        last = lines.history.gather(1, (lines.length - 1)[:, None])
        q, said = None, state.inner if isinstance(state, Pace) else state
        if isinstance(said, Proposed):  # the root was drawn from nothing
            q = torch.nn.functional.pad(said.q.unflatten(1, (self.depth, -1)), (0, 0, 1, 0))
        return Tree(torch.cat([last, draft], 1), (row - 1).clamp(min=0), row, row <= num[:, None], q)

    def receive(self, state: Any, drafted: Drafted) -> Any:
        return self.drafter.receive(state, drafted)

    def learn(self, lines: Lines, state: Any, outcome: Outcome) -> Any:
        return self.drafter.learn(lines, state, outcome.picked, outcome.emitted, outcome.valid.sum(1) - 1)


def bits_of(seen: Tensor) -> Tensor:
    """[S, K, K] bool -> [S, K, ceil(K / 64)] int64, bit j of row k set where seen[k, j]."""
    width = -(-seen.shape[2] // WORD) * WORD
    words = torch.nn.functional.pad(seen, (0, width - seen.shape[2])).unflatten(2, (-1, WORD)).long()
    return (words << torch.arange(WORD, device=seen.device)).sum(-1)
