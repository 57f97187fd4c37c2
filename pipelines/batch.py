"""Units through replicas: Ray Data reads them, a pool of replicas completes and commits them, the driver sees one manifest entry each.

A unit is one row of the dataset and one block, so that every replica gets work from the smallest file and nothing waits for a batch.
Many units are in flight in a replica; each is committed by the replica itself the moment its last row has ended, because what a Ray
Data task yields is not durable before the whole task is. Reading and rendering prompts are CPU tasks of their own.
"""

import asyncio
import functools
import pickle
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray
from ray import cloudpickle
from ray.data import ActorPoolStrategy, Dataset, TaskPoolStrategy

from drawloom.actors.build import build_text
from drawloom.actors.keeper import ReplicaSettings
from drawloom.actors.replica import Replica
from drawloom.actors.request import Completion, Request
from drawloom.actors.settings import EngineSettings
from drawloom.errors import DrawloomError
from drawloom.models.settings import ModelSettings
from drawloom.models.text import Text
from drawloom.pipelines.commits import CommitLog
from drawloom.pipelines.manifests import part_path
from drawloom.pipelines.outcomes import Outcome, outcome_table
from drawloom.pipelines.past import engine_with_past
from drawloom.pipelines.quarantine import MAX_STARTS, ReadGuard, one_by_one, reading
from drawloom.pipelines.reading import UnitReader
from drawloom.pipelines.receipts import Receipt, outcomes_of, slowest
from drawloom.pipelines.rows import RowSettings, requests_of
from drawloom.pipelines.shape import READERS, Shape
from drawloom.pipelines.units import Unit

UNITS_PER_TASK = 16  # that one reading task yields, one after the other
BEAT_S = 0.5


@dataclass(frozen=True)
class Spec:
    """All that a worker must know. Picklable."""

    log: CommitLog
    schema: pa.Schema  # of the input
    rows: RowSettings
    model: ModelSettings
    engine: EngineSettings
    replica: ReplicaSettings


@dataclass(frozen=True)
class Work:
    """A unit that has been read."""

    unit: Unit
    table: pa.Table
    requests: Sequence[Request | Outcome]


def receipts(spec: Spec, units: Sequence[Unit], shape: Shape, units_in_flight: int, board: Any) -> Iterator[Receipt]:
    """Complete and commit units; yields each as it is committed, in no order. Needs a connected Ray (`pipelines/cluster.py`)."""
    flow: Any = dataset(spec, units, shape, units_in_flight, board)
    for block in flow.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield from (pickle.loads(cell.as_py()) for cell in block.column("receipt"))


