"""Keeping Ray off the terminal: what matters of it is in the job's progress and errors, and all of it in Ray's session folder."""

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Only Python's sys.stderr, and whoever holds the real sys.stdout already, reach the terminal.

    Ray prints the deaths of workers to sys.stdout, and its C++ part writes to file descriptor 2, where no level stops it from sounding
    an alarm about every actor pool.
    """
    with open(os.devnull, "w") as hole, contextlib.redirect_stdout(hole), _python_only(hole.fileno()):
        yield


@contextmanager
def _python_only(hole: int) -> Iterator[None]:
    """Let file descriptor 2 end in `hole`, and sys.stderr go on where it went."""
    sys.stderr.flush()
    saved = os.dup(2)
    with os.fdopen(os.dup(2), "w", buffering=1) as python, contextlib.redirect_stderr(python):
        os.dup2(hole, 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
