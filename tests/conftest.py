"""One Ray cluster for all tests of a session, in processes of its own, which jobs join by its address; and who runs which tests."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run beside each other: one thread each, before torch starts its own


def pytest_configure(config: pytest.Config) -> None:
    # Ray builds its own default context from its own deprecated names.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:ray.data.context")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """With several workers (`pytest -n 2 --dist loadgroup`) a file's tests stay together, and those that start clusters and servers all
    run on one worker, one after the other."""
    for item in items:
        place = Path(item.path).relative_to(Path(__file__).parent)
        group = "jobs" if place.parts[0] in ("pipelines", "jobs") else str(place)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """The address of a cluster of one node with 6 logical CPUs. Nobody is connected to it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 6, "include_dashboard": False})
    assert cluster.address is not None
    try:
        yield cluster.address
    finally:
        cluster.shutdown()
