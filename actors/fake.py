"""An engine without a network: deterministic pseudo-text, and rows that misbehave when told to. For rehearsals and tests.

The text depends on (prompt, sampling, seed) alone. A prompt may hold directives `[[fake NAME ARGUMENT]]` that only this engine understands:
rowerror, raise, unfit, exit CODE, kill SIGNAL, segfault, once PATH (dies by SIGKILL unless PATH exists), parent SIGNAL (kills the process
that owns the engine's process), block SECONDS (a step that takes long), hang, slow SECONDS (this row alone takes long), long TOKENS,
encode SIGNAL (ends the process that tokenises it).
"""

import ctypes
import hashlib
import os
import random
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drawloom.actors.request import Completion, EngineStats, Request, Sample, Sampling, Stats, TokenLogprob
from drawloom.errors import ReplicaError, RowError, SettingError

VOCABULARY = """
    warp weft loom shuttle thread pattern bobbin heddle reed selvage twill satin plain dobby pick shed beam spool skein knot fringe
    indigo madder woad linen wool silk cotton hemp and the a of in by under over across between row column line fold edge corner
"""
WORDS = tuple(VOCABULARY.split())
EOS = 256 + len(WORDS)
MAX_CONTEXT = 4096  # tokens, prompt and answer together

TOKENS_PER_STEP = 4
DIRECTIVE = re.compile(r"\[\[fake (\w+)\s*([^\]]*)\]\]")


