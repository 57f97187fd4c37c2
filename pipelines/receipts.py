"""From completions to outcomes, and what the driver is told of them: a manifest entry and the slowest rows."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from drawloom.actors.request import Completion, Request, Sample
from drawloom.pipelines.manifests import Entry
from drawloom.pipelines.outcomes import Failure, Outcome
from drawloom.pipelines.units import Unit

SLOWEST = 5
RETRYABLE = {"hang", "killed_replica"}  # may have been the machine


@dataclass(frozen=True)
class Receipt:
    """What the driver sees of a unit: its manifest entry and the slowest rows as (seconds, tokens, file, row)."""

    entry: Entry
    slowest: tuple[tuple[float, int, str, int], ...]


def outcomes_of(requests: Iterable[Request | Outcome], completions: Iterable[Completion]) -> Iterator[Outcome]:
    """Row by row: what it was known to be before it ran, or what its completion says."""
    done = iter(completions)
    for one in requests:
        yield one if isinstance(one, Outcome) else _outcome(next(done), one.seed)


def _outcome(completion: Completion, seed: int) -> Outcome:
    found = completion.post_mortem
    if completion.error is None or found is None:
        return Outcome.of(completion, seed)
    code, message = completion.error
    failure = Failure(code, message, code in RETRYABLE, found.attempts, found.signal, found.stderr_tail or None)
    return Outcome(completion, failure, seed)


def slowest(unit: Unit, outcomes: Sequence[Outcome]) -> tuple[tuple[float, int, str, int], ...]:
    """The rows of a unit that took longest: (seconds, tokens, file, row in the file)."""
    done = [(row, outcome.completion) for row, outcome in enumerate(outcomes) if outcome.completion and not outcome.failure]
    lines = ((one.stats.total_s, sum(map(_length, one.samples)), unit.file.name, unit.start + row) for row, one in done)
    return tuple(heapq.nlargest(SLOWEST, lines))


def _length(sample: Sample) -> int:
    return len(sample.token_ids)
