"""The thread that owns a replica's state: keeps an engine's process alive, hands it rows, and finds out which row killed it."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from multiprocessing.connection import wait
from typing import Any

from drawloom.actors.process import Death, EngineProcess
from drawloom.actors.quarantine import DEATHS_ALONE, Suspects, blame, next_group
from drawloom.actors.request import Completion, EngineStats, PostMortem, Request, Stats
from drawloom.errors import ReplicaError, SettingError
from drawloom.settings import Settings

DEATHS_IN_A_ROW = 32  # deaths without one completed row between them: bisecting 1024 rows down to one killer takes 12
UNFIT_IN_A_ROW = 3  # deaths that were nobody's fault: at the start, or a ReplicaError
GAUGES = ("running", "waiting", "pages_used", "pages_total")  # of EngineStats; its other fields count up
CLOSED = "the replica was closed before this row ended"
CODES = {"died": "killed_process", "raised": "engine_error", "hang": "hang"}


class ReplicaSettings(Settings):
    """How an engine's process is kept."""

    threads: int = 1  # of torch and OpenMP
    start_timeout_s: float = 1800.0
    step_timeout_s: float = 900.0  # a single step that takes longer is a hang, and its row is looked for


@dataclass(frozen=True)
class ReplicaStats:
    """Counters since the replica was made; `engine` adds up all processes it has had."""

    engine: EngineStats = field(default_factory=EngineStats)
    waiting: int = 0  # rows that no engine has seen yet
    in_flight: int = 0
    deaths: int = 0
    convicted: int = 0
    pid: int = 0  # of the engine's process


@dataclass
class Batch:
    """The rows of one `submit`; settled when the last of them has ended."""

    future: Future[list[Completion]]
    completions: list[Completion | None]
    keys: list[str]
    missing: int


@dataclass(frozen=True)
class _Row:
    request: Request  # its id is the keeper's key
    id: str  # the caller's
    place: int  # in its batch
    batch: Batch


class _Closed(Exception):
    """The replica was told to close."""


