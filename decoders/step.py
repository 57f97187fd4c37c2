"""The contract between algorithms and the engine: Lines, Step, Picks, Commit, Decoder.

One group holds the S sequences that share a recipe; its state is a struct of tensors with one line per sequence. `plan` says which
rows each sequence wants in the next forward, `accept` says which tokens became final and which rows' K/V join the prefix. Both are
tensor code over all S lines. K is the number of rows a line may have in a step, M the number of tokens that may become final in one.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from drawloom.decoders.drafting import Drafted, Drafting

T = TypeVar("T")


class Memory(ABC):
    """What a drafter remembers across sequences: one object for an engine, which all lines of its decoders hold. Only decoders whose text
    does not depend on their drafts may have one."""

    @abstractmethod
    def feed(self, texts: Sequence[Sequence[int]]) -> None:
        """Begin with finished texts, token ids."""


@dataclass(frozen=True)
class Lines:
    """What every decoder may read of its sequences. history[s, :length[s]] is final; the rest is padding."""

    history: Tensor  # [S, C] int64, prompt then final tokens
    length: Tensor  # [S] int64, final tokens, prompt included
    prompt_len: Tensor  # [S] int64
    limit: Tensor  # [S] int64, prompt_len + max_tokens: positions at or beyond it are never wanted
    ends: Tensor = field(metadata={"fill": -1})  # [S, E] int64, tokens that end the sequence, padded with -1
    seed: Tensor  # [S] int64, any 64 bits: with `sample` the stream of the sequence's noise
    sample: Tensor  # [S] int64
    memory: Memory | None = None  # of a decoder that has one


@dataclass(frozen=True)
class Step:
    """Rows that each line asks of the next forward. Valid rows of a line come first.

    Row k sees the line's whole committed prefix and the rows j < see[k] of its own line, of those only the ones whose bit j is set in
    ancestors[k] when that is given. `scored` marks the rows whose logits are wanted.
    """

    tokens: Tensor  # [S, K] int64
    positions: Tensor  # [S, K] int64, absolute
    see: Tensor  # [S, K] int64
    valid: Tensor  # [S, K] bool
    scored: Tensor  # [S, K] bool, within valid
    ancestors: Tensor | None = None  # [S, K, W] int64 bits
    place: Tensor | None = (
        None  # [S, K] int64, decoders with in_place: the slot that a row writes; rows that see held slots alone have see 0
    )
    against: Tensor | None = None  # [S, K] int64, decoders with guidance: the row without the prompt, or the row itself
    weight: Tensor | None = None  # [S, K] float32, soft inputs: the row enters as weight of its token and the rest of the mask token
    q: Tensor | None = None  # [S, K, V] float32, sampled drafts: what each row's token was drawn from


@dataclass(frozen=True)
class Law:
    """What the target says behind each row; rows that were not scored hold nothing of use."""

    prob: Tensor  # [S, K, V] after penalties, bias, temperature, top-k, top-p and min-p; one token has it all at temperature 0
    logprob: Tensor  # [S, K, V] the model's own


@dataclass(frozen=True)
class Picks:
    """What came back for each row; rows that were not scored hold token -1 and the worst score."""

    token: Tensor  # [S, K] int64
    logprob: Tensor  # [S, K] float32
    margin: Tensor | None = None  # [S, K], for decoders with needs_shape
    entropy: Tensor | None = None  # [S, K]
    chance: Tensor | None = (
        None  # [S, K] in [0, 1), for decoders with needs_chance: drawn for (seed, sample, position that the row predicts)
    )
    law: Law | None = None  # for decoders with needs_law
    top: Tensor | None = None  # [S, K, needs_top] int64, the likeliest tokens behind each row, for decoders that want some


@dataclass(frozen=True)
class Commit:
    """tokens[s, :count[s]] are now final, in order; rows with keep set join the prefix, in order."""

    tokens: Tensor  # [S, M] int64
    logprob: Tensor  # [S, M] float32
    count: Tensor  # [S] int64
    keep: Tensor  # [S, K] bool
    drafted: Tensor  # [S] int64, proposals that this forward checked
    accepted: Tensor  # [S] int64, those of them that became final
    ago: Tensor | None = None  # [S, M] int64, forwards before this one in which the token took its value; None: all in this one
    edits: Tensor | None = None  # [S, M] int64, how often it had another value after it was revealed; None: never
    # [S, M] int64, the row of this step that said the token, where rows of one position may differ (trees); None: that position's row
    source: Tensor | None = None


class Decoder(Protocol):
    """An algorithm with its parameters. Pure: everything that changes is in the lines and the state."""

    lossless: bool
    shifted: bool  # row i predicts position i + 1 (True) or i (False)
    block_tokens: int  # visibility of committed text: 1 causal, n block-causal
    max_rows: int  # K
    max_commit: int  # M
    keeps_leading: bool  # kept rows are always the first ones: no compaction
    drafts_trees: bool  # steps carry ancestor bits
    needs_shape: bool  # wants margin and entropy
    needs_chance: bool  # wants chance
    needs_law: bool  # wants law
    needs_top: int  # how many of the likeliest tokens it wants
    # Rows say which slot they write (Step.place), over what stood there. A preempted sequence starts over.
    in_place: bool
    guidance: float  # of classifier-free guidance: logits become against + (guidance + 1) * (own - against); 0: none
    remembers: str  # name of the memory that its lines hold; decoders with the same one share it. "": none
    drafting: Drafting | None  # the network that drafts for it, before every plan

    def remember(self, vocab_size: int) -> Memory | None:
        """A new memory of texts whose token ids are below vocab_size."""
        ...

    def receive(self, state: Any, drafted: Drafted) -> Any:
        """State with what a network drafted."""
        ...

    def committed(self, length: int) -> int:
        """How many of `length` final tokens have their K/V in the prefix when a sequence begins."""
        ...

    def held(self, filled: int, limit: int) -> int:
        """Slots whose K/V every row of a step sees, when `filled` tokens are in the prefix."""
        ...

    def room(self, filled: int, limit: int) -> int:
        """Slots that a step may write or see."""
        ...

    def begin(self, lines: Lines) -> Any:
        """State of new lines: a dataclass of tensors with leading dimension S."""
        ...

    def plan(self, lines: Lines, state: Any, budget: Tensor) -> tuple[Any, Step]:
        """The next step; budget [S] int64 is the number of rows that each line may use."""
        ...

    def accept(self, lines: Lines, state: Any, step: Step, picks: Picks) -> tuple[Any, Commit]: ...


class Plain:
    """What a decoder is unless it says otherwise."""

    lossless = False
    shifted = False
    keeps_leading = True
    drafts_trees = False
    needs_shape = False
    needs_chance = False
    needs_law = False
    needs_top = 0
    in_place = False
    guidance = 0.0
    remembers = ""
    drafting: Drafting | None = None
    max_rows: int

    def remember(self, vocab_size: int) -> Memory | None:
        return None

    def receive(self, state: Any, drafted: Drafted) -> Any:
        raise TypeError(f"{type(self).__name__} asks no network for drafts")

    def held(self, filled: int, limit: int) -> int:
        return filled

    def room(self, filled: int, limit: int) -> int:
        return filled + max(self.max_rows, self.drafting.rows if self.drafting else 0)


def take(struct: T, index: Tensor) -> T:
    """The struct's lines at index [M] (a dataclass of tensors, or of such dataclasses)."""
    return _map(struct, lambda tensor: tensor[index])


