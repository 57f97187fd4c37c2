"""Check a verifier of your own, with tests/decoders on PYTHONPATH:

pytest -p exact.plugin tests/decoders/exact/test_offered.py -k targets --verifier package.module:function --takes SHAPES

The function takes (root, p, q, dice) as those of verifiers.py do: a drafted tree, the target's and the
drafter's law after a text, and dice that flip and draw. SHAPES: chains (sampled), trees (drawn independently), distinct (drawn without
replacement), fixed (a function of the text), by comma.
"""

import importlib
from collections.abc import Callable

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--verifier", default="exact.verifiers:rejection", help="module:function")
    parser.addoption("--takes", default="chains", help="chains, trees, distinct, fixed; by comma")


@pytest.fixture
def offered(request: pytest.FixtureRequest) -> Callable:
    module, _, name = str(request.config.getoption("--verifier")).partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.fixture
def takes(request: pytest.FixtureRequest) -> list[str]:
    return str(request.config.getoption("--takes")).split(",")