class Keeper:
    """The state of a replica and the only thread that touches it (`run`); other threads use `tell`, `ready` and `stats`."""

    def __init__(self, build: bytes, settings: ReplicaSettings) -> None:
        self._build, self._settings = build, settings
        self.ready: Future[None] = Future()
        self.stats = ReplicaStats()
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._door, self._closed = threading.Lock(), False
        self._bell_in, self._bell = os.pipe()
        os.set_blocking(self._bell_in, False)
        os.set_blocking(self._bell, False)
        self._rows: dict[str, _Row] = {}  # every row that has not ended
        self._waiting: dict[str, None] = {}  # keys, in order
        self._in_flight: dict[str, None] = {}
        self._suspects = Suspects()
        self._on_trial = False  # what is in flight is a group of suspects
        self._num_keys = 0
        self._past = EngineStats()  # counters of the processes that died
        self._deaths_in_a_row = self._unfit_in_a_row = 0

    def tell(self, kind: str, payload: Any) -> None:
        """Hand something to the keeper; safe from any thread. Rows for a closed keeper fail at once."""
        with self._door:
            self._inbox.put((kind, payload))
            if self._closed:
                self._refuse_inbox(CLOSED)
                return
            with contextlib.suppress(BlockingIOError):  # a full pipe rings anyway
                os.write(self._bell, b".")

    def run(self) -> None:
        """Keep engines alive, one after the other, until closed; after a failure, refuse everything."""
        failure: Exception = ReplicaError(CLOSED)
        try:
            while True:
                self._after_death(self._live(EngineProcess(self._build, self._settings.threads)))
        except _Closed:
            self._shut()
            return
        except (ReplicaError, SettingError) as error:
            failure = error
        except Exception as error:  # noqa: BLE001 the replica border: a keeper that vanished would leave its callers waiting for ever
            failure = ReplicaError(f"the keeper of the engine failed: {type(error).__name__}: {error}")
        if not self.ready.done():
            self.ready.set_exception(failure)
        with contextlib.suppress(_Closed):
            while True:
                self._refuse(failure)
                self._hear(None, *self._inbox.get())
        self._shut()

    def _live(self, process: EngineProcess) -> Death:
        """One life of an engine, from its start to its death."""
        self.stats = replace(self.stats, pid=process.pid)
        heard_s, stands = time.monotonic(), False
        try:
            while True:
                if stands:
                    self._dispatch(process)
                limit_s = self._settings.step_timeout_s if stands else self._settings.start_timeout_s
                busy = bool(self._in_flight) or not stands
                rung = wait([process.pipe, self._bell_in], timeout=max(0.0, heard_s + limit_s - time.monotonic()) if busy else None)
                if process.pipe in rung:
                    message = process.receive()
                    if message is None:
                        return process.death()
                    stands, heard_s = self._listen(message) or stands, time.monotonic()
                elif busy and time.monotonic() - heard_s >= limit_s:
                    process.kill(_hang(limit_s, stands))
                    return process.death()
                if self._bell_in in rung:
                    heard_s = heard_s if self._in_flight else time.monotonic()
                    self._hear_all(process)
        except _Closed:
            process.death()
            raise

    def _dispatch(self, process: EngineProcess) -> None:
        """Send what may be sent: one group of suspects with nobody beside it, otherwise everything that waits."""
        while not self._in_flight:
            self._suspects, group = next_group(self._suspects)
            self._on_trial = bool(group)
            if not group:
                break
            self._send(process, [key for key in group if key in self._rows])
        if not self._on_trial and self._waiting:
            waiting, self._waiting = list(self._waiting), {}
            self._send(process, waiting)

    def _send(self, process: EngineProcess, keys: Sequence[str]) -> None:
        self._in_flight.update(dict.fromkeys(keys))
        process.send(("add", [self._rows[key].request for key in keys]))
        self._count()

    def _listen(self, message: tuple[Any, ...]) -> bool:
        """Take a message of the engine's process; True when it says that the engine stands."""
        if message[0] == "ready":
            if not self.ready.done():
                self.ready.set_result(None)
            return True
        if message[0] == "done":
            for completion in message[1]:
                self._end(completion.id, completion)
            if message[1]:
                self._deaths_in_a_row = self._unfit_in_a_row = 0
            self.stats = replace(self.stats, engine=_added(self._past, message[2]))
            self._count()
        return False

    def _hear_all(self, process: EngineProcess) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell_in, 4096)
        with contextlib.suppress(queue.Empty):
            while True:
                self._hear(process, *self._inbox.get_nowait())

    def _hear(self, process: EngineProcess | None, kind: str, payload: Any) -> None:
        """Take one word of a caller."""
        if kind == "close":
            raise _Closed
        if kind == "submit":
            self._accept(*payload)
        else:
            for key in payload.keys:
                if self._rows.pop(key, None) is not None and process is not None and key in self._in_flight:
                    process.send(("cancel", key))
                self._waiting.pop(key, None)
                self._in_flight.pop(key, None)
        self._count()

    def _accept(self, batch: Batch, requests: Sequence[Request]) -> None:
        for place, request in enumerate(requests):
            key = str(self._num_keys)
            self._num_keys += 1
            batch.keys.append(key)
            self._rows[key] = _Row(replace(request, id=key), request.id, place, batch)
            self._waiting[key] = None

    def _end(self, key: str, completion: Completion) -> None:
        """One row has ended; its batch is settled with its last row. Rows cancelled meanwhile are unknown here."""
        self._in_flight.pop(key, None)
        row = self._rows.pop(key, None)
        if row is None:
            return
        row.batch.completions[row.place] = replace(completion, id=row.id)
        row.batch.missing -= 1
        if row.batch.missing == 0 and row.batch.future.set_running_or_notify_cancel():
            row.batch.future.set_result([completion for completion in row.batch.completions if completion is not None])

    def _after_death(self, death: Death) -> None:
        """Blame a row, or raise when the fault is not in the rows."""
        self._past = self.stats.engine
        self.stats = replace(self.stats, deaths=self.stats.deaths + 1)
        if death.code == "setting":
            raise SettingError(death.what)
        in_flight, self._in_flight = list(self._in_flight), {}
        if death.code == "unfit" or not in_flight:
            self._unfit_in_a_row += 1
            self._waiting = {**dict.fromkeys(in_flight), **self._waiting}
        else:
            self._deaths_in_a_row += 1
            self._suspects, convict = blame(self._suspects, in_flight)
            if convict is not None:
                self._convict(convict, death)
        first_start = death.code == "raised" and not self.ready.done()
        if first_start or self._unfit_in_a_row >= UNFIT_IN_A_ROW or self._deaths_in_a_row >= DEATHS_IN_A_ROW:
            raise ReplicaError(self._epitaph(death))

    def _convict(self, key: str, death: Death) -> None:
        request = self._rows[key].request
        message = f"this row ended its engine's process {DEATHS_ALONE} times with no other row in it: {death.what}"
        found = PostMortem(DEATHS_ALONE, death.signal, death.tail)
        error = (CODES[death.code], message)
        self._end(key, Completion(key, (), len(request.prompt_token_ids), Stats(), request.decoder, error=error, post_mortem=found))
        self.stats = replace(self.stats, convicted=self.stats.convicted + 1)

    def _epitaph(self, death: Death) -> str:
        deaths = max(self._unfit_in_a_row, self._deaths_in_a_row)
        return f"no engine can be kept alive: {deaths} ended in a row without completing a row, the last by {death.what}; {death.tail}"

    def _refuse(self, failure: Exception) -> None:
        """Fail every row that has not ended."""
        for row in list(self._rows.values()):
            if not row.batch.future.done() and row.batch.future.set_running_or_notify_cancel():
                row.batch.future.set_exception(failure)
        self._rows, self._waiting, self._in_flight = {}, {}, {}

    def _refuse_inbox(self, reason: str) -> None:
        with contextlib.suppress(queue.Empty, _Closed):
            while True:
                self._hear(None, *self._inbox.get_nowait())
        self._refuse(ReplicaError(reason))

    def _shut(self) -> None:
        """Close the door: whoever comes later is refused at once."""
        with self._door:
            self._closed = True
            self._refuse_inbox(CLOSED)
            os.close(self._bell)
            os.close(self._bell_in)
        if not self.ready.done():
            self.ready.set_exception(ReplicaError(CLOSED))

    def _count(self) -> None:
        self.stats = replace(self.stats, waiting=len(self._rows) - len(self._in_flight), in_flight=len(self._in_flight))


def _hang(limit_s: float, stands: bool) -> Death:
    return Death("hang" if stands else "died", f"{'no step' if stands else 'no engine'} for {limit_s:g} s")


def _added(past: EngineStats, now: EngineStats) -> EngineStats:
    """Counters add up over processes, gauges are today's."""
    return EngineStats(**{f.name: getattr(now, f.name) + (0 if f.name in GAUGES else getattr(past, f.name)) for f in fields(EngineStats)})
