"""A child process that owns an engine, seen from its parent: start, talk, and how it died."""

import collections
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from multiprocessing.connection import Pipe
from typing import IO, Any

TAIL_BYTES = 2000
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Death:
    """`code`: died (a signal or an exit), raised (an exception of the engine), hang, unfit (ReplicaError), setting (SettingError)."""

    code: str
    what: str  # one line
    signal: str | None = None  # that ended it
    tail: str = ""  # the last of its stderr


class EngineProcess:
    """One life of an engine. The thread that creates it must outlive it: the child dies with that thread."""

    def __init__(self, build: bytes, threads: int) -> None:
        """`build`: a pickled function without arguments that returns the engine. `threads`: of torch and OpenMP."""
        self.pipe, theirs = Pipe()
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
        # -P keeps the working directory off sys.path: a folder `kernels` there would be imported by transformers.
        command = [sys.executable, "-P", "-m", "drawloom.actors.child", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        theirs.close()
        self._said: collections.deque[bytes] = collections.deque(maxlen=200)
        self._listener = threading.Thread(target=self._listen, name="engine output", daemon=True)
        self._listener.start()
        self._last_words: Death | None = None
        self.send_bytes(build)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: tuple[Any, ...]) -> None:
        """Hand a message down; a dead child is noticed by `receive`, not here."""
        self.send_bytes(pickle.dumps(message))

    def send_bytes(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(message)

    def receive(self) -> tuple[Any, ...] | None:
        """The next message, or None when the child is dead and has nothing left to say. Blocks."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            return None
        if message[0] in ("raised", "unfit", "setting"):
            self._last_words = Death(message[0], message[1])
        return message

    def kill(self, why: Death) -> None:
        self._last_words = why
        self._process.kill()

    def death(self) -> Death:
        """Bury the child and say how it died."""
        self._process.kill()
        status = self._process.wait()
        self._listener.join(timeout=2.0)  # a grandchild may still hold the other end
        self.pipe.close()
        tail = b"".join(self._said)[-TAIL_BYTES:].decode(errors="replace").strip()
        known = self._last_words or _death(status)
        return replace(known, tail=tail)

    def _listen(self) -> None:
        stream: IO[bytes] | None = self._process.stdout
        assert stream is not None
        for line in stream:
            self._said.append(line)
            sys.stderr.write(line.decode(errors="replace"))
        stream.close()


def _death(status: int) -> Death:
    """A return code in words: `signal SIGKILL` or `exit code 3`."""
    if status >= 0:
        return Death("died", f"exit code {status}")
    known = {number.value: number.name for number in signal.Signals}
    name = known.get(-status, str(-status))
    return Death("died", f"signal {name}", name)