def join(first: T, second: T) -> T:
    """Lines of both structs; where a tensor's second dimension differs the narrower one is padded (with the field's `fill`, else 0)."""
    values: dict[str, Any] = {}
    for one in fields(first):  # type: ignore[arg-type]
        a, b = getattr(first, one.name), getattr(second, one.name)
        if a is None or isinstance(a, Memory):
            values[one.name] = a
        else:
            values[one.name] = _cat(a, b, one.metadata.get("fill", 0)) if isinstance(a, Tensor) else join(a, b)
    return type(first)(**values)


def gathered(index: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Each of the values [S, K] at index [S, M]."""
    return tuple(one.gather(1, index) for one in values)


def extend(lines: Lines, commit: Commit) -> Lines:
    """Lines with the commit's tokens appended to their history."""
    width = commit.tokens.shape[1]
    index = lines.length[:, None] + torch.arange(width, device=lines.length.device)
    fresh = index < (lines.length + commit.count)[:, None]
    index = index.clamp(max=lines.history.shape[1] - 1)
    history = lines.history.scatter(1, index, torch.where(fresh, commit.tokens, lines.history.gather(1, index)))
    return replace(lines, history=history, length=lines.length + commit.count)


def up_to_end(lines: Lines, tokens: Tensor, count: Tensor) -> Tensor:
    """How many of the first count [S] of tokens [S, M] belong to each text: those up to its end token."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    ended = (tokens[..., None] == lines.ends[:, None]).any(2)
    return torch.minimum(count, torch.where(ended, place + 1, tokens.shape[1]).amin(1))


def lines_of(
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    ends: Sequence[Sequence[int]],
    room: int,
    streams: Sequence[tuple[int, int]] | None = None,
) -> Lines:
    """Lines for new sequences: prompts (any final tokens), absolute limits, end tokens; `room` spare positions behind each limit; the
    (seed, sample) of each one's noise."""
    width = max(limits) + room
    history = torch.zeros(len(prompts), width, dtype=torch.int64)
    for line, prompt in zip(history, prompts, strict=True):
        line[: len(prompt)] = torch.tensor(prompt, dtype=torch.int64)
    length = torch.tensor([len(prompt) for prompt in prompts])
    most = max(1, *map(len, ends))
    padded = torch.tensor([[*end, *[-1] * (most - len(end))] for end in ends], dtype=torch.int64)
    seed, sample = torch.tensor([(_signed(seed), sample) for seed, sample in streams or [(0, 0)] * len(prompts)]).unbind(1)
    return Lines(history, length, length.clone(), torch.tensor(limits), padded, seed, sample)


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed


def _map(struct: Any, function: Any) -> Any:
    values = {}
    for one in fields(struct):
        value = getattr(struct, one.name)
        if isinstance(value, Tensor):
            value = function(value)
        elif value is not None and not isinstance(value, Memory):
            value = _map(value, function)
        values[one.name] = value
    return type(struct)(**values)


def _cat(a: Tensor, b: Tensor, fill: int) -> Tensor:
    if a.dim() > 1 and a.shape[1] != b.shape[1]:
        wide = max(a.shape[1], b.shape[1])
        a, b = (torch.nn.functional.pad(x, (0, wide - x.shape[1]), value=fill) if x.dim() == 2 else x for x in (a, b))
    return torch.cat([a, b])
