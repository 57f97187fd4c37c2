"""Interleaved rounds, answers checked against the first system's before any speed counts, medians of ratios within a round."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from drawloom.errors import DrawloomError
from drawloom.jobs.bench.systems import Run, System
from drawloom.jobs.bench.workload import Workload

NEAR_TIE = 1e-4  # logits this close are one value to float32 kernels that add in another order


@dataclass(frozen=True)
class Difference:
    """The first token at which an answer leaves the reference; `gap` is how far the worse of the two lies below the best logit."""

    prompt: int
    place: int
    token: int | None  # None: the answer ended here
    reference: int | None
    gap: float

    @property
    def is_near_tie(self) -> bool:
        return self.gap < NEAR_TIE

    def __str__(self) -> str:
        return f"prompt {self.prompt}, token {self.place}: {self.token} for {self.reference}, logit gap {self.gap:.2g}"


@dataclass
class Measurement:
    """One system on one workload over all rounds. No speed when `fault` is set."""

    workload: Workload
    system: str
    runs: list[Run] = field(default_factory=list)  # one for each round that counts
    near_ties: int = 0
    fault: str = ""

    @property
    def speeds(self) -> list[float]:
        """New tokens a second, round by round."""
        return [run.num_tokens / run.seconds for run in self.runs]

    def ratio(self, base: "Measurement") -> float:
        """Median over the rounds of this speed over that of `base` in the same round."""
        return statistics.median(own / other for own, other in zip(self.speeds, base.speeds, strict=True))

    def detail(self, name: str) -> float | None:
        """Median over the rounds of something the system reports."""
        found = [run.details[name] for run in self.runs if name in run.details]
        return statistics.median(found) if found else None


Judge = Callable[[Sequence[int], int | None, int | None], float]


def measure(workload: Workload, systems: Sequence[System], judge: Judge, rounds: int) -> list[Measurement]:
    """A warm-up round, then `rounds` rounds in each of which every system runs once, the order turning by one each time.

    The first system is the reference. A system that fails, or whose answers differ by more than near ties, leaves with its fault.
    """
    found = {system.name: Measurement(workload, system.name) for system in systems}
    for number in range(rounds + 1):
        staying = [system for system in systems if not found[system.name].fault]
        runs = {system.name: _attempt(system, workload, found[system.name]) for system in _turned(staying, number)}
        reference = runs.get(systems[0].name)
        if reference is None:
            raise DrawloomError(f"the reference {systems[0].name} failed on {workload.name}: {found[systems[0].name].fault}")
        for name, run in runs.items():
            if run is not None:
                _book(found[name], run, reference, judge, counts=number > 0)
    return list(found.values())


def differences(workload: Workload, run: Run, reference: Run, judge: Judge) -> list[Difference]:
    """The first difference of every answer that is not the reference's."""
    found = []
    for index, (own, other) in enumerate(zip(run.token_ids, reference.token_ids, strict=True)):
        if own == other:
            continue
        place = next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), min(len(own), len(other)))
        token, expected = (answer[place] if place < len(answer) else None for answer in (own, other))
        gap = judge([*workload.prompts[index].token_ids, *own[:place]], token, expected)
        found.append(Difference(index, place, token, expected, gap))
    return found


def judge_with(network: nn.Module, eos_token_ids: tuple[int, ...]) -> Judge:
    """The gap between the best logit and the worse of two tokens after a text, by a plain forward without cache or batch."""

    def judge(text: Sequence[int], token: int | None, expected: int | None) -> float:
        with torch.inference_mode():
            logits = network(input_ids=torch.tensor([list(text)])).logits[0, -1].float()
        ends = logits[list(eos_token_ids)].max() if eos_token_ids else logits.min()
        pair = [ends if item is None else logits[item] for item in (token, expected)]
        return float(logits.max() - min(pair))

    return judge


def _attempt(system: System, workload: Workload, measurement: Measurement) -> Run | None:
    try:
        return system.run(workload)
    except (DrawloomError, RuntimeError, ValueError, OSError) as error:
        measurement.fault = f"failed: {error}"
        return None


def _book(measurement: Measurement, run: Run, reference: Run, judge: Judge, *, counts: bool) -> None:
    found = differences(measurement.workload, run, reference, judge)
    if wrong := [difference for difference in found if not difference.is_near_tie]:
        measurement.fault = f"answers differ: {wrong[0]}" + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else "")
        return
    measurement.near_ties = max(measurement.near_ties, len(found))
    if counts:
        measurement.runs.append(run)


def _turned(systems: Sequence[System], number: int) -> list[System]:
    start = number % max(len(systems), 1)
    return [*systems[start:], *systems[:start]]
