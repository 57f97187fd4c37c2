"""What the next forward will do: who is admitted, which prefixes are filled, what every group asks for."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Listlike
from dataclasses import dataclass

import torch

from drawloom.actors.admission import Admission
from drawloom.actors.drafting import DraftModels
from drawloom.actors.group import Group
from drawloom.actors.pack import Part
from drawloom.actors.sequence import Sequence
from drawloom.actors.settings import EngineSettings
from drawloom.decoders.step import Decoder, Memory, Step
from drawloom.models.pages import PagePool


@dataclass(frozen=True)
class Plan:
    """The parts of one step. Part i belongs to groups[i]; a part without a group only fills prefixes."""

    parts: list[Part]
    groups: list[Group | None]
    sequences: list[list[Sequence]]


class Planner:
    """Groups of decoding sequences, and the admission that feeds them."""

    def __init__(
        self,
        pool: PagePool,
        settings: EngineSettings,
        device: torch.device,
        drafts: DraftModels,
        remember: Callable[[Decoder], Memory | None],
    ) -> None:
        self.settings, self.device, self.drafts, self.remember = settings, device, drafts, remember
        self.draft_s = 0.0  # seconds that networks have drafted
        self.admission = Admission(pool, settings)
        self.groups: dict[Decoder, Group] = {}
        self.memories: dict[str, Memory] = {}

    def running(self) -> list[Sequence]:
        return [sequence for group in self.groups.values() for sequence in group.sequences]

    def memory_of(self, decoder: Decoder) -> Memory | None:
        """The memory of a decoder; those that name the same one share it, and it outlives their groups."""
        if decoder.remembers not in self.memories and (memory := self.remember(decoder)) is not None:
            self.memories[decoder.remembers] = memory
        return self.memories.get(decoder.remembers)

    def remove(self, sequences: Listlike[Sequence]) -> None:
        """Forget sequences wherever they are and give their pages back."""
        for group in list(self.groups.values()):
            if gone := [sequence for sequence in group.sequences if sequence in sequences]:
                self._leave(group, gone)
        for sequence in sequences:
            for queue in (self.admission.waiting, self.admission.filling):
                if sequence in queue:
                    queue.remove(sequence)
            self.admission.release(sequence)

    def plan(self, now: float) -> Plan:
        self._reserve_running()
        for sequence in self.admission.admit(len(self.running())):
            sequence.admitted_s = sequence.admitted_s or now
        fills, ready = self._schedule_fills()
        self._enter(ready)
        plan = Plan([], [], [])
        for group in self.groups.values():
            if group.decoder.drafting is not None:
                start = time.perf_counter()
                self.drafts.draft(group, group.decoder.drafting)
                self.draft_s += time.perf_counter() - start
            step = group.plan(group.decoder.max_rows)
            _add(plan, group, group.sequences, fills, step)
        for block in sorted({one.decoder.block_tokens for one in self.admission.filling}):
            only = [one for one in self.admission.filling if one.decoder.block_tokens == block and fills.get(one)]
            if only:
                _add(plan, None, only, fills, None)
        return plan

    def _leave(self, group: Group, gone: Listlike[Sequence], *, keep_state: bool = False) -> None:
        group.leave(gone, keep_state=keep_state)
        if not group.sequences:
            del self.groups[group.decoder]

    def _reserve_running(self) -> None:
        """Pages for every row that running sequences may write in this step; later arrivals give way to earlier ones."""
        everyone = self.running() + self.admission.filling
        for sequence in sorted(self.running(), key=lambda one: (-one.request.priority, one.serial)):
            if not sequence.pages:
                continue  # preempted a moment ago
            for victim in self.admission.reserve(sequence, sequence.room(sequence.filled), everyone):
                group = self.groups.get(victim.decoder)
                if group is not None and victim in group.sequences:
                    self._leave(group, [victim], keep_state=not victim.decoder.in_place)

    def _schedule_fills(self) -> tuple[dict[Sequence, list[int]], list[Sequence]]:
        """Prefix tokens to process now, and the sequences whose prefix is then complete (they decode in the same forward)."""
        room, fills, ready = self.settings.prefill_rows, {}, []
        for sequence in list(self.admission.filling):
            left = sequence.target - sequence.filled
            chunk = left if left <= room else self._chunk(room, sequence.decoder.block_tokens)
            if chunk == 0 and left:
                break
            fills[sequence] = sequence.tokens[sequence.filled : sequence.filled + chunk]
            self.admission.name_pages(sequence, sequence.filled, sequence.filled + chunk)
            room = max(0, room - chunk)
            if chunk == left and not (chunk and (sequence.decoder.drafts_trees or sequence.decoder.in_place)):
                ready.append(sequence)
                self.admission.filling.remove(sequence)
        return fills, ready

    def _chunk(self, room: int, block: int) -> int:
        """Whole blocks within room; one block even when prefill_rows is smaller than that, so that filling always goes on."""
        return max(room // block * block, block if room == self.settings.prefill_rows else 0)

    def _enter(self, ready: list[Sequence]) -> None:
        for decoder in dict.fromkeys(sequence.decoder for sequence in ready):
            if decoder not in self.groups:
                self.groups[decoder] = Group(decoder, self.device, self.memory_of(decoder))
            self.groups[decoder].enter([sequence for sequence in ready if sequence.decoder is decoder])


def _add(plan: Plan, group: Group | None, sequences: list[Sequence], fills: dict[Sequence, list[int]], step: Step | None) -> None:
    plan.parts.append(
        Part(
            fill=[fills.get(one, []) for one in sequences],
            filled=[one.filled if group is None else one.held for one in sequences],
            pages=[one.pages for one in sequences],
            block_tokens=sequences[0].decoder.block_tokens,
            step=step,
        )
    )
    plan.groups.append(group)
    plan.sequences.append(list(sequences))
