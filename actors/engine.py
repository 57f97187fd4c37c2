"""The engine: continuous batching of sequences with different decoders over one network. No ray.

One step: reserve pages and plan every group, pack all rows, one forward, pick and accept, one copy to the host, finish what ended.
"""

import time
from collections.abc import Mapping
from collections.abc import Sequence as Listlike
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch

from drawloom.actors.admission import page_keys
from drawloom.actors.checks import decoder_of
from drawloom.actors.drafting import DraftModels, why_not_drafting
from drawloom.actors.harvest import Deed, harvest
from drawloom.actors.pack import pack
from drawloom.actors.planner import Plan, Planner
from drawloom.actors.request import Completion, EngineStats, Request, Sample, Stats
from drawloom.actors.sequence import Sequence, StopStrings
from drawloom.actors.settings import EngineSettings
from drawloom.decoders.step import Decoder, Memory
from drawloom.errors import RowError, SettingError
from drawloom.models.drafters.contract import FeatureDrafter
from drawloom.models.pages import PagePool
from drawloom.models.ragged import Model
from drawloom.models.text import Text


@dataclass
class _Job:
    """A request in the engine."""

    request: Request
    sequences: list[Sequence]
    samples: dict[int, Sample]


@dataclass
class _Totals:
    """Counters since the start; seconds are wall time."""

    finished: int = 0
    steps: int = 0
    tokens: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    forward_s: float = 0.0
    step_s: float = 0.0


class Engine:
    """See EngineLike. One thread owns it. add and check raise RowError; whatever step raises makes the engine unfit."""

    def __init__(
        self,
        model: Model,
        text: Text,
        settings: EngineSettings | None = None,
        *,
        device: str | torch.device = "cpu",
        past: Listlike[Listlike[int]] = (),
        drafts: Mapping[str, Model | FeatureDrafter] | None = None,
    ) -> None:
        """past: token ids of texts that drafters which remember begin with. drafts: networks of the same tokenizer that draft, by name.

        Raises SettingError when past texts have tokens that the model does not know."""
        if (largest := max((max(text) for text in past if len(text)), default=0)) >= model.info.vocab_size:
            raise SettingError(
                f"drafts_from: its texts have token ids up to {largest}, and {model.info.name} knows {model.info.vocab_size}; "
                "name an output of a model with the same tokenizer"
            )
        self.model, self.text, self.settings = model, text, settings or EngineSettings()
        self.device = torch.device(device)
        self.exact = self.settings.pack == "exact" or (self.settings.pack == "auto" and self.device.type == "cpu")
        page_tokens = self.settings.page_tokens
        self.drafts = dict(drafts or {})
        everyone = [model, *self.drafts.values()]
        pages = self.settings.num_pages or pages_in(self.settings, model.info.max_context, everyone)
        for one in everyone:
            one.allocate(pages, page_tokens)
        self.pool = PagePool(pages, page_tokens)
        drafting = DraftModels(self.drafts, model, page_tokens, self.device)
        self.past = past
        self.planner = Planner(self.pool, self.settings, self.device, drafting, self._remember)
        self.jobs: dict[str, _Job] = {}
        self._serial = 0
        self._totals = _Totals()

    def check(self, request: Request) -> None:
        self._decoder_of(request)

    def add(self, request: Request) -> None:
        decoder = self._decoder_of(request)
        if request.id in self.jobs:
            raise RowError("duplicate_id", f"a request with id {request.id!r} is running; give each its own id")
        target = decoder.committed(len(request.prompt_token_ids))
        drafter = None if decoder.drafting is None else self.drafts[decoder.drafting.model]
        ahead = drafter.ahead if isinstance(drafter, FeatureDrafter) else 0
        keys = page_keys(list(request.prompt_token_ids), target, self.pool.page_tokens, decoder.block_tokens, ahead)
        sequences = [self._sequence(request, index, decoder, keys, target) for index in range(request.sampling.n)]
        self.jobs[request.id] = _Job(request, sequences, {})
        self.planner.admission.waiting.extend(sequences)

    def cancel(self, request_id: str) -> bool:
        job = self.jobs.pop(request_id, None)
        if job is None:
            return False
        self.planner.remove([sequence for sequence in job.sequences if sequence.finish is None])
        return True

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        start = time.perf_counter()
        plan = self.planner.plan(start)
        if not plan.parts:
            return []
        packed = pack(plan.parts, self.pool.page_tokens, exact=self.exact, device=self.device)
        before = time.perf_counter()
        logits = self.model.forward(packed.ragged)
        after = time.perf_counter()
        deeds = harvest(plan, packed, logits, self.model)
        done = self._apply(plan, deeds)
        self._totals.steps += 1
        self._totals.rows += packed.ragged.num_rows
        self._totals.forward_s += after - before
        self._totals.step_s += time.perf_counter() - start
        return done

    def forget(self) -> None:
        """Drop kept prefixes and counters, as if nothing had been asked yet."""
        self.pool.forget()
        self.planner.draft_s = 0.0
        self.planner.admission.preemptions = self.planner.admission.prefix_hit_tokens = 0
        self._totals = _Totals()

    @property
    def num_unfinished(self) -> int:
        return len(self.jobs)

    def stats(self) -> EngineStats:
        admission = self.planner.admission
        return EngineStats(
            running=len(self.planner.running()) + len(admission.filling),
            waiting=len(admission.waiting),
            preemptions=admission.preemptions,
            pages_used=self.pool.num_held,
            pages_total=self.pool.num_pages,
            prefix_hit_tokens=admission.prefix_hit_tokens,
            draft_s=self.planner.draft_s,
            **vars(self._totals),
        )

    def _remember(self, decoder: Decoder) -> Memory | None:
        """A new memory for a decoder that has one; it begins with the texts of the past."""
        if (memory := decoder.remember(self.model.info.vocab_size)) is not None:
            memory.feed(self.past)
        return memory

    def _decoder_of(self, request: Request) -> Decoder:
        decoder = decoder_of(request, self.model.info, self.pool)
        if (asked := decoder.drafting) is not None and asked.model not in self.drafts:
            here = ", ".join(map(repr, self.drafts)) or "none"
            raise RowError(
                "invalid_decoder",
                f"draft model {asked.model!r} is not loaded here ({here}); a job loads the one of its own decoder_params, so name it there",
            )
        if asked is not None and (fault := why_not_drafting(asked, self.drafts[asked.model])):
            raise RowError("invalid_decoder", fault)
        return decoder

    def _sequence(self, request: Request, index: int, decoder: Decoder, keys: list[bytes], target: int) -> Sequence:
        sampling = request.sampling
        self._serial += 1
        return Sequence(
            request=request,
            index=index,
            decoder=decoder,
            ends=(() if sampling.ignore_eos else tuple(self.model.info.eos_token_ids)) + sampling.stop_token_ids,
            serial=self._serial,
            stops=StopStrings(sampling.stop, self.text) if sampling.stop else None,
            page_keys=keys,
            tokens=list(request.prompt_token_ids),
            arrived_s=time.perf_counter(),
            target=target,
        )

    def _apply(self, plan: Plan, deeds: list[Deed | None]) -> list[Completion]:
        """Advance every sequence by what was decided; return the requests that ended."""
        now = time.perf_counter()
        ended: list[Sequence] = []
        for part, members, deed in zip(plan.parts, plan.sequences, deeds, strict=True):
            for sequence, fill in zip(members, part.fill, strict=True):
                sequence.filled += len(fill)
                sequence.rows += len(fill)
                sequence.forwards += 1
            if deed is not None:
                ended.extend(self._advance(members, deed, now))
        if not ended:
            return []
        self.planner.remove(ended)
        return [done for sequence in ended if (done := self._finish(sequence, now)) is not None]

    def _advance(self, members: list[Sequence], deed: Deed, now: float) -> list[Sequence]:
        """Give a group's sequences their tokens; return those that ended."""
        if deed.alternatives is not None:
            _note_alternatives(members, *deed.alternatives)
        columns = (deed.count, deed.kept, deed.drafted, deed.accepted, deed.rows, deed.tokens, deed.logprob)
        traces = [] if deed.trace is None else list(zip(*(values.tolist() for values in deed.trace), strict=True))
        for line, (sequence, count, kept, drafted, accepted, rows, tokens, logprobs) in enumerate(
            zip(members, *(column.tolist() for column in columns), strict=True)
        ):
            sequence.filled += kept
            sequence.rows += rows
            if drafted:
                sequence.note_draft(drafted, accepted)
            if count and not sequence.first_token_s:
                sequence.first_token_s = now
            taken = sequence.extend(tokens[:count], logprobs[:count])
            self._totals.tokens += taken
            if sequence.request.trace:
                sequence.note(*(values[:taken] for values in traces[line]))
        self._totals.drafted += int(deed.drafted.sum())
        self._totals.accepted += int(deed.accepted.sum())
        return [sequence for sequence in members if sequence.finish is not None]

    def _finish(self, sequence: Sequence, now: float) -> Completion | None:
        """The request's completion when this was its last sample."""
        job = self.jobs[sequence.request.id]
        job.samples[sequence.index] = sequence.sample(self.text)
        if len(job.samples) < len(job.sequences):
            return None
        del self.jobs[sequence.request.id]
        self._totals.finished += 1
        return Completion(
            id=job.request.id,
            samples=tuple(job.samples[index] for index in range(len(job.sequences))),
            prompt_tokens=sequence.prompt_len,
            stats=_stats(job.sequences, now),
            decoder=job.request.decoder,
            lossless=sequence.decoder.lossless,
            decoder_params=job.request.decoder_params,
        )


