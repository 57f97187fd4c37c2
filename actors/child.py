"""The process that owns an engine: reads requests from a pipe, steps the engine, writes completions back. Started by `actors/replica.py`.

Messages down: the build function first, then ("add", requests), ("cancel", id).
Messages up: ("ready",), ("done", completions, EngineStats) as a result or a sign of life, ("raised" | "unfit", text) as the last words.
"""

import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from drawloom.actors.request import Completion, EngineLike, Request, Stats
from drawloom.errors import ReplicaError, RowError, SettingError

SIGN_OF_LIFE_S = 0.25
PR_SET_PDEATHSIG = 1
Message = tuple[Any, ...]


def main(descriptor: int) -> None:
    """Serve one engine over the pipe until told to close or until the parent is gone."""
    os.set_inheritable(descriptor, False)
    _die_with_parent()
    pipe = Connection(descriptor)
    try:
        build: Callable[[], EngineLike] = pipe.recv()
        inbox = _reader(pipe)
        engine = build()
        pipe.send(("ready",))
        run(engine, inbox, pipe.send)
    except SettingError as error:
        _last_words(pipe, "setting", str(error))
    except ReplicaError as error:
        _last_words(pipe, "unfit", str(error))
    except Exception as error:  # noqa: BLE001 the replica border: the parent decides whose fault this was
        traceback.print_exc()
        _last_words(pipe, "raised", f"{type(error).__name__}: {error}")


def run(engine: EngineLike, inbox: "queue.SimpleQueue[Message]", send: Callable[[Message], None]) -> NoReturn:
    """Step the engine while it has work. Exceptions of `step` are the engine's death and pass through."""
    last_sent_s = 0.0
    while True:
        done: list[Completion] = []
        for message in _drain(inbox, wait=engine.num_unfinished == 0):
            if message[0] == "add":
                done += [failed for request in message[1] if (failed := _add(engine, request))]
            else:
                engine.cancel(message[1])
        if engine.num_unfinished:
            done += engine.step()
        if done or time.monotonic() - last_sent_s > SIGN_OF_LIFE_S:
            send(("done", done, engine.stats()))
            last_sent_s = time.monotonic()


def _add(engine: EngineLike, request: Request) -> Completion | None:
    """Queue one row, or its completion when the row itself is at fault."""
    try:
        engine.add(request)
        return None
    except RowError as error:
        fault = (error.code, str(error))
    except Exception as error:  # noqa: BLE001 the row border: whatever `add` raises is this row's
        fault = ("internal", f"{type(error).__name__}: {error}")
    return Completion(request.id, (), len(request.prompt_token_ids), Stats(), request.decoder, error=fault)


def _drain(inbox: "queue.SimpleQueue[Message]", wait: bool) -> Iterator[Message]:
    """Every message that is there; with `wait`, at least one."""
    if wait:
        yield inbox.get()
    with contextlib.suppress(queue.Empty):
        while True:
            yield inbox.get_nowait()


def _reader(pipe: Connection) -> "queue.SimpleQueue[Message]":
    """A queue filled from the pipe by a thread; the process ends at once when the parent closes its end."""
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def read() -> None:
        try:
            while True:
                inbox.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)

    threading.Thread(target=read, name="requests", daemon=True).start()
    return inbox


def _last_words(pipe: Connection, kind: str, text: str) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(OSError):
        pipe.send((kind, text))
    os._exit(1)  # threads of libraries may hang in their own clean-up


def _die_with_parent() -> None:
    """Die when the parent thread does, ignore the terminal's Ctrl-C, and be the first to go when memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")


if __name__ == "__main__":
    main(int(sys.argv[1]))
