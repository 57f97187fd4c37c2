"""One Ray cluster for all tests of a session, in processes of its own, which jobs join by its address; and who runs which tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run beside each other: one thread each, before torch starts its own


def pytest_configure(config: pytest.Config) -> None:
    # Ray builds its own default context from its own deprecated names.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:ray.data.context")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several workers (`pytest -n 2 --dist loadgroup --no-loadscope-reorder`) a file's tests stay together; those that run clusters
    and servers begin, all on one worker, while the other takes up the rest."""
    for item in items:
        place = Path(item.path).relative_to(Path(__file__).parent)
        item.add_marker(pytest.mark.xdist_group("pipelines" if place.parts[0] == "pipelines" else str(place)))
    items.sort(key=lambda item: "pipelines" not in Path(item.path).parts)


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