def pages_in(settings: EngineSettings, context: int, models: Listlike[Model | FeatureDrafter]) -> int:
    """Pages that kv_gib holds, each with K/V of all the models (the target first), at most four times what max_sequences whole contexts
    take (the rest would hold prefixes nobody asks for)."""
    contexts = 4 * settings.max_sequences * -(-context // settings.page_tokens)
    return max(1, min(contexts, int(settings.kv_gib * 2**30) // sum(model.page_bytes(settings.page_tokens) for model in models)))


def _note_alternatives(members: list[Sequence], table: np.ndarray, values: np.ndarray) -> None:
    """Remember, by absolute position, what else could have stood there; a later score of the same position replaces an earlier one."""
    for (line, position, rank, *ids), logprobs in zip(table.tolist(), values.tolist(), strict=True):
        if members[line].request.sampling.logprobs is not None:
            members[line].alternatives[position] = (rank, ids, logprobs)


def _stats(sequences: list[Sequence], now: float) -> Stats:
    """A request's cost: sums over its samples; times from its arrival."""
    arrived = sequences[0].arrived_s
    return Stats(
        forwards=sum(one.forwards for one in sequences),
        rows=sum(one.rows for one in sequences),
        drafted=sum(one.drafted for one in sequences),
        accepted=sum(one.accepted for one in sequences),
        accepted_by_position=tuple(map(sum, zip_longest(*(one.accepted_by_position for one in sequences), fillvalue=0))),
        preemptions=sum(one.preemptions for one in sequences),
        cached_prompt_tokens=sum(min(one.cached, one.prompt_len) for one in sequences),
        queued_s=min(one.admitted_s for one in sequences) - arrived,
        first_token_s=min(one.first_token_s or now for one in sequences) - arrived,
        total_s=now - arrived,
    )
