"""The engine: continuous batching of sequences with different decoders over one network. No ray.

One step: reserve pages, plan every group, pack all rows, one forward, pick, accept, one copy to the host, finish what ended.
"""

import time
from collections.abc import Sequence as Listlike
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drawloom.actors.admission import Admission, page_keys
from drawloom.actors.dice import draw_of, penalty_of
from drawloom.actors.group import Group
from drawloom.actors.pack import Packed, Part, pack, row_slots, unpack
from drawloom.actors.request import Completion, EngineStats, Request, Sample, Stats
from drawloom.actors.sequence import Sequence, StopStrings
from drawloom.actors.settings import EngineSettings
from drawloom.decoders.recipes import build, recipe
from drawloom.decoders.step import Commit, Decoder
from drawloom.errors import RowError, SettingError
from drawloom.kernels.pick import Draw, Penalty, Picked, pick, top_logprobs
from drawloom.models.pages import PagePool
from drawloom.models.ragged import Model
from drawloom.models.text import Text


@dataclass
class _Job:
    """A request in the engine."""

    request: Request
    sequences: list[Sequence]
    samples: dict[int, Sample]


@dataclass(frozen=True)
class _Plan:
    """The parts of one step. Part i belongs to groups[i]; a part without a step only fills prefixes."""

    parts: list[Part]
    groups: list[Group | None]
    sequences: list[list[Sequence]]


