"""What is compared: our engine, and transformers in its three ways. All greedy, all from token ids to token ids."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.generation.continuous_batching.utils import WorkloadHints

from drawloom.actors.request import EngineLike, EngineStats, Request, Sampling
from drawloom.errors import ReplicaError
from drawloom.jobs.bench.workload import Prompt, Workload

PAGE_TOKENS = 16  # of transformers' own cache; its default of 256 is for GPUs


@dataclass(frozen=True)
class Run:
    """One pass over a workload: answers without their end-of-text token, seconds, and what else the system can say."""

    token_ids: tuple[tuple[int, ...], ...]
    seconds: float
    details: dict[str, float] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.token_ids))


class System(Protocol):
    """Something that answers the prompts of a workload."""

    name: str

    def run(self, workload: Workload) -> Run: ...


class Drawloom:
    """Our engine with one recipe. Prefix sharing is off in it, so that a second pass finds nothing to reuse."""

    def __init__(self, engine: EngineLike, decoder: str, note: str = "", params: Mapping[str, float | int | str] | None = None) -> None:
        self.name = f"drawloom {decoder}" + (f", {note}" if note else "")
        self._engine, self._decoder, self._params = engine, decoder, params or {}
        self._passes = 0

    def run(self, workload: Workload) -> Run:
        before, started, answers = self._engine.stats(), time.perf_counter(), []
        for chunk in workload.chunks:
            answers += self._answer(chunk, workload.ends)
        return Run(tuple(answers), time.perf_counter() - started, _difference(before, self._engine.stats()))

    def _answer(self, chunk: Sequence[Prompt], ends: bool) -> list[tuple[int, ...]]:
        self._passes += 1
        names = [f"{self._decoder}-{self._passes}-{index}" for index in range(len(chunk))]
        for name, prompt in zip(names, chunk, strict=True):
            sampling = Sampling(max_tokens=prompt.num_new, temperature=0.0, ignore_eos=not ends)
            self._engine.add(Request(name, prompt.token_ids, sampling, decoder=self._decoder, decoder_params=self._params))
        done: dict[str, tuple[int, ...]] = {}
        while self._engine.num_unfinished:
            for completion in self._engine.step():
                if completion.error:
                    raise ReplicaError(f"the engine refused a benchmark prompt: {completion.error[1]}")
                done[completion.id] = completion.samples[0].token_ids
        return [done[name] for name in names]


class Generate:
    """transformers `generate`: prompts padded on the left, every row runs until the longest of its batch is done."""

    def __init__(
        self, network: PreTrainedModel, eos_token_ids: tuple[int, ...], lookup: int = 0, assistant: PreTrainedModel | None = None
    ) -> None:
        """`lookup` > 0 drafts that many tokens by transformers' own prompt lookup, `assistant` as many as transformers thinks right; it
        offers both for one prompt at a time."""
        self.name = "transformers lookup" if lookup else "transformers assisted" if assistant is not None else "transformers"
        self._network, self._eos, self._lookup = network, eos_token_ids, lookup
        self._more: dict[str, Any] = {} if assistant is None else {"assistant_model": assistant}

    def run(self, workload: Workload) -> Run:
        started, answers = time.perf_counter(), []
        with _silent(self._network):
            for chunk in workload.chunks:
                answers += self._answer(chunk, workload.ends)
        return Run(tuple(answers), time.perf_counter() - started)

    def _answer(self, chunk: Sequence[Prompt], ends: bool) -> list[tuple[int, ...]]:
        width = max(len(prompt.token_ids) for prompt in chunk)
        tokens = torch.zeros(len(chunk), width, dtype=torch.int64)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(chunk):
            tokens[row, width - len(prompt.token_ids) :] = torch.tensor(prompt.token_ids)
            mask[row, width - len(prompt.token_ids) :] = 1
        lookup = {"prompt_lookup_num_tokens": self._lookup} if self._lookup else {}
        config = _greedy(max(prompt.num_new for prompt in chunk), self._eos if ends else (), **lookup)
        found: Any = self._network.generate(inputs=tokens, attention_mask=mask, generation_config=config, **self._more)  # pyright: ignore[reportCallIssue]
        rows = found[:, width:].tolist()
        return [_until(row[: prompt.num_new], self._eos if ends else ()) for row, prompt in zip(rows, chunk, strict=True)]


class Continuous:
    """transformers' continuous batching; its manager is started before the clock and stopped after it, and shares no prefixes."""

    name = "transformers continuous"

    def __init__(self, network: PreTrainedModel, eos_token_ids: tuple[int, ...]) -> None:
        self._network, self._eos = network, eos_token_ids

    def run(self, workload: Workload) -> Run:
        seconds, answers = 0.0, []
        eos = list(self._eos) if workload.ends else -1
        with _silent(self._network), torch.inference_mode(), self._manager(workload) as manager:
            for chunk in workload.chunks:
                started = time.perf_counter()
                names = [manager.add_request(list(p.token_ids), max_new_tokens=p.num_new, eos_token_id=eos) for p in chunk]
                done = _collect(manager, len(names))
                seconds += time.perf_counter() - started
                answers += [_until(done[name], self._eos if workload.ends else ()) for name in names]
        return Run(tuple(answers), seconds)

    def _manager(self, workload: Workload) -> Any:
        longest, new = (max(sizes) for sizes in zip(*((len(p.token_ids), p.num_new) for p in workload.prompts), strict=True))
        pages = workload.batch * (-(-(longest + new) // PAGE_TOKENS) + 1)
        settings = ContinuousBatchingConfig(page_size=PAGE_TOKENS, num_blocks=pages, max_batch_tokens=512, allow_block_sharing=False)
        hints = WorkloadHints(max_prompt_length=longest, max_generated_length=new, num_requests=workload.batch)
        config = _greedy(new, self._eos if workload.ends else (-1,))
        network: Any = self._network
        return network.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=settings, workload_hints=hints
        )


def _collect(manager: Any, number: int) -> dict[str, list[int]]:
    done: dict[str, list[int]] = {}
    while len(done) < number:
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise ReplicaError("transformers' continuous batching stopped before its work was done")
        if result is not None and result.error:
            raise ReplicaError(f"transformers' continuous batching failed: {result.error}")
        if result is not None and result.is_finished():
            done[result.request_id] = result.generated_tokens
    return done


def _greedy(num_new: int, eos: Sequence[int], **more: Any) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=num_new, do_sample=False, eos_token_id=list(eos) or None, pad_token_id=0, **more)


@contextmanager
def _silent(network: PreTrainedModel) -> Iterator[None]:
    """Without the checkpoint's own generation defaults, which transformers would mix into ours (an end-of-text token, sampling)."""
    kept = network.generation_config
    network.generation_config = GenerationConfig()
    try:
        yield
    finally:
        network.generation_config = kept


def _until(tokens: Sequence[int], eos: Sequence[int]) -> tuple[int, ...]:
    """What stands before the first end-of-text token."""
    ends = [index for index, token in enumerate(tokens) if token in eos]
    return tuple(tokens[: ends[0]] if ends else tokens)


def _difference(before: EngineStats, after: EngineStats) -> dict[str, float]:
    """What one pass cost: forwards, tokens a forward, acceptance, and the share of a step outside the model's forward."""
    steps, step_s = after.steps - before.steps, after.step_s - before.step_s
    drafted = after.drafted - before.drafted
    return {
        "forwards": steps,
        "tokens_per_forward": (after.tokens - before.tokens) / max(steps, 1),
        "acceptance": (after.accepted - before.accepted) / max(drafted, 1),
        "outside_forward": 1.0 - (after.forward_s - before.forward_s) / step_s if step_s else 0.0,
    }
