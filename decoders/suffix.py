"""Drafts from what other texts said: what most often followed, in the texts of this engine, the longest suffix of a text that stands in
them. SuffixDecoding (Oliaro et al., arXiv 2411.04975).

What is remembered depends on which texts an engine has seen. So the drafts do, too; the text never does, because only verifiers that emit
the target's own draws may be used.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drawloom.decoders.drafters import Unaided, lookup
from drawloom.decoders.step import Lines, Memory, up_to_end
from drawloom.decoders.verifiers import CHOSEN
from drawloom.errors import SettingError
from drawloom.kernels.suffix import automaton

TAIL = 32  # tokens that a match may have
LEAST_ROOM = 2048


@dataclass(frozen=True)
class Trail:
    """Where each line's own text ends in the memory: state [S], of generation [S]."""

    state: Tensor
    generation: Tensor


class SuffixMemory(Memory):
    """Up to `room` tokens of texts, in two generations: when the young one is full it becomes the old one, and the old one is
    forgotten."""

    def __init__(self, room: int) -> None:
        self.room, self.generation = room, 0
        self.young, self.old = automaton(room // 2), automaton(0)

    @property
    def tokens(self) -> int:
        return self.young.tokens + self.old.tokens

    def add(self, tokens: Tensor, counts: Tensor, trail: Trail) -> Trail:
        """Append the first counts [S] of tokens [S, M] to each line's text."""
        first, state = 0, torch.where(trail.generation == self.generation, trail.state, 0)
        while True:
            part = state[first:].contiguous()
            done = self.young.add(tokens[first:], counts[first:], part)
            state = torch.cat([state[:first], part])
            if done == len(tokens) - first:
                return Trail(state, torch.full_like(state, self.generation))
            self.young, self.old = automaton(self.room // 2), self.young
            first, state, self.generation = first + done, torch.zeros_like(state), self.generation + 1

    def feed(self, texts: Sequence[Sequence[int]]) -> None:
        """Remember finished texts."""
        for text in texts:
            for start in range(0, len(text), LEAST_ROOM // 2):
                some = torch.as_tensor(np.asarray(text[start : start + LEAST_ROOM // 2], dtype=np.int64))[None]
                self.add(some, torch.tensor([some.shape[1]]), Trail(torch.zeros(1).long(), torch.full((1,), -1)))

    def draft(self, tails: Tensor, lengths: Tensor, most: int, share: float) -> tuple[Tensor, Tensor, Tensor]:
        """As an automaton's; from the generation that knows the longer suffix."""
        young, old = (one.draft(tails, lengths, most, share) for one in (self.young, self.old))
        older = old[0] > young[0]
        matched, num = (torch.where(older, b, a) for a, b in zip(young[:2], old[:2], strict=True))
        return matched, num, torch.where(older[:, None], old[2], young[2])


class suffix(Unaided):
    """Of the text's own past (as lookup) and of the memory, what knows the longer suffix; at most per_match tokens for each of its, and
    from the memory while the product of their shares is at least `share`."""

    law = CHOSEN

    def __init__(self, own: lookup, share: float, room: int) -> None:
        if room < LEAST_ROOM:
            raise SettingError(f"memory is {room}, at least {LEAST_ROOM} tokens are needed")
        if not 0 < share <= 1:
            raise SettingError(f"share is {share}, more than 0 and at most 1 is needed")
        self.own, self.share, self.room = own, share, room
        self.remembers = f"suffix {room}"

    def remember(self, vocab_size: int) -> Memory:
        return SuffixMemory(self.room)

    def begin(self, lines: Lines) -> Trail:
        zero = torch.zeros_like(lines.length)
        return Trail(zero, zero - 1)

    def propose(self, lines: Lines, state: Trail, width: int) -> tuple[Tensor, Tensor]:
        assert isinstance(lines.memory, SuffixMemory)
        tokens, num, matched = self.own.found(lines, width)
        index = lines.length[:, None] - TAIL + torch.arange(TAIL, device=tokens.device)
        tails = lines.history.gather(1, index.clamp(min=0)).cpu()
        known, count, drafted = lines.memory.draft(tails, lines.length.clamp(max=TAIL).cpu(), width, self.share)
        count = torch.minimum(count, known * self.own.per_match)
        count = torch.where(known >= self.own.least, count, 0).to(num.device)
        better = (count > 0) & (known.to(num.device).clamp(max=self.own.ngram) > torch.where(num > 0, matched, 0))
        return torch.where(better[:, None], drafted.to(tokens.device), tokens), torch.where(better, count, num)

    def learn(self, lines: Lines, state: Trail, picked: Tensor, emitted: Tensor, num: Tensor) -> Trail:
        """Remember what became final, up to the end of the text."""
        assert isinstance(lines.memory, SuffixMemory)
        return lines.memory.add(picked.cpu(), up_to_end(lines, picked, emitted).cpu(), state)