class Engine:
    """See EngineLike. One thread owns it. Raises RowError from add and check; anything that step raises makes the engine unfit."""

    def __init__(self, model: Model, text: Text, settings: EngineSettings | None = None, *, device: str | torch.device = "cpu") -> None:
        self.model, self.text, self.settings = model, text, settings or EngineSettings()
        self.device = torch.device(device)
        self.exact = self.settings.pack == "exact" or (self.settings.pack == "auto" and self.device.type == "cpu")
        pages = self.settings.num_pages or max(1, int(self.settings.kv_gib * 2**30) // model.page_bytes(self.settings.page_tokens))
        self.pool = PagePool(pages, self.settings.page_tokens)
        model.allocate(pages, self.settings.page_tokens)
        self.admission = Admission(self.pool, self.settings)
        self.groups: dict[Decoder, Group] = {}
        self.jobs: dict[str, _Job] = {}
        self._serial = 0
        self._totals = {"finished": 0, "steps": 0, "tokens": 0, "rows": 0, "drafted": 0, "accepted": 0}
        self._seconds = {"forward_s": 0.0, "step_s": 0.0}
        self.num_host_copies = 0

    # ------------------------------------------------------------------ what a replica calls

    def check(self, request: Request) -> None:
        self._decoder(request)

    def add(self, request: Request) -> None:
        decoder = self._decoder(request)
        if request.id in self.jobs:
            raise RowError("duplicate_id", f"a request with id {request.id!r} is running; give each its own id")
        target = decoder.committed(len(request.prompt_token_ids))
        keys = page_keys(list(request.prompt_token_ids), target, self.pool.page_tokens, decoder.block_tokens)
        sequences = [self._sequence(request, index, decoder, keys, target) for index in range(request.sampling.n)]
        self.jobs[request.id] = _Job(request, sequences, {})
        self.admission.waiting.extend(sequences)

    def cancel(self, request_id: str) -> bool:
        job = self.jobs.pop(request_id, None)
        if job is None:
            return False
        self._remove([sequence for sequence in job.sequences if sequence.finish is None])
        return True

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        start = time.perf_counter()
        plan = self._plan(start)
        if not plan.parts:
            return []
        packed = pack(plan.parts, self.pool.page_tokens, exact=self.exact, device=self.device)
        logits, forward_s = self._forward(packed)
        commits, extras = self._accept(plan, packed, logits)
        done = self._apply(plan, commits, extras)
        self._totals["steps"] += 1
        self._totals["rows"] += packed.ragged.num_rows
        self._seconds["forward_s"] += forward_s
        self._seconds["step_s"] += time.perf_counter() - start
        return done

    @property
    def num_unfinished(self) -> int:
        return len(self.jobs)

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._running()) + len(self.admission.filling),
            waiting=len(self.admission.waiting),
            preemptions=self.admission.preemptions,
            pages_used=self.pool.num_held,
            pages_total=self.pool.num_pages,
            prefix_hit_tokens=self.admission.prefix_hit_tokens,
            **self._totals,
            **self._seconds,
        )

    # ------------------------------------------------------------------ requests

    def _decoder(self, request: Request) -> Decoder:
        """The request's decoder, after checking all that could make it fail later."""
        info, sampling = self.model.info, request.sampling
        try:
            decoder = build(request.decoder, request.decoder_params, info.mask_token_id)
        except SettingError as error:
            raise RowError("invalid_decoder", str(error)) from None
        if info.block_tokens not in (0, decoder.block_tokens):
            kind = "causal" if info.block_tokens == 1 else f"block-causal with blocks of {info.block_tokens}"
            raise RowError("invalid_decoder", f"decoder {request.decoder!r} does not fit {info.name}, whose attention is {kind}")
        prompt = request.prompt_token_ids
        if not prompt:
            raise RowError("empty_prompt", "the prompt has no tokens; give it at least one")
        wrong = [token for token in (*prompt, *sampling.stop_token_ids, *sampling.logit_bias) if not 0 <= token < info.vocab_size]
        if wrong:
            raise RowError("invalid_token_id", f"token id {wrong[0]} is outside the vocabulary of {info.vocab_size}")
        self._check_room(request, decoder)
        return decoder

    def _check_room(self, request: Request, decoder: Decoder) -> None:
        num_prompt, new, block = len(request.prompt_token_ids), request.sampling.max_tokens, decoder.block_tokens
        room = self.model.info.max_context // block * block
        if num_prompt + new > room:
            limit = max(0, room - new)
            raise RowError(
                "prompt_too_long",
                f"prompt has {num_prompt} tokens, at most {limit} fit beside max_tokens={new} in a context of {room}; "
                "shorten it or lower max_tokens",
            )
        pages = self.admission.pages_for(num_prompt + new + decoder.max_rows)
        if pages > self.pool.num_pages:
            raise RowError(
                "prompt_too_long",
                f"prompt of {num_prompt} tokens with max_tokens={new} needs {pages} K/V pages, the pool has {self.pool.num_pages}; "
                "shorten it, lower max_tokens or raise kv_gib",
            )

    def _sequence(self, request: Request, index: int, decoder: Decoder, keys: list[bytes], target: int) -> Sequence:
        sampling = request.sampling
        ends = (() if sampling.ignore_eos else tuple(self.model.info.eos_token_ids)) + sampling.stop_token_ids
        self._serial += 1
        return Sequence(
            request=request,
            index=index,
            decoder=decoder,
            ends=ends,
            serial=self._serial,
            stops=StopStrings(sampling.stop, self.text) if sampling.stop else None,
            page_keys=keys,
            tokens=list(request.prompt_token_ids),
            arrived_s=time.perf_counter(),
            target=target,
        )

    def _running(self) -> list[Sequence]:
        return [sequence for group in self.groups.values() for sequence in group.sequences]

    def _remove(self, sequences: Listlike[Sequence]) -> None:
        """Forget sequences wherever they are and give their pages back."""
        for group in list(self.groups.values()):
            if gone := [sequence for sequence in group.sequences if sequence in sequences]:
                self._leave(group, gone)
        for sequence in sequences:
            for queue in (self.admission.waiting, self.admission.filling):
                if sequence in queue:
                    queue.remove(sequence)
            self.admission.release(sequence)

    def _leave(self, group: Group, gone: Listlike[Sequence], *, keep_state: bool = False) -> None:
        group.leave(gone, keep_state=keep_state)
        if not group.sequences:
            del self.groups[group.decoder]

    # ------------------------------------------------------------------ planning

    def _plan(self, now: float) -> _Plan:
        self._reserve_running()
        for sequence in self.admission.admit(len(self._running())):
            sequence.admitted_s = sequence.admitted_s or now
        fills, ready = self._schedule_fills()
        self._enter(ready)
        parts, groups, members = [], [], []
        for group in self.groups.values():
            step = group.plan(group.decoder.max_rows)
            members.append(list(group.sequences))
            parts.append(self._part(group.sequences, fills, group.decoder.block_tokens, step))
            groups.append(group)
        for block in sorted({one.decoder.block_tokens for one in self.admission.filling}):
            only = [one for one in self.admission.filling if one.decoder.block_tokens == block and fills.get(id(one))]
            if only:
                members.append(only)
                parts.append(self._part(only, fills, block, None))
                groups.append(None)
        return _Plan(parts, groups, members)

    def _reserve_running(self) -> None:
        """Pages for every row that running sequences may write in this step; later arrivals give way to earlier ones."""
        running = self._running() + self.admission.filling
        for sequence in sorted(self._running(), key=lambda one: (-one.request.priority, one.serial)):
            if not sequence.pages:
                continue  # preempted a moment ago
            for victim in self.admission.reserve(sequence, sequence.filled + sequence.decoder.max_rows, running):
                group = self.groups.get(victim.decoder)
                if group is not None and victim in group.sequences:
                    self._leave(group, [victim], keep_state=True)

    def _schedule_fills(self) -> tuple[dict[int, list[int]], list[Sequence]]:
        """Prefix tokens to process now, by id of sequence, and the sequences whose prefix is then complete."""
        room, fills, ready = self.settings.prefill_rows, {}, []
        for sequence in list(self.admission.filling):
            block = sequence.decoder.block_tokens
            left = sequence.target - sequence.filled
            chunk = left if left <= room else max(room // block * block, block if room == self.settings.prefill_rows else 0)
            complete = chunk == left
            if chunk == 0 and not complete:
                break
            fills[id(sequence)] = sequence.tokens[sequence.filled : sequence.filled + chunk]
            self.admission.name_pages(sequence, sequence.filled, sequence.filled + chunk)
            room = max(0, room - chunk)
            if complete and not (chunk and sequence.decoder.drafts_trees):
                ready.append(sequence)
                self.admission.filling.remove(sequence)
        return fills, ready

    def _enter(self, ready: list[Sequence]) -> None:
        for decoder in dict.fromkeys(sequence.decoder for sequence in ready):
            if decoder not in self.groups:
                self.groups[decoder] = Group(decoder, self.device)
            self.groups[decoder].enter([sequence for sequence in ready if sequence.decoder is decoder])

    def _part(self, sequences: list[Sequence], fills: dict[int, list[int]], block: int, step: object) -> Part:
        return Part(
            fill=[fills.get(id(one), []) for one in sequences],
            filled=[one.filled for one in sequences],
            pages=[one.pages for one in sequences],
            block_tokens=block,
            step=step,  # type: ignore[arg-type]
        )

    # ------------------------------------------------------------------ the forward and what follows

    def _forward(self, packed: Packed) -> tuple[Tensor, float]:
        start = time.perf_counter()
        logits = self.model.forward(packed.ragged)
        return logits, time.perf_counter() - start

    def _accept(self, plan: _Plan, packed: Packed, logits: Tensor) -> tuple[list[Commit | None], list[Tensor]]:
        """Pick once for the whole batch, then let every group accept. Also the tensors of wanted alternatives."""
        extras: list[Tensor] = []
        commits: list[Commit | None] = []
        picked = self._pick(plan, packed, logits)
        offset = 0
        for part, group, flat in zip(plan.parts, plan.groups, packed.scored, strict=True):
            if group is None or part.step is None:
                commits.append(None)
                continue
            span = slice(offset, offset + len(flat))
            offset += len(flat)
            if group.needs.alternatives >= 0:
                extras.extend(self._alternatives(group, part, flat, logits[span], picked.token[span]))
            commit = group.accept(part.step, unpack(picked, span, flat, part.step))
            if not group.decoder.keeps_leading:
                self._compact(part, commit)
            commits.append(commit)
        return commits, extras

    def _pick(self, plan: _Plan, packed: Packed, logits: Tensor) -> Picked:
        draws, penalties, offset, shape, warm, narrowed = [], [], 0, False, False, False
        for part, group, flat in zip(plan.parts, plan.groups, packed.scored, strict=True):
            if group is None or part.step is None:
                continue
            width = part.step.tokens.shape[1]
            position = part.step.positions.flatten()[flat] + int(group.decoder.shifted)
            draws.append(draw_of(group.dice, flat // width, position))
            if group.needs.adjusted:
                own = penalty_of(group.dice, group.lines, part.step, flat, logits.shape[1])
                penalties.append(Penalty(**{**vars(own), "rows": own.rows + offset}))
            offset += len(flat)
            warm, narrowed = warm or group.needs.warm, narrowed or group.needs.narrowed
            shape = shape or group.decoder.needs_shape
        return pick(
            logits,
            _cat(draws) if warm else None,
            penalty=_cat(penalties) if penalties else None,
            forbidden=self.model.info.mask_token_id,
            narrowed=narrowed,
            want_shape=shape,
        )

    def _alternatives(self, group: Group, part: Part, flat: Tensor, logits: Tensor, token: Tensor) -> list[Tensor]:
        """Per scored row: line, absolute position, rank, then k ids and k log-probabilities, as columns."""
        assert part.step is not None
        k = max(1, group.needs.alternatives)
        if self.model.info.mask_token_id is not None:
            logits = logits.index_fill(-1, torch.tensor([self.model.info.mask_token_id], device=logits.device), -torch.inf)
        ids, values, rank = top_logprobs(logits, token, k)
        position = part.step.positions.flatten()[flat] + int(group.decoder.shifted)
        head = torch.stack([flat // part.step.tokens.shape[1], position, rank], 1)
        return [torch.cat([head, ids], 1), values]

    def _compact(self, part: Part, commit: Commit) -> None:
        """Move kept rows' K/V together behind the prefix."""
        assert part.step is not None
        slots = row_slots(part, part.step, self.pool.page_tokens)
        rank = (commit.keep.long().cumsum(1) - 1).clamp(min=0)
        self.model.move_rows(slots[commit.keep], slots.gather(1, rank)[commit.keep])

    def _apply(self, plan: _Plan, commits: list[Commit | None], extras: list[Tensor]) -> list[Completion]:
        """The one copy to the host, and what follows from it."""
        device_side: list[Tensor] = []
        for commit in commits:
            if commit is not None:
                counts = torch.stack([commit.count, commit.keep.sum(1), commit.drafted, commit.accepted], 1)
                device_side.extend((counts, commit.tokens, commit.logprob))
        arrays = iter(self._to_host(device_side + extras))
        per_group = [None if commit is None else (next(arrays), next(arrays), next(arrays)) for commit in commits]
        for group, members in zip(plan.groups, plan.sequences, strict=True):
            if group is not None and group.needs.alternatives >= 0:
                self._note_alternatives(members, next(arrays), next(arrays))
        now = time.perf_counter()
        ended: list[Sequence] = []
        for part, members, arrays_of in zip(plan.parts, plan.sequences, per_group, strict=True):
            ended.extend(self._advance(part, members, arrays_of, now))
        self._remove(ended)
        return [done for sequence in ended if (done := self._finish(sequence, now)) is not None]

    def _to_host(self, tensors: list[Tensor]) -> list[np.ndarray]:
        """All tensors as NumPy arrays through one device-to-host copy (floats travel as the bits of float64)."""
        if not tensors:
            return []
        flat = torch.cat([(one.double().view(torch.int64) if one.is_floating_point() else one).flatten() for one in tensors])
        self.num_host_copies += 1
        pieces = np.split(flat.cpu().numpy(), np.cumsum([one.numel() for one in tensors])[:-1])
        return [
            (piece.view(np.float64) if one.is_floating_point() else piece).reshape(one.shape)
            for piece, one in zip(pieces, tensors, strict=True)
        ]

    def _note_alternatives(self, members: list[Sequence], table: np.ndarray, values: np.ndarray) -> None:
        for (line, position, rank, *ids), logprobs in zip(table.tolist(), values.tolist(), strict=True):
            if members[line].request.sampling.logprobs is not None:
                members[line].alternatives[position] = (rank, ids, logprobs)

    def _advance(self, part: Part, members: list[Sequence], arrays: tuple[np.ndarray, ...] | None, now: float) -> list[Sequence]:
        """Count what a part's sequences did; return those that ended."""
        for sequence, fill in zip(members, part.fill, strict=True):
            sequence.filled += len(fill)
            sequence.rows += len(fill)
            sequence.forwards += 1
        if arrays is None:
            return []
        assert part.step is not None
        ended = []
        rows = part.step.valid.sum(1).tolist() if self.exact else [part.step.tokens.shape[1]] * len(members)
        for sequence, num_rows, count, tokens, logprobs in zip(members, rows, *(array.tolist() for array in arrays), strict=True):
            num_final, num_kept, drafted, accepted = count
            sequence.filled += num_kept
            sequence.rows += num_rows
            sequence.drafted += drafted
            sequence.accepted += accepted
            if num_final and not sequence.first_token_s:
                sequence.first_token_s = now
            taken = sequence.extend(tokens[:num_final], logprobs[:num_final])
            self._totals["tokens"] += taken
            self._totals["drafted"] += drafted
            self._totals["accepted"] += accepted
            if sequence.finish is not None:
                ended.append(sequence)
        return ended

    def _finish(self, sequence: Sequence, now: float) -> Completion | None:
        """The request's completion when this was its last sample."""
        job = self.jobs[sequence.request.id]
        job.samples[sequence.index] = sequence.sample(self.text)
        if len(job.samples) < len(job.sequences):
            return None
        del self.jobs[sequence.request.id]
        self._totals["finished"] += 1
        samples = tuple(job.samples[index] for index in range(len(job.sequences)))
        return Completion(
            id=job.request.id,
            samples=samples,
            prompt_tokens=sequence.prompt_len,
            stats=_stats(job.sequences, now),
            decoder=job.request.decoder,
            lossless=recipe(job.request.decoder).lossless,
        )


def _stats(sequences: list[Sequence], now: float) -> Stats:
    first = sequences[0]
    return Stats(
        forwards=sum(one.forwards for one in sequences),
        rows=sum(one.rows for one in sequences),
        drafted=sum(one.drafted for one in sequences),
        accepted=sum(one.accepted for one in sequences),
        preemptions=sum(one.preemptions for one in sequences),
        cached_prompt_tokens=sum(min(one.cached, one.prompt_len) for one in sequences),
        queued_s=min(one.admitted_s for one in sequences) - first.arrived_s,
        first_token_s=min(one.first_token_s for one in sequences) - first.arrived_s,
        total_s=now - first.arrived_s,
    )


def _cat(items: list) -> Draw | Penalty:
    """One Draw (or Penalty) of several."""
    return type(items[0])(**{name: torch.cat([vars(item)[name] for item in items]) for name in vars(items[0])})
