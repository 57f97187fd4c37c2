"""The first loop with several continuations at once: a tree of drafted rows, verified in one forward, of which one path is kept.

Row 0 is the last final token. Every other row names its parent and sees its ancestors alone, as one chain would. What is emitted is the
target's own draw after each kept row, so the text is that of plain autoregression whatever was drafted.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from drawloom.decoders.draft_verify import Verifier, coupled
from drawloom.decoders.step import Commit, Lines, Picks, Plain, Step
from drawloom.errors import SettingError
from drawloom.kernels.verify import reach, walk_tree

WORD = 64  # bits of an ancestor word


@dataclass(frozen=True)
class Tree:
    """Drafted rows in the drafter's own order, all [S, K]; row 0 is the last final token and a parent stands before its children."""

    tokens: Tensor  # int64
    parent: Tensor  # int64; row 0 is its own
    depth: Tensor  # int64; 0 for row 0
    valid: Tensor  # bool; a valid row's parent is valid


@dataclass(frozen=True)
class Outcome:
    """What a drafter may learn from: the target's picks in the drafter's own order, and what became final."""

    picked: Tensor  # [S, K] int64, after each row; the row's own token where it was not valid
    valid: Tensor  # [S, K] bool
    last: Tensor  # [S] int64, the last final token
    emitted: Tensor  # [S] int64


class TreeDrafter(Protocol):
    law: str
    rows: int  # K, row 0 included
    depth: int  # of the deepest row

    def begin(self, lines: Lines) -> Any: ...

    def propose(self, lines: Lines, state: Any) -> Tree: ...

    def learn(self, state: Any, outcome: Outcome) -> Any: ...


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

    def __init__(self, drafter: TreeDrafter, verifier: Verifier = coupled) -> None:
        if drafter.law not in verifier.laws:
            raise SettingError(
                f"verifier {verifier.name!r} takes drafts of law {sorted(verifier.laws)}, not {drafter.law!r}; choose another pair"
            )
        self.drafter, self.lossless = drafter, verifier.lossless
        self.max_rows, self.max_commit = drafter.rows, drafter.depth + 1

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
        step = Step(tree.tokens.gather(1, order), positions, row + 1, valid, valid, bits_of(seen))
        return TreeState(state.drafter, parent, seen, order), step

    def accept(self, lines: Lines, state: TreeState, step: Step, picks: Picks) -> tuple[TreeState, Commit]:
        path = walk_tree(step.tokens, state.parent, state.seen, step.valid, picks.token)
        emitted = path.sum(1)
        index = (~path).int().sort(dim=1, stable=True).indices[:, : self.max_commit]
        tokens = picks.token.gather(1, index)
        commit = Commit(tokens, picks.logprob.gather(1, index), emitted, path, step.valid.sum(1) - 1, emitted - 1)
        answers = torch.where(step.valid, picks.token, step.tokens)
        back = state.order.argsort(1)
        last = tokens.gather(1, (emitted - 1)[:, None])[:, 0]
        outcome = Outcome(answers.gather(1, back), step.valid.gather(1, back), last, emitted)
        return replace(state, drafter=self.drafter.learn(state.drafter, outcome)), commit


def bits_of(seen: Tensor) -> Tensor:
    """[S, K, K] bool -> [S, K, ceil(K / 64)] int64, bit j of row k set where seen[k, j]."""
    width = -(-seen.shape[2] // WORD) * WORD
    words = torch.nn.functional.pad(seen, (0, width - seen.shape[2])).unflatten(2, (-1, WORD)).long()
    return (words << torch.arange(WORD, device=seen.device)).sum(-1)
