"""The conformance test that plugin.py runs on anybody's verifier, and a run of it on one of ours and on a wrong one."""

import subprocess
import sys
from pathlib import Path

import pytest

from exact import kinds
from exact.drafts import bias, random_model

HERE = Path(__file__).parent


@pytest.mark.parametrize("seed", range(4))
def test_the_law_is_the_targets(request: pytest.FixtureRequest, seed: int) -> None:
    if not request.config.pluginmanager.hasplugin("exact.plugin"):
        verifier, shapes = kinds.verifiers.rejection, ["chains"]
    else:
        verifier, shapes = request.getfixturevalue("offered"), request.getfixturevalue("takes")
    for shape in shapes:
        for name, draft in kinds.KINDS[shape].items():
            vocab = 2 if "deep" in name or "binary" in name else 3
            assert bias(verifier, draft, random_model(seed, vocab), random_model(seed + 100, vocab), 3) == 0, name


def offered(verifier: str, takes: str) -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "exact.plugin", "-p", "no:cacheprovider", "-k", "targets"]
    command += [str(HERE / "test_offered.py"), "--verifier", verifier, "--takes", takes]
    done = subprocess.run(command, cwd=HERE.parents[2], capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(HERE.parent)})
    assert "error" not in done.stdout.lower() or done.returncode == 1, done.stdout
    return done.returncode


@pytest.mark.parametrize(
    ("verifier", "takes", "passes"),
    [("specinfer", "distinct", False), ("topk", "chains,distinct", True)],
)
def test_anybody_can_run_it(verifier: str, takes: str, passes: bool) -> None:
    assert offered(f"exact.verifiers:{verifier}", takes) == (0 if passes else 1)
