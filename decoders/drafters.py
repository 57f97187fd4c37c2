"""Who proposes the next tokens. A drafter proposes up to `width` tokens for each line and may learn from the target's answers.

`law` says what the proposals are: "one_hot" means that they are a deterministic function of final tokens and past answers.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from drawloom.decoders.drafting import Drafted, Drafting
from drawloom.decoders.step import Lines, Memory
from drawloom.decoders.verifiers import SAMPLED
from drawloom.errors import SettingError


class Drafter(Protocol):
    law: str
    remembers: str  # as a decoder's
    drafting: Drafting | None  # as a decoder's

    def remember(self, vocab_size: int) -> Memory | None: ...

    def begin(self, lines: Lines) -> Any: ...

    def propose(self, lines: Lines, state: Any, width: int) -> tuple[Tensor, Tensor]:
        """Draft tokens [S, width] and how many of them count [S]."""
        ...

    def learn(self, lines: Lines, state: Any, picked: Tensor, emitted: Tensor, num: Tensor) -> Any:
        """New state from the target's picks [S, K], how many of them became final [S], and how many drafted tokens were checked [S].
        Lines are those before."""
        ...

    def receive(self, state: Any, drafted: Drafted) -> Any:
        """State with what a network drafted."""
        ...


@dataclass(frozen=True)
class Nothing:
    """State of a drafter that remembers nothing; `lines` [S, 0] only carries the number of lines."""

    lines: Tensor


@dataclass(frozen=True)
class Guesses:
    """Last answers of the target beyond what became final: tokens [S, W], num [S]."""

    tokens: Tensor
    num: Tensor


@dataclass(frozen=True)
class Proposed:
    """A network's draft: tokens [S, W], how many count [S], and their laws flattened [S, W * V], or [S, 0] when they are not wanted."""

    tokens: Tensor
    num: Tensor
    q: Tensor

    @classmethod
    def of(cls, drafted: Drafted) -> "Proposed":
        return cls(drafted.tokens, drafted.num, drafted.tokens[:, :0].float() if drafted.q is None else drafted.q.flatten(1))


class Unaided:
    """A drafter without memory and network, unless it says otherwise."""

    remembers, needs_top = "", 0
    drafting: Drafting | None = None

    def remember(self, vocab_size: int) -> Memory | None:
        return None

    def receive(self, state: Any, drafted: Drafted) -> Any:
        return Proposed.of(drafted)


class none(Unaided):
    """No draft: plain autoregression."""

    law = "one_hot"

    def begin(self, lines: Lines) -> Any:
        return Nothing(lines.history[:, :0])

    def propose(self, lines: Lines, state: Any, width: int) -> tuple[Tensor, Tensor]:
        return lines.history[:, :width] * 0, torch.zeros_like(lines.length)

    def learn(self, lines: Lines, state: Any, picked: Tensor, emitted: Tensor, num: Tensor) -> Any:
        return state


class lookup(none):
    """Prompt lookup (Saxena 2023; LLMA, Yang et al. 2023): find the latest earlier place where the last n tokens stand, for the
    largest n in least..ngram that has one, and propose what followed there, at most per_match * n tokens: a long match deserves a
    long draft (SuffixDecoding, Oliaro et al. 2024)."""

    def __init__(self, ngram: int, least: int, per_match: int) -> None:
        if not 1 <= least <= ngram or per_match < 1:
            raise SettingError(
                f"lookup needs 1 <= least <= ngram and per_match >= 1, got least={least}, ngram={ngram}, per_match={per_match}"
            )
        self.ngram, self.least, self.per_match = ngram, least, per_match

    def propose(self, lines: Lines, state: Any, width: int) -> tuple[Tensor, Tensor]:
        tokens, num, _ = self.found(lines, width)
        return tokens, num

    def found(self, lines: Lines, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Drafted tokens [S, width], how many of them count [S], and how many tokens match [S]."""
        history, length = lines.history, lines.length
        place = torch.arange(history.shape[1], device=history.device)  # candidate for the matched n-gram's last token
        run = torch.ones_like(history, dtype=torch.bool)
        matched = torch.zeros_like(history)
        for back in range(self.ngram):
            own = history.gather(1, (length - 1 - back).clamp(min=0)[:, None])
            shifted = torch.nn.functional.pad(history, (back, 0), value=-1)[:, : history.shape[1]]
            run = run & (shifted == own) & (place >= back)
            matched = matched + run
        matched = torch.where(place < (length - 1)[:, None], matched, 0)
        best, where = (matched * history.shape[1] + place).max(1)
        found = best >= self.least * history.shape[1]
        index = where[:, None] + 1 + torch.arange(width, device=history.device)
        tokens = history.gather(1, index.clamp(max=history.shape[1] - 1))
        matched = best // history.shape[1]
        most = (matched * self.per_match).clamp(max=width)
        return tokens, torch.where(found, torch.minimum(length - 1 - where, most), 0), matched


class jacobi(Unaided):
    """Jacobi decoding (Santilli et al. 2023; Song et al. 2021): the target's answers to the last draft, from the first wrong one on, are
    the next draft. The tail is filled by repeating its last token."""

    law = "one_hot"

    def __init__(self, width: int) -> None:
        self.width = width

    def begin(self, lines: Lines) -> Guesses:
        last = lines.history.gather(1, (lines.length - 1).clamp(min=0)[:, None])
        return Guesses(last.expand(-1, self.width).contiguous(), torch.full_like(lines.length, self.width))

    def propose(self, lines: Lines, state: Guesses, width: int) -> tuple[Tensor, Tensor]:
        return state.tokens[:, :width], state.num.clamp(max=width)

    def learn(self, lines: Lines, state: Guesses, picked: Tensor, emitted: Tensor, num: Tensor) -> Guesses:
        index = emitted[:, None] + torch.arange(self.width, device=picked.device)
        return Guesses(picked.gather(1, index.clamp(max=picked.shape[1] - 1)), state.num)


class by_network(Unaided):
    """What a smaller network of the same tokenizer drafted, which the engine runs before every plan (Leviathan et al. 2023)."""

    law = SAMPLED

    def __init__(self, asked: Drafting) -> None:
        self.drafting: Drafting | None = asked

    def begin(self, lines: Lines) -> Proposed:
        none = lines.history[:, :0]
        return Proposed(none, torch.zeros_like(lines.length), none.float())

    def propose(self, lines: Lines, state: Proposed, width: int) -> tuple[Tensor, Tensor]:
        return state.tokens, state.num

    def learn(self, lines: Lines, state: Proposed, picked: Tensor, emitted: Tensor, num: Tensor) -> Proposed:
        return state
