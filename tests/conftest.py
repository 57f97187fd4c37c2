"""One Ray cluster for all tests of a session, in processes of its own; jobs join it by its address."""

from collections.abc import Iterator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # Ray builds its own default context from its own deprecated names.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:ray.data.context")


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