def dataset(spec: Spec, units: Sequence[Unit], shape: Shape, units_in_flight: int, board: Any) -> Dataset:
    """The flow as a Ray Dataset of receipts."""
    per_task = max(1, min(UNITS_PER_TASK, len(units) // (4 * shape.replicas)))
    tasks = [{"units": pickle.dumps(units[start : start + per_task])} for start in range(0, len(units), per_task)]
    packed = cloudpickle.dumps(spec)
    pool = ActorPoolStrategy(
        size=min(shape.replicas, len(units)),
        max_concurrent_calls_per_actor=units_in_flight,
        max_tasks_in_flight_per_actor=units_in_flight,  # no queue in front of a replica: what it cannot take, another can
    )
    reader: Any = read
    works = ray.data.from_items(tasks, override_num_blocks=len(tasks)).map_batches(
        reader,
        batch_size=1,
        batch_format="pyarrow",
        compute=TaskPoolStrategy(size=min(READERS, len(tasks))),
        fn_kwargs={"spec": packed, "board": board},
        num_cpus=1,
        memory=1,  # a byte, so that the stages differ: Ray Data would fuse equal ones, and reading would block the replicas' event loops
    )
    return works.map_batches(
        Generate,
        batch_size=1,
        batch_format="pyarrow",
        compute=pool,
        fn_constructor_kwargs={"spec": packed, "board": board},
        num_cpus=shape.cpus,
        num_gpus=shape.gpus or None,
    )


def read(batch: pa.Table, spec: bytes, board: Any) -> Iterator[pa.Table]:
    """Units of one task, each as a table of one row that holds its `Work`."""
    with telling(board):
        settings, reader, text = _opened(spec)
        for unit in pickle.loads(batch.column("units")[0].as_py()):
            starts: Any = ray.get(board.try_row.remote(reading(unit.id)))
            guard = _guard(board) if starts > MAX_STARTS else None
            rows = reader.read(unit)
            requests = requests_of(unit, rows, settings.log.roles, settings.rows, text, guard)
            if guard is not None:
                guard.close()
            board.end_row.remote(reading(unit.id))
            yield pa.table({"work": pa.array([pickle.dumps(Work(unit, rows.table, requests))], pa.large_binary())})


def _guard(board: Any) -> ReadGuard:
    def try_row(row: str) -> Any:
        return ray.get(board.try_row.remote(row))

    return ReadGuard(try_row, board.end_row.remote)


@contextmanager
def telling(board: Any) -> Iterator[None]:
    """Tell the driver what ends the job, as it is; a bug is told with its traceback."""
    try:
        yield
    except DrawloomError as error:
        ray.get(board.fail.remote(error))
        raise
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except Exception:
        ray.get(board.fail.remote(DrawloomError(f"a worker failed: {traceback.format_exc(limit=-8).strip()}")))
        raise


@functools.lru_cache(maxsize=1)
def _opened(spec: bytes) -> tuple[Spec, UnitReader, Text]:
    """Kept by a worker's process from task to task: its place in the file, and the tokenizer."""
    settings: Spec = pickle.loads(spec)
    return settings, UnitReader(settings.schema, settings.rows.columns), build_text(settings.model)


class Generate:
    """A replica as Ray Data's pool actor: units in, receipts out, many at a time."""

    def __init__(self, spec: bytes, board: Any) -> None:
        self._spec: Spec = pickle.loads(spec)
        self._board, self._name = board, uuid.uuid4().hex
        self._writers = ThreadPoolExecutor(2)
        rows = self._spec.rows
        build = functools.partial(engine_with_past, self._spec.model, self._spec.engine, rows.decoder, rows.decoder_params)
        self._replica = Replica(build, self._spec.replica)
        ray.get(board.join.remote(self._name, ray.get_runtime_context().current_actor))
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        with suppress(DrawloomError), telling(board):  # raised again by the first unit: Ray prints pages about constructors that raise
            self._replica.wait_ready()

    async def __call__(self, batch: pa.Table) -> pa.Table:
        with telling(self._board):
            receipt = await self._receipt(pickle.loads(batch.column("work")[0].as_py()))
        return pa.table({"receipt": pa.array([pickle.dumps(receipt)], pa.binary())})

    async def _receipt(self, work: Work) -> Receipt:
        """Complete and commit one unit."""
        starts = await self._board.start.remote(work.unit.id, self._name)
        receipt = await self._in_thread(self._adopted, work.unit) if starts > 1 else None
        if receipt is None:
            receipt = await self._in_thread(self._commit, work, await self._complete(work, starts))
        await self._board.end.remote(work.unit.id, self._name, work.unit.num_rows)
        return receipt

    async def _complete(self, work: Work, starts: int) -> list[Completion]:
        requests = [one for one in work.requests if isinstance(one, Request)]
        if starts <= MAX_STARTS:
            return await self._replica.submit(requests)
        return await one_by_one(requests, self._replica.submit, self._board.try_row.remote, self._board.end_row.remote)

    def _commit(self, work: Work, completions: Sequence[Completion]) -> Receipt:
        outcomes = list(outcomes_of(work.requests, completions))
        table = outcome_table(work.table, outcomes, self._spec.log.roles)
        return Receipt(self._spec.log.commit(work.unit, table), slowest(work.unit, outcomes))

    def _adopted(self, unit: Unit) -> Receipt | None:
        """The receipt of a unit that an earlier start had committed before its actor was lost."""
        if self._spec.log.store.stat(part_path(unit.id)) is None:
            return None
        return Receipt(self._spec.log.adopt(unit), ())

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._writers, function, *arguments)

    def _beat(self) -> None:
        """Tell the board that this process lives."""
        while True:
            self._board.beat.remote(self._name, self._replica.stats())
            threading.Event().wait(BEAT_S)
