"""One replica: an engine in a process of its own, an async door in front of it, and a keeper that survives the engine's death.

When the engine's process dies, the rows that were in flight are bisected in fresh processes (`actors/quarantine.py`) until the row that
kills is alone; it ends as an error with the signal and the last lines of stderr, and everybody else completes as if nothing had happened.
Free of ray: Ray Data and Ray Serve wrap the same class.
"""

import asyncio
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from drawloom.actors.keeper import Batch, Keeper, ReplicaSettings, ReplicaStats
from drawloom.actors.request import Completion, EngineLike, Request


class Replica:
    """Rows in, completions out, whatever happens to the engine. `build` is pickled and called in the engine's process.

    `submit` raises ReplicaError when no engine can be kept alive, SettingError when `build` refuses its settings.
    """

    def __init__(self, build: Callable[[], EngineLike], settings: ReplicaSettings | None = None) -> None:
        self._keeper = Keeper(pickle.dumps(build), settings or ReplicaSettings())
        self._thread = threading.Thread(target=self._keeper.run, name="keeper", daemon=True)
        self._thread.start()

    def wait_ready(self) -> None:
        """Return when the first engine stands; raise what kept it from standing."""
        self._keeper.ready.result()

    async def submit(self, requests: Sequence[Request]) -> list[Completion]:
        """Completions in the order of `requests`. Cancelling the call cancels its rows."""
        return await asyncio.wrap_future(self.submit_soon(requests))

    def submit_soon(self, requests: Sequence[Request]) -> Future[list[Completion]]:
        """`submit` for callers without an event loop."""
        batch = Batch(Future(), [None] * len(requests), [], len(requests))
        if not requests:
            batch.future.set_result([])
            return batch.future
        batch.future.add_done_callback(lambda future: self._keeper.tell("cancel", batch) if future.cancelled() else None)
        self._keeper.tell("submit", (batch, list(requests)))
        return batch.future

    def stats(self) -> ReplicaStats:
        return self._keeper.stats

    def close(self) -> None:
        """End the engine's process; rows that have not ended fail with ReplicaError."""
        self._keeper.tell("close", None)
        self._thread.join(timeout=30.0)
