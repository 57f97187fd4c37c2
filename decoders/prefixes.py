"""Trees of the likeliest prefixes of what a network drafts, `nodes` of them: that is what so many rows buy most with.

`best_first`: the network says each place by itself, and the tree is that of DDTree (arXiv 2604.12989) on a block drafter, or a sparse
tree of Medusa's (arXiv 2401.10774), chosen anew in every step. `reranked`: the network is told the prefix, so it grows candidates level
by level, of which the best are kept: EAGLE-2 (arXiv 2406.16858).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from drawloom.decoders.drafters import Unaided
from drawloom.decoders.drafting import Drafted, Drafting, Grown
from drawloom.decoders.step import Lines, Step
from drawloom.decoders.trees import Outcome, Tree, bits_of
from drawloom.errors import SettingError
from drawloom.kernels.verify import reach

MOST_DEPTH, MOST_RANKS = 64, 256  # of a static tree


@dataclass(frozen=True)
class Ranked:
    """The likeliest tokens of each place and their scores, flattened [S, W * R]; [S, 0] before the first draft."""

    tokens: Tensor  # int64
    score: Tensor  # float32, logarithms
    num: Tensor  # [S] int64, places that count


class best_first(Unaided):
    """The `nodes` likeliest prefixes of a draft of `asked.width` places."""

    law, paths = "one_hot", False

    def __init__(self, asked: Drafting, nodes: int) -> None:
        self.drafting: Drafting | None = asked
        self.width, self.ranks, self.rows, self.depth = asked.width, asked.ranks, nodes + 1, min(nodes, asked.width)

    def begin(self, lines: Lines) -> Ranked:
        none = lines.history[:, :0]
        return Ranked(none, none.float(), torch.zeros_like(lines.length))

    def receive(self, state: Ranked, drafted: Drafted) -> Ranked:
        assert drafted.top is not None
        assert drafted.score is not None
        return Ranked(drafted.top.flatten(1), drafted.score.flatten(1), drafted.num)

    def propose(self, lines: Lines, state: Ranked) -> Tree:
        tokens, score = (one.unflatten(1, (self.width, self.ranks))[:, : self.depth] for one in (state.tokens, state.score))
        place = torch.arange(self.depth, device=state.num.device)
        score = torch.where((place < state.num[:, None])[..., None], score, -torch.inf)
        return best_of(lines, all_prefixes(tokens, score, self.rows - 1), self.rows - 1)

    def learn(self, lines: Lines, state: Ranked, outcome: Outcome) -> Ranked:
        return state


class reranked(Unaided):
    """The `nodes` likeliest of the candidates that a network grew."""

    law, paths = "one_hot", False

    def __init__(self, asked: Drafting, nodes: int) -> None:
        self.drafting: Drafting | None = asked
        self.rows, self.depth = nodes + 1, min(nodes, asked.width)

    def begin(self, lines: Lines) -> Grown:
        asked = self.drafting
        assert asked is not None
        return Grown.empty(len(lines.length), asked.ranks, asked.width, lines.length.device)

    def receive(self, state: Grown, drafted: Drafted) -> Grown:
        assert drafted.grown is not None
        return drafted.grown

    def propose(self, lines: Lines, state: Grown) -> Tree:
        return best_of(lines, state, self.rows - 1)

    def learn(self, lines: Lines, state: Grown, outcome: Outcome) -> Grown:
        return state


class static_tree(best_first):
    """The same tree in every step: a node is a list of ranks, one for each place (Medusa, arXiv 2401.10774, section 2.3.3)."""

    def __init__(self, asked: Drafting, choices: Sequence[Sequence[int]]) -> None:
        super().__init__(asked, len(choices))
        order = sorted(map(tuple, choices), key=lambda one: (len(one), one))
        row = {(): 0} | {one: number for number, one in enumerate(order, 1)}
        self.parents, self.depths = [0, *(row[one[:-1]] for one in order)], [0, *map(len, order)]
        self.picks = [(len(one) - 1) * asked.ranks + one[-1] for one in order]
        self.depth = max(self.depths)

    def propose(self, lines: Lines, state: Ranked) -> Tree:
        last = lines.history.gather(1, (lines.length - 1)[:, None])
        parent, depth = (torch.tensor(one, device=last.device).expand(len(last), -1) for one in (self.parents, self.depths))
        picks = torch.tensor(self.picks, device=last.device)
        there = (depth[:, 1:] <= state.num[:, None]) & (state.score[:, picks] > -torch.inf)
        there = torch.cat([torch.ones_like(last, dtype=torch.bool), there], 1)
        seen = reach(parent)  # a node whose ancestor is missing is missing
        valid = ~(seen & ~there[:, None]).any(2)
        return Tree(torch.cat([last, state.tokens[:, picks]], 1), parent, depth, valid)


def choices_of(text: str) -> list[tuple[int, ...]]:
    """A static tree as it is written, "0 1 0.0 0.1 0.0.0": its nodes. Raises SettingError when it is none."""
    told = text.split()
    found = [tuple(map(int, node.split("."))) if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})*", node) else () for node in told]
    for node, written in zip(found, told, strict=True):
        if not node or len(node) > MOST_DEPTH or max(node) >= MOST_RANKS:
            raise SettingError(
                f"nodes has {written!r}; a node is at most {MOST_DEPTH} ranks below {MOST_RANKS} joined by dots, such as 0.1"
            )
        if len(node) > 1 and node[:-1] not in found:
            raise SettingError(f"nodes has {written!r} but not {'.'.join(map(str, node[:-1]))!r}, which it continues; name that, too")
    if not found or len(set(found)) < len(found):
        raise SettingError(f"nodes is {text[:60]!r}; name at least one node, and each once")
    return found


def all_prefixes(tokens: Tensor, score: Tensor, nodes: int) -> Grown:
    """Candidates [S, N] among which the `nodes` best prefixes are, from the likeliest tokens of each place and their scores [S, W, R].

    The best `nodes` of each level are enough: a prefix never scores above its own beginning.
    """
    sums, index = score.new_zeros(len(score), 1), torch.zeros(len(score), 1, dtype=torch.int64, device=score.device)
    ranks, grown = tokens.shape[2], []
    for level in range(tokens.shape[1]):
        every = (sums[..., None] + score[:, level, None]).flatten(1)  # [S, P * R]
        order = every.sort(dim=1, descending=True, stable=True).indices[:, :nodes]
        sums = every.gather(1, order)
        grown.append((tokens[:, level].gather(1, order % ranks), index.gather(1, order // ranks), torch.full_like(order, level + 1), sums))
        index = 1 + sum(one[0].shape[1] for one in grown[:-1]) + torch.arange(order.shape[1], device=order.device).expand_as(order)
    chosen, parent, depth, total = (torch.cat(columns, 1) for columns in zip(*grown, strict=True))
    return Grown(chosen, parent, depth, total, index[:, :0], index[:, :0])


def first_level(tokens: Tensor, score: Tensor) -> Grown:
    """Candidates behind the root: tokens and scores [S, R], all of which grow on."""
    zero = torch.zeros_like(tokens)
    return Grown(tokens, zero, zero + 1, score, torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens), zero)


def next_level(grown: Grown, tokens: Tensor, score: Tensor) -> Grown:
    """Candidates with tokens [S, R, R] behind each of the R that were grown last, and their scores; the best R of them grow on."""
    ranks, before, rows = tokens.shape[1], grown.tokens.shape[1], grown.beam.shape[1]
    last = grown.beam[:, -ranks:]
    sums = (grown.score.gather(1, last)[..., None] + score).flatten(1)
    parent = (last[..., None] + 1).expand_as(tokens).flatten(1)
    depth = grown.depth.gather(1, last)[..., None].expand_as(tokens).flatten(1) + 1
    order = sums.sort(dim=1, descending=True, stable=True).indices[:, :ranks]
    fresh = (tokens.flatten(1), parent, depth, sums, before + order, 1 + rows - ranks + order // ranks)
    own = (grown.tokens, grown.parent, grown.depth, grown.score, grown.beam, grown.row_parent)
    return Grown(*(torch.cat(pair, 1) for pair in zip(own, fresh, strict=True)))


def gain_of(before: Grown, after: Grown, nodes: int) -> Tensor:
    """What more candidates add to the tokens that the best `nodes` of them promise together, [S] (OPT-Tree, arXiv 2406.17276)."""

    def promised(grown: Grown) -> Tensor:
        return grown.score.exp().sort(dim=1, descending=True).values[:, :nodes].sum(1)

    return promised(after) - promised(before)


def rows_of(grown: Grown, root: Tensor, ranks: int) -> tuple[Step, Tensor]:
    """The candidates that grow on as rows, each at its parent's position (that of the root is root [S]), and which row is whose parent
    [S, B], the root being 0. Logits of the last `ranks` are wanted."""
    tokens, depth = grown.tokens.gather(1, grown.beam), grown.depth.gather(1, grown.beam)
    row = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    parent = torch.where(grown.row_parent == 0, row, grown.row_parent - 1)
    here = torch.ones_like(row, dtype=torch.bool)
    scored = row >= tokens.shape[1] - ranks
    return Step(tokens, root[:, None] + depth - 1, row + 1, here, scored, bits_of(reach(parent))), grown.row_parent


def best_of(lines: Lines, grown: Grown, nodes: int) -> Tree:
    """The tree of the `nodes` candidates with the best scores. Among equals the earlier one wins, so that a parent is always there."""
    last = lines.history.gather(1, (lines.length - 1)[:, None])
    total = torch.cat([torch.zeros_like(last).float(), grown.score], 1)
    best = total.sort(dim=1, descending=True, stable=True).indices[:, : nodes + 1].sort(dim=1).values
    went = torch.zeros_like(total, dtype=torch.int64).scatter_(1, best, 1).cumsum(1) - 1
    columns = ((last, grown.tokens), (last * 0, grown.parent), (last * 0, grown.depth))
    tokens, parent, depth = (torch.cat(pair, 1).gather(1, best) for pair in columns)
    valid = total.gather(1, best) > -torch.inf
    missing = nodes + 1 - best.shape[1]  # fewer candidates than nodes
    return Tree(*(torch.nn.functional.pad(one, (0, missing)) for one in (tokens, went.gather(1, parent), depth, valid)))
