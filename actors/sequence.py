"""One sample in the engine: its tokens, pages and counters, and when it ends. Host side only."""

from collections.abc import Sequence as Listlike
from dataclasses import dataclass, field
from typing import Any

from drawloom.actors.request import Request, Reveal, Sample, TokenLogprob
from drawloom.decoders.step import Decoder
from drawloom.models.text import Text

Alternatives = tuple[int, list[int], list[float]]  # rank of the token itself, ids and log-probabilities of the most probable


class StopStrings:
    """Finds stop strings in text that grows by tokens, also across token and step borders and inside multi-byte characters."""

    def __init__(self, stops: Listlike[str], text: Text) -> None:
        self.stops, self.text = tuple(stops), text
        self._longest = max(map(len, self.stops))
        self._tokens: list[int] = []
        self._start = 0  # first token that is decoded again
        self._known = 0  # characters of text[start:] in which no stop string ends

    def feed(self, token: int) -> str | None:
        """Take the next token; return the stop string that it completes."""
        self._tokens.append(token)
        tail = self.text.decode(self._tokens[self._start :])
        found = [(at, stop) for stop in self.stops if (at := tail.find(stop, max(0, self._known - self._longest))) >= 0]
        if found:
            return min(found)[1]
        if not tail.endswith("\ufffd"):  # an unfinished character: decode it again with the next token
            self._known = len(tail)
            self._trim(tail)
        return None

    def _trim(self, tail: str) -> None:
        """Forget tokens far behind what a stop string could still reach. Text before them never changes."""
        if len(self._tokens) - self._start < 8 * self._longest + 64:
            return
        start = len(self._tokens) - 4 * self._longest - 16
        rest = self.text.decode(self._tokens[start:])
        if len(rest) > 2 * self._longest and tail.endswith(rest):
            self._start, self._known = start, len(rest)


@dataclass(eq=False)
class Sequence:
    """A sample of a request. `tokens` are final; the first `filled` of them have their K/V in `pages`."""

    request: Request
    index: int
    decoder: Decoder
    ends: tuple[int, ...]
    serial: int  # order of arrival
    stops: StopStrings | None
    page_keys: list[bytes]
    tokens: list[int]
    arrived_s: float
    pages: list[int] = field(default_factory=list)
    filled: int = 0
    draft_filled: int = 0  # tokens that the drafting network has read; some of the last may have been refused since
    target: int = 0  # K/V tokens wanted before decoding starts or goes on
    saved: Any = None  # (lines, dice, state) of a preempted sequence
    logprobs: list[float] = field(default_factory=list)
    alternatives: dict[int, Alternatives] = field(default_factory=dict)  # by absolute position
    reveals: list[Reveal] = field(default_factory=list)
    repeats: int = 0  # how often the last token has come in a row
    finish: tuple[str, str | int | None] | None = None
    admitted_s: float = 0.0
    first_token_s: float = 0.0
    forwards: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    preemptions: int = 0
    cached: int = 0

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def limit(self) -> int:
        return self.prompt_len + self.request.sampling.max_tokens

    @property
    def held(self) -> int:
        """Slots whose K/V a decoding step may see without computing it."""
        return self.decoder.held(self.filled, self.limit)

    def room(self, filled: int) -> int:
        """Slots that a step may write, when `filled` tokens have their K/V."""
        return self.decoder.room(filled, self.limit)

    def start_over(self) -> None:
        """Forget everything but the prompt. The same tokens will come again."""
        self.tokens = self.tokens[: self.prompt_len]
        self.saved, self.target = None, self.decoder.committed(self.prompt_len)
        self.logprobs.clear()
        self.alternatives.clear()
        self.reveals.clear()
        self.repeats = 0
        if self.request.sampling.stop:
            assert self.stops is not None
            self.stops = StopStrings(self.stops.stops, self.stops.text)

    def extend(self, tokens: Listlike[int], logprobs: Listlike[float]) -> int:
        """Append final tokens until one ends the sequence; returns how many were taken (the end token is taken, not kept)."""
        for taken, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True), 1):
            if token in self.ends:
                stop = token if token in self.request.sampling.stop_token_ids else None
                self.finish = ("stop", stop)
                return taken
            again = len(self.tokens) > self.prompt_len and token == self.tokens[-1]
            self.repeats = self.repeats + 1 if again else 1
            self.tokens.append(token)
            self.logprobs.append(logprob)
            if self.stops is not None and (stop_string := self.stops.feed(token)) is not None:
                self.finish = ("stop", stop_string)
                return taken
            if self.repeats == self.request.sampling.max_repeats:
                self.finish = ("repetition", None)
                return taken
            if len(self.tokens) >= self.limit:
                self.finish = ("length", None)
                return taken
        return len(tokens)

    def note_draft(self, drafted: int, accepted: int) -> None:
        """Count what a forward checked and kept of a draft."""
        self.drafted += drafted
        self.accepted += accepted
        self.accepted_by_position += [0] * (accepted - len(self.accepted_by_position))
        for position in range(accepted):
            self.accepted_by_position[position] += 1

    def note(self, ago: Listlike[int], edits: Listlike[int]) -> None:
        """Remember when the tokens that this forward made final took their values, in forwards before this one."""
        now = self.forwards
        self.reveals.extend(Reveal(now - back, now, number) for back, number in zip(ago, edits, strict=True))

    def sample(self, text: Text) -> Sample:
        """The finished sample."""
        assert self.finish is not None
        ids = tuple(self.tokens[self.prompt_len :])
        words = text.decode(ids)
        reason, stop = self.finish
        if isinstance(stop, str):
            words = words[: words.find(stop)]
        reveals = tuple(self.reveals) if self.request.trace else None
        return Sample(self.index, ids, words, reason, stop, sum(self.logprobs), self._token_logprobs(ids), reveals)

    def _token_logprobs(self, ids: tuple[int, ...]) -> tuple[tuple[TokenLogprob, ...], ...] | None:
        wanted = self.request.sampling.logprobs
        if wanted is None:
            return None
        out = []
        for offset, (token, logprob) in enumerate(zip(ids, self.logprobs, strict=True)):
            rank, others, values = self.alternatives[self.prompt_len + offset]
            top = [TokenLogprob(i, v, r) for r, (i, v) in enumerate(zip(others[:wanted], values, strict=False), 1)]
            out.append((TokenLogprob(token, logprob, rank), *top))
        return tuple(out)
