"""How a running job is doing: numbers from receipts and snapshots, shown as a bar on a terminal or as lines in a log."""

import collections
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from drawloom.pipelines.board import Snapshot
from drawloom.pipelines.receipts import SLOWEST, Receipt

WINDOW_S = 20.0  # over which present speeds are taken
LINE_EVERY_S = 5.0


@dataclass(frozen=True)
class Figures:
    """One look at a job. Rows count the whole job; tokens, speeds, errors and slowest rows count this run."""

    rows: int  # committed
    ended: int  # through an engine, committed or not
    total_rows: int
    errors: int
    error_codes: Mapping[str, int]
    prompt_tokens: int
    completion_tokens: int
    tokens_per_s: float
    tokens_per_forward: float | None
    acceptance: float | None
    replicas: int
    restarts: int  # of replicas
    deaths: int  # of engines
    elapsed_s: float
    eta_s: float | None
    slowest: tuple[tuple[float, int, str, int], ...] = ()
    rows_by_replica: tuple[int, ...] = ()

    def line(self) -> str:
        """Without colours, for a log."""
        return f"{self.ended:,}/{self.total_rows:,} rows  " + self.rest()

    def rest(self) -> str:
        parts = [f"{self.rows:,} committed"] if self.rows < self.ended else []
        parts += [f"{self.tokens_per_s:,.0f} tok/s"]
        parts += [f"{self.tokens_per_forward:.2f} tok/forward"] if self.tokens_per_forward is not None else []
        parts += [f"{self.acceptance:.0%} accepted"] if self.acceptance is not None else []
        parts += [f"{self.errors:,} errors"] if self.errors else []
        parts += [f"{self.replicas} replicas"] if self.replicas else ["starting"]
        parts += [f"{self.restarts} replica restarts"] if self.restarts else []
        parts += [f"{self.deaths} engine restarts"] if self.deaths else []
        return "  ".join([*parts, f"ETA {duration(self.eta_s)}"])


def duration(seconds: float | None) -> str:
    """95 -> 1:35; None -> an unknown time."""
    if seconds is None:
        return "-:--"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@dataclass
class Tally:
    """Counts what happens; `figures` may be asked from any thread. `done_rows` were committed by earlier runs."""

    total_rows: int
    done_rows: int
    began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: collections.Counter[str] = collections.Counter()
        self._codes: collections.Counter[str] = collections.Counter()
        self._slowest: list[tuple[float, int, str, int]] = []
        self._snapshot: Snapshot | None = None
        self._past: collections.deque[tuple[float, int, int]] = collections.deque([(self.began_s, 0, 0)])  # (time, tokens, rows)

    def committed(self, receipt: Receipt) -> None:
        entry = receipt.entry
        with self._lock:
            for name in ("rows", "errors", "prompt_tokens", "completion_tokens", "forwards", "drafted", "accepted"):
                self._sums[name] += getattr(entry, name)
            self._codes.update(entry.error_codes)
            self._slowest = sorted([*self._slowest, *receipt.slowest], reverse=True)[:SLOWEST]

    def seen(self, snapshot: Snapshot) -> None:
        engines = [replica.stats.engine for replica in snapshot.replicas.values()]
        now = time.monotonic()
        with self._lock:
            self._snapshot = snapshot
            self._past.append((now, sum(one.tokens for one in engines), sum(one.finished for one in engines)))
            while len(self._past) > 2 and self._past[0][0] < now - WINDOW_S:
                self._past.popleft()

    def figures(self) -> Figures:
        now = time.monotonic()
        with self._lock:
            sums, replicas = self._sums, list(self._snapshot.replicas.values()) if self._snapshot else []
            (then, old_tokens, old_rows), (latest, tokens, rows) = self._past[0], self._past[-1]
            span_s = max(latest - then, 1e-9)
            ended = min(max(self.done_rows + rows, self.done_rows + sums["rows"]), self.total_rows)
            speed = max(0.0, (rows - old_rows) / span_s)
            return Figures(
                rows=self.done_rows + sums["rows"],
                ended=ended,
                total_rows=self.total_rows,
                errors=sums["errors"],
                error_codes=dict(self._codes),
                prompt_tokens=sums["prompt_tokens"],
                completion_tokens=sums["completion_tokens"],
                tokens_per_s=max(0.0, (tokens - old_tokens) / span_s),
                tokens_per_forward=sums["completion_tokens"] / sums["forwards"] if sums["forwards"] else None,
                acceptance=sums["accepted"] / sums["drafted"] if sums["drafted"] else None,
                replicas=len(replicas),
                restarts=self._snapshot.num_starts - len(replicas) if self._snapshot else 0,
                deaths=sum(replica.stats.deaths for replica in replicas),
                elapsed_s=now - self.began_s,
                eta_s=(self.total_rows - ended) / speed if speed else None,
                slowest=tuple(self._slowest),
                rows_by_replica=tuple(replica.rows for replica in replicas),
            )


@contextmanager
def shown(tally: Tally, kind: str, console: Console) -> Iterator[None]:
    """Show the tally while the block runs. kind: bar, lines, none, or auto (a bar on a terminal, lines elsewhere)."""
    kind = ("bar" if console.is_terminal else "lines") if kind == "auto" else kind
    over = threading.Event()
    draw: Any = {"bar": _draw_bar, "lines": _print_lines}.get(kind)
    thread = threading.Thread(target=draw, args=(tally, over, console), name="progress", daemon=True) if draw else None
    if thread:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread:
            thread.join(timeout=5.0)


def _print_lines(tally: Tally, over: threading.Event, console: Console) -> None:
    """A line whenever something has changed, at most one every LINE_EVERY_S."""
    last = ""
    while not over.wait(LINE_EVERY_S):
        if (line := tally.figures().line()) != last:
            console.print(line, highlight=False, soft_wrap=True)
            last = line


def _draw_bar(tally: Tally, over: threading.Event, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.fields[rest]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task: TaskID = bar.add_task("rows", total=tally.total_rows, rest="")
        while not over.wait(0.25):
            figures = tally.figures()
            bar.update(task, completed=figures.ended, rest=figures.rest())
