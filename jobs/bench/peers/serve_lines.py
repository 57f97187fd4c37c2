"""The loop of the line protocol (see this folder's __init__), shared by the scripts beside it."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import TextIO

Answer = Callable[[list[list[int]], list[int], bool], list[list[int]]]


def serve(packages: Sequence[str], build: Callable[[], Answer]) -> None:
    """Build the engine, then answer lines until stdin ends. Only the protocol reaches stdout; the libraries' own prints go to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answer = build()
    _say(out, {"ready": True, "versions": {name: version(name) for name in packages}})
    for line in sys.stdin:
        wanted = json.loads(line)
        started = time.perf_counter()
        token_ids = answer(wanted["prompts"], wanted["num_new"], wanted["ends"])
        _say(out, {"token_ids": token_ids, "seconds": time.perf_counter() - started})


def _say(out: TextIO, value: object) -> None:
    print(json.dumps(value), file=out, flush=True)
