"""Which run of tokens came before, how often, and what most often followed: a suffix automaton that grows by single tokens.

After SuffixDecoding (Oliaro et al., arXiv 2411.04975), with an automaton (Blumer et al. 1985) in place of its trees: the longest suffix of
a text that is a run somewhere is found in one walk. S lines, W tokens of a tail.

A line is a text that grows; its end is a state of the automaton. Memory is bounded: `room` tokens make at most 2 * room states and 3 *
room edges; when it is full the automaton takes no more.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from drawloom.kernels import native
from drawloom.kernels.choose import choose

ROOT = 0
UP = 64  # suffix links that a new token's count climbs
TOKEN_BYTES = 2 * 20 + 3 * 16 + 3 * 2 * 2 * 4  # at most, of one token


class Reference:
    """The automaton in plain Python."""

    def __init__(self, room: int) -> None:
        self.room, self.tokens = room, 0
        self.length, self.link, self.count, self.best = [0], [-1], [0], [-1]
        self.edges: list[dict[int, int]] = [{}]

    def add(self, tokens: Sequence[Sequence[int]], last: Sequence[int]) -> tuple[int, list[int]]:
        """Append to each line, whose last state is last[line]; returns how many lines were done (for the next one there was no room) and
        the new last states."""
        ends = list(last)
        for line, some in enumerate(tokens):
            for token in some:
                if self.tokens == self.room:
                    return line, ends
                self.tokens += 1
                ends[line] = self._extend(ends[line], token)
        return len(tokens), ends

    def draft(self, tail: Sequence[int], most: int, least_share: float) -> tuple[int, list[int]]:
        """How long the longest suffix of `tail` is that is a run, and what most often followed, while the product of shares lasts."""
        state = run = 0
        for token in tail:
            while token not in self.edges[state] and state > 0:
                state = self.link[state]
                run = self.length[state]
            if token in self.edges[state]:
                state, run = self.edges[state][token], run + 1
        share, drafted = 1.0, []
        while run and len(drafted) < most and self.best[state] >= 0:
            after = self.edges[state][self.best[state]]
            share *= self.count[after] / self.count[state]
            if share < least_share:
                break
            drafted.append(self.best[state])
            state = after
        return run, drafted

    def _extend(self, last: int, token: int) -> int:
        state = self._grow(last, token)
        for up, one in enumerate(self._suffixes(state)):
            if one > 0 and up < UP:
                self.count[one] += 1
        self.count[0] += 1
        for up, one in enumerate(self._suffixes(last)):
            edges = self.edges[one]
            if up <= UP and (self.best[one] < 0 or self.count[edges[token]] > self.count[edges[self.best[one]]]):
                self.best[one] = token
        return state

    def _suffixes(self, state: int) -> list[int]:
        found = []
        while state != -1:
            found.append(state)
            state = self.link[state]
        return found

    def _grow(self, last: int, token: int) -> int:
        if token in self.edges[last]:
            q = self.edges[last][token]
            return q if self.length[q] == self.length[last] + 1 else self._split(last, token, q)
        state, p = self._state(self.length[last] + 1, ROOT, 0, -1), last
        while p != -1 and token not in self.edges[p]:
            self.edges[p][token] = state
            p = self.link[p]
        if p != -1:
            q = self.edges[p][token]
            self.link[state] = q if self.length[q] == self.length[p] + 1 else self._split(p, token, q)
        return state

    def _split(self, p: int, token: int, q: int) -> int:
        """The state of p's longest run and `token`, when q holds longer ones as well."""
        copy = self._state(self.length[p] + 1, self.link[q], self.count[q], self.best[q])
        self.edges[copy] = dict(self.edges[q])
        while p != -1 and self.edges[p].get(token) == q:
            self.edges[p][token] = copy
            p = self.link[p]
        self.link[q] = copy
        return copy

    def _state(self, length: int, link: int, count: int, best: int) -> int:
        for values, value in ((self.length, length), (self.link, link), (self.count, count), (self.best, best)):
            values.append(value)
        self.edges.append({})
        return len(self.length) - 1


