"""The sequences that share a recipe and decode together: their lines, dice and decoder state, always in the same order."""

from collections.abc import Sequence as Listlike
from dataclasses import replace
from functools import reduce
from typing import Any

import torch

from drawloom.actors.dice import Dice, Needs, dice_of, needs_of
from drawloom.actors.sequence import Sequence
from drawloom.decoders.drafting import Drafted
from drawloom.decoders.step import Commit, Decoder, Lines, Memory, Picks, Step, extend, join, lines_of, take


class Group:
    """A struct of tensors with one line per sequence. Sequences enter when their prefix is about to be complete and leave when they
    finish or are preempted."""

    def __init__(self, decoder: Decoder, device: torch.device, memory: Memory | None = None) -> None:
        self.decoder, self.device, self.memory = decoder, device, memory
        self.sequences: list[Sequence] = []
        self.lines: Lines
        self.dice: Dice
        self.state: Any = None
        self.needs = Needs()

    def enter(self, fresh: Listlike[Sequence]) -> None:
        """Begin new sequences and bring preempted ones back where they were."""
        new = [sequence for sequence in fresh if sequence.saved is None]
        if new:
            lines = lines_of(
                [sequence.tokens for sequence in new],
                [sequence.limit for sequence in new],
                [sequence.ends for sequence in new],
                self.decoder.max_commit,
                [(sequence.request.seed, sequence.index) for sequence in new],
            )
            lines = replace(_on(lines, self.device), memory=self.memory)
            self._append(new, (lines, _on(dice_of(new), self.device), self.decoder.begin(lines)))
        for sequence in fresh:
            if sequence.saved is not None:
                self._append([sequence], sequence.saved)
                sequence.saved = None

    def leave(self, gone: Listlike[Sequence], *, keep_state: bool = False) -> None:
        """Drop sequences; with keep_state each carries its own lines away, to enter again later."""
        ids = {id(sequence) for sequence in gone}
        if keep_state:
            for line, sequence in enumerate(self.sequences):
                if id(sequence) in ids:
                    sequence.saved = self._parts(torch.tensor([line], device=self.device))
        stay = [line for line, sequence in enumerate(self.sequences) if id(sequence) not in ids]
        self.sequences = [self.sequences[line] for line in stay]
        if stay:
            self._set(self._parts(torch.tensor(stay, device=self.device)))
        self._refresh()

    def plan(self, budget: int) -> Step:
        rows = torch.full_like(self.lines.length, budget)
        self.state, step = self.decoder.plan(self.lines, self.state, rows)
        return step

    def receive(self, drafted: Drafted) -> None:
        self.state = self.decoder.receive(self.state, drafted)

    def accept(self, step: Step, picks: Picks) -> Commit:
        self.state, commit = self.decoder.accept(self.lines, self.state, step, picks)
        self.lines = extend(self.lines, commit)
        return commit

    def _append(self, sequences: Listlike[Sequence], parts: tuple[Lines, Dice, Any]) -> None:
        self._set(tuple(map(join, self._all(), parts)) if self.sequences else parts)
        self.sequences.extend(sequences)
        self._refresh()

    def _all(self) -> tuple[Lines, Dice, Any]:
        return self.lines, self.dice, self.state

    def _parts(self, index: torch.Tensor) -> tuple[Lines, Dice, Any]:
        return take(self.lines, index), take(self.dice, index), take(self.state, index)

    def _set(self, parts: Any) -> None:
        self.lines, self.dice, self.state = parts

    def _refresh(self) -> None:
        self.needs = reduce(Needs.__or__, map(needs_of, self.sequences), Needs())


def _on(struct: Any, device: torch.device) -> Any:
    return replace(struct, **{name: value.to(device) for name, value in vars(struct).items() if isinstance(value, torch.Tensor)})
