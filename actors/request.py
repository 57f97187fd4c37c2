"""What goes into an engine and what comes out: Sampling, Request, Completion. Frozen; no tensors, no ray."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import Field, field_validator

from drawloom.settings import Settings

MAX_TOP_LOGPROBS = 20


class Sampling(Settings):
    """How tokens are drawn; every field may also be a column of the input.

    Order of application: penalties and logit_bias on the logits, then temperature, then top_k, top_p and min_p on what is left.
    repetition_penalty counts prompt and output, frequency and presence penalties count the output alone.
    """

    max_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, le=100.0)
    top_k: int = Field(default=0, ge=0, description="0 keeps all")
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=10.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    logit_bias: Mapping[int, float] = Field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_repeats: int = Field(default=0, ge=0, description="a text ends when one token comes so many times in a row; 0: never")
    logprobs: int | None = Field(
        default=None, ge=0, le=MAX_TOP_LOGPROBS, description="alternatives a token; 0 gives the token's own; null gives none"
    )
    n: int = Field(default=1, ge=1, le=128)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_string_is_a_list(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else (() if value is None else value)

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not text for text in value):
            raise ValueError("an empty stop string would stop before the first token; remove it")
        return value

    @field_validator("logit_bias")
    @classmethod
    def _bias_within_bounds(cls, value: Mapping[int, float]) -> Mapping[int, float]:
        if wrong := [token for token, bias in value.items() if not -100.0 <= bias <= 100.0 or token < 0]:
            raise ValueError(f"token {wrong[0]}: a bias lies between -100 and 100 and a token id is not negative")
        return value


@dataclass(frozen=True)
class Request:
    """One row's work. The text depends on (model, prompt_token_ids, sampling, seed, decoder, decoder_params) and on nothing else."""

    id: str
    prompt_token_ids: Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0  # 64 bits, unsigned; sample i of n draws from the stream (seed, i)
    decoder: str = "ar"  # a name of decoders/recipes.py
    decoder_params: Mapping[str, float | int | str] = field(default_factory=dict)  # overrides of that recipe's parameters
    priority: int = 0  # larger goes first
    trace: bool = False  # keep when each token was revealed (Sample.reveals)


@dataclass(frozen=True)
class TokenLogprob:
    """Natural-log probability of one token under the target's processed distribution at the step that made it final."""

    token_id: int
    logprob: float
    rank: int  # 1 is the most probable token


@dataclass(frozen=True)
class Reveal:
    """When a token came to be, in forwards of its sequence, the first one 1. The largest `final` is the number of forwards it took."""

    shown: int  # the forward in which it took its value
    final: int  # the forward after which it could change no more
    edits: int  # how often it had another value before


@dataclass(frozen=True)
class Sample:
    """One completion of a prompt."""

    index: int
    token_ids: tuple[int, ...]  # without the stop token; a stop string is cut from `text`, its tokens stay
    text: str
    finish_reason: str  # "stop" | "length" | "repetition"
    stop_reason: str | int | None  # the stop string or stop token id that ended it; None for end-of-text and length
    cumulative_logprob: float
    logprobs: tuple[tuple[TokenLogprob, ...], ...] | None  # per token: the token itself first, then the alternatives
    reveals: tuple[Reveal, ...] | None = None  # per token, and one more for an end token; when the request asked for a trace


@dataclass(frozen=True)
class Stats:
    """What a request cost. drafted counts proposed tokens that a forward checked, accepted those of them that became final. What a forward
    emits beyond its accepted tokens, the target's own next one, is in neither."""

    forwards: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()  # forwards that accepted at least 1, 2, ... drafted tokens
    preemptions: int = 0
    cached_prompt_tokens: int = 0
    queued_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True)
class PostMortem:
    """How a row ended the process of its engine: what a replica learned by running it alone."""

    attempts: int  # processes that it ended
    signal: str | None  # such as "SIGSEGV"; None when the process left by itself or had to be killed
    stderr_tail: str


@dataclass(frozen=True)
class Completion:
    """The end of a request: samples, or an error (`code`, message) when this row alone failed."""

    id: str
    samples: tuple[Sample, ...]
    prompt_tokens: int
    stats: Stats
    decoder: str = "ar"
    lossless: bool = True
    decoder_params: Mapping[str, float | int | str] = field(default_factory=dict)  # as in the request
    error: tuple[str, str] | None = None  # (code, message)
    post_mortem: PostMortem | None = None  # when the error was the death of the engine's process


@dataclass(frozen=True)
class EngineStats:
    """Counters since the engine was built, for progress and metrics; times in seconds."""

    running: int = 0
    waiting: int = 0
    finished: int = 0
    steps: int = 0
    tokens: int = 0  # final tokens handed out
    rows: int = 0  # rows of all forwards
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    pages_used: int = 0
    pages_total: int = 0
    prefix_hit_tokens: int = 0
    forward_s: float = 0.0
    step_s: float = 0.0
    draft_s: float = 0.0  # that networks drafted, within step_s


class EngineLike(Protocol):
    """What a replica needs of an engine. Not thread-safe: one thread owns it."""

    def check(self, request: Request) -> None:
        """Raise RowError when the request could never run here (too long, unknown decoder, token id out of range)."""
        ...

    def add(self, request: Request) -> None:
        """Queue a request; raises RowError as `check` does."""
        ...

    def cancel(self, request_id: str) -> bool:
        """Forget a request at once and free its pages; False when it is not here."""
        ...

    def step(self) -> list[Completion]:
        """Advance every running request by one forward; return those that ended."""
        ...

    @property
    def num_unfinished(self) -> int: ...

    def stats(self) -> EngineStats: ...