class FakeText:
    """Bytes in, words out: the tokenizer of `FakeEngine`. Tokens below 256 are bytes, then come WORDS, then end of text."""

    vocab_size: int = EOS + 1
    eos_token_ids: tuple[int, ...] = (EOS,)

    def encode(self, prompt: str) -> list[int]:
        if (number := directives(prompt).get("encode")) is not None:
            os.kill(os.getpid(), int(number))
        return list(prompt.encode())

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        for message in messages:
            if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
                raise RowError("bad_messages", f"a message needs the texts 'role' and 'content', this one has {sorted(message)}")
        return self.encode("".join(f"<{m['role']}>{m['content']}\n" for m in messages) + "<assistant>")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Words are joined by blanks; runs of bytes are read as UTF-8."""
        out, pending = "", bytearray()
        for token in token_ids:
            if token < 256:
                pending.append(token)
                continue
            out += pending.decode(errors="replace")
            pending.clear()
            if token < EOS:
                out += (" " if out else "") + WORDS[token - 256]
        return out + pending.decode(errors="replace")


@dataclass
class _Running:
    request: Request
    samples: tuple[Sample, ...]
    steps_left: int
    ready_at: float  # seconds of the monotonic clock; 0 is at once
    started: float
    forwards: int = 0


class FakeEngine:
    """EngineLike over `fake_samples`: TOKENS_PER_STEP tokens a step for each of max_running rows, the rest waits."""

    def __init__(self, max_running: int = 32) -> None:
        self.max_running = max_running
        self._text = FakeText()
        self._waiting: dict[str, Request] = {}
        self._running: dict[str, _Running] = {}
        self._finished = self._steps = self._tokens = self._rows = self._drafted = 0
        self._step_s = 0.0

    def check(self, request: Request) -> None:
        if request.decoder != "ar" or request.decoder_params:
            _check_decoder(request)
        length, limit = len(request.prompt_token_ids), MAX_CONTEXT - request.sampling.max_tokens
        if length == 0:
            raise RowError("empty_prompt", "the prompt has no tokens; give it some text")
        if length > limit:
            raise RowError("too_long", f"prompt has {length} tokens, at most {limit} fit beside max_tokens={request.sampling.max_tokens}")
        if any(not 0 <= token <= EOS for token in request.prompt_token_ids):
            raise RowError("bad_token", f"token ids must lie between 0 and {EOS}")

    def add(self, request: Request) -> None:
        self.check(request)
        self._waiting[request.id] = request

    def cancel(self, request_id: str) -> bool:
        return (self._waiting.pop(request_id, None) or self._running.pop(request_id, None)) is not None

    @property
    def num_unfinished(self) -> int:
        return len(self._waiting) + len(self._running)

    def step(self) -> list[Completion]:
        began = time.monotonic()
        done = self._admit()
        for run in list(self._running.values()):
            run.forwards += 1
            run.steps_left -= 1
            if run.steps_left <= 0 and time.monotonic() >= run.ready_at:
                done.append(self._finish(run))
        self._steps += 1
        self._rows += len(self._running) * TOKENS_PER_STEP
        if not done and all(run.steps_left <= 0 for run in self._running.values()):
            time.sleep(0.005)  # every row waits for its `slow` directive
        self._step_s += time.monotonic() - began
        return done

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._running), waiting=len(self._waiting), finished=self._finished, steps=self._steps, tokens=self._tokens,
            rows=self._rows, drafted=self._drafted, accepted=self._drafted, forward_s=self._step_s, step_s=self._step_s,
        )  # fmt: skip

    def _admit(self) -> list[Completion]:
        """Start waiting rows until the batch is full; rows whose directive is `rowerror` end here."""
        failed = []
        while self._waiting and len(self._running) < self.max_running:
            request = self._waiting.pop(next(iter(self._waiting)))
            self._running[request.id] = run = _Running(request, (), 1, 0.0, time.monotonic())
            try:
                run.ready_at = time.monotonic() + _obey(self._directives(request))
            except RowError as error:
                del self._running[request.id]
                fault = (error.code, str(error))
                failed.append(Completion(request.id, (), len(request.prompt_token_ids), Stats(), request.decoder, error=fault))
                continue
            run.samples = fake_samples(request, self._text)
            run.steps_left = -(-max(len(sample.token_ids) for sample in run.samples) // TOKENS_PER_STEP)
        return failed

    def _directives(self, request: Request) -> dict[str, str]:
        return directives(self._text.decode(request.prompt_token_ids))

    def _finish(self, run: _Running) -> Completion:
        del self._running[run.request.id]
        tokens = sum(len(sample.token_ids) for sample in run.samples)
        self._finished += 1
        self._tokens += tokens
        self._drafted += max(tokens - run.forwards, 0)
        total_s = time.monotonic() - run.started
        drafted = max(tokens - run.forwards, 0)
        stats = Stats(forwards=run.forwards, rows=run.forwards * TOKENS_PER_STEP, drafted=drafted, accepted=drafted, total_s=total_s)
        request = run.request
        told = len(request.prompt_token_ids), stats, request.decoder
        return Completion(request.id, run.samples, *told, decoder_params=request.decoder_params)


def fake_samples(request: Request, text: FakeText) -> tuple[Sample, ...]:
    """The answer to a request, sample by sample: a function of its prompt, sampling and seed and of nothing else."""
    content = hashlib.blake2b(b"".join(token.to_bytes(4, "little") for token in request.prompt_token_ids), digest_size=8).hexdigest()
    wanted = directives(text.decode(request.prompt_token_ids)).get("long")
    return tuple(_sample(request.sampling, index, content, request.seed, wanted, text) for index in range(request.sampling.n))


def directives(prompt: str) -> dict[str, str]:
    """Every `[[fake NAME ARGUMENT]]` in a prompt, by name."""
    return {name: argument.strip() for name, argument in DIRECTIVE.findall(prompt)}


def _sample(sampling: Sampling, index: int, content: str, seed: int, wanted: str | None, text: FakeText) -> Sample:
    draw = random.Random(f"{content}/{seed if sampling.temperature > 0 else 0}/{index}")
    length = int(wanted) if wanted else draw.randint(3, 24)
    length = sampling.max_tokens if sampling.ignore_eos else length
    tokens = tuple(256 + draw.randrange(len(WORDS)) for _ in range(min(length, sampling.max_tokens)))
    ended, reason = len(tokens) == length and not sampling.ignore_eos, None
    for place, token in enumerate(tokens):
        if token in sampling.stop_token_ids:
            tokens, ended, reason = tokens[:place], True, token
            break
    shown, tokens, hit = _until_stop(tokens, sampling.stop, text)
    logprobs = None if sampling.logprobs is None else tuple(_logprobs(token, sampling.logprobs) for token in tokens)
    finish = "stop" if ended or hit else "length"
    return Sample(index, tokens, shown, finish, hit or reason, -0.5 * len(tokens), logprobs)


def _until_stop(tokens: tuple[int, ...], stops: Sequence[str], text: FakeText) -> tuple[str, tuple[int, ...], str | None]:
    """Text before the first stop string, the tokens up to the one that completed it, and that string."""
    for end in range(1, len(tokens) + 1 if stops else 0):
        shown = text.decode(tokens[:end])
        if hits := [(shown.index(stop), stop) for stop in stops if stop in shown]:
            place, stop = min(hits)
            return shown[:place], tokens[:end], stop
    return text.decode(tokens), tokens, None


def _logprobs(token: int, alternatives: int) -> tuple[TokenLogprob, ...]:
    others = [other for other in range(256, 256 + alternatives + 1) if other != token][:alternatives]
    return (TokenLogprob(token, -0.5, 1), *(TokenLogprob(other, -1.0 - rank, rank + 2) for rank, other in enumerate(others)))


def _obey(wishes: Mapping[str, str]) -> float:
    """Do what the directives ask; seconds that this row must last."""
    for name, argument in wishes.items():
        if name in _ACTIONS:
            _ACTIONS[name](argument)
    return float(wishes.get("slow", 0.0))


def _row_error(argument: str) -> None:
    raise RowError("fake", argument or "this row was told to fail")


def _raise(argument: str) -> None:
    raise RuntimeError(argument or "this step was told to fail")


def _unfit(argument: str) -> None:
    raise ReplicaError(argument or "this process was told to be unfit")


def _once(path: str) -> None:
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _segfault(_: str) -> None:
    ctypes.memset(0, 0, 1)


def _parent(argument: str) -> None:
    os.kill(os.getppid(), int(argument or signal.SIGKILL))
    time.sleep(60.0)  # the engine's process ends with its parent


_ACTIONS: Mapping[str, Callable[[str], None]] = {
    "rowerror": _row_error,
    "raise": _raise,
    "unfit": _unfit,
    "exit": lambda argument: os._exit(int(argument or 1)),
    "kill": lambda argument: os.kill(os.getpid(), int(argument or signal.SIGKILL)),
    "segfault": _segfault,
    "once": _once,
    "parent": _parent,
    "block": lambda argument: time.sleep(float(argument)),
    "hang": lambda _: time.sleep(1e6),
}


def _check_decoder(request: Request) -> None:
    """A rehearsal refuses what the real job would: unknown recipes and parameters."""
    from drawloom.decoders.recipes import build  # with torch, which nothing else here needs

    try:
        build(request.decoder, request.decoder_params, mask_token=0)
    except SettingError as error:
        raise RowError("invalid_decoder", str(error)) from None