class ReferenceAutomaton:
    """Reference behind tensors."""

    def __init__(self, room: int) -> None:
        self.room, self.plain = room, Reference(room)

    @property
    def tokens(self) -> int:
        return self.plain.tokens

    def add(self, tokens: Tensor, counts: Tensor, last: Tensor) -> int:
        """Append the first counts [S] of tokens [S, M] to the lines, whose last states last [S] are changed in place; returns how many
        lines were done: for the next one there was no room."""
        some = [line[:count] for line, count in zip(tokens.tolist(), counts.tolist(), strict=True)]
        done, ends = self.plain.add(some, last.tolist())
        last.copy_(torch.tensor(ends, dtype=torch.int64))
        return done

    def draft(self, tails: Tensor, lengths: Tensor, most: int, least_share: float) -> tuple[Tensor, Tensor, Tensor]:
        """Of tails [S, W], whose last lengths [S] tokens count: length of the longest suffix that is a run [S], how many tokens are
        drafted [S], and which [S, most]."""
        rows = [line[len(line) - length :] for line, length in zip(tails.tolist(), lengths.tolist(), strict=True)]
        found = [self.plain.draft(row, most, least_share) for row in rows]
        padded = [[*drafted, *[0] * (most - len(drafted))] for _, drafted in found]
        runs, counts = [run for run, _ in found], [len(drafted) for _, drafted in found]
        return torch.tensor(runs), torch.tensor(counts), torch.tensor(padded, dtype=torch.int64).view(len(found), most)


class NativeAutomaton:
    """The same in native_suffix.h, a call for all lines."""

    def __init__(self, room: int) -> None:
        self.room = room
        table = 1 << (6 * room + 8).bit_length()
        self.sizes = torch.tensor([1, 0, 0])
        shapes = dict.fromkeys(("length", "link", "count", "best", "head"), 2 * room + 2)
        shapes |= {f"edge_{name}": 3 * room + 3 for name in ("from", "token", "to", "next")}
        self.arrays = {name: torch.zeros(size, dtype=torch.int32) for name, size in shapes.items()}
        self.arrays["table"] = torch.full((table,), -1, dtype=torch.int32)
        for name in ("link", "best", "head"):
            self.arrays[name][ROOT] = -1
        addresses = {name: values.data_ptr() for name, values in self.arrays.items()}
        self.struct = native.CAutomaton(room=room, table_mask=table - 1, sizes=self.sizes.data_ptr(), **addresses)

    @property
    def tokens(self) -> int:
        return int(self.sizes[2])

    def add(self, tokens: Tensor, counts: Tensor, last: Tensor) -> int:
        tokens, counts = tokens.contiguous(), counts.contiguous()
        assert last.is_contiguous()
        own = (native.address(values, torch.int64) for values in (tokens, counts))
        return native.library().drawloom_suffix_add(ctypes.byref(self.struct), *own, *tokens.shape, last.data_ptr())

    def draft(self, tails: Tensor, lengths: Tensor, most: int, least_share: float) -> tuple[Tensor, Tensor, Tensor]:
        tails, lengths = tails.contiguous(), lengths.contiguous()
        matched, num = torch.zeros(2, len(tails), dtype=torch.int64).unbind(0)
        drafted = torch.zeros(len(tails), most, dtype=torch.int64)
        own = (native.address(values, torch.int64) for values in (tails, lengths))
        native.library().drawloom_suffix_draft(
            ctypes.byref(self.struct), *own, *tails.shape, most, least_share, matched.data_ptr(), num.data_ptr(), drafted.data_ptr()
        )
        return matched, num, drafted


PATHS = {"native": NativeAutomaton, "reference": ReferenceAutomaton}


def automaton(room: int, impl: str = "auto") -> NativeAutomaton | ReferenceAutomaton:
    """An empty automaton with room for so many tokens, on the CPU."""
    return choose("suffix", impl, PATHS, {"native": native.why_not()})[1](room)
