"""A machine is lost in the middle of a job, with a replica on it that fits nowhere else."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_rig import content, job, plainly, prompts, run, write

from drawloom.pipelines.progress import Tally

ROWS = 80
# A hard loss is noticed within a second; Ray's own default is sixteen.
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 4,
}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head that can only read, and two nodes that hold one replica each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": HEALTH})
    cluster.add_node(num_cpus=2)
    cluster.add_node(num_cpus=2)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def test_a_node_removed_mid_job_loses_no_row(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "in.parquet", prompts(ROWS, every="[[fake slow 0.5]]"))
    output = tmp_path / "out"
    replicas, original = set(), Tally.seen

    def look(tally: Tally, snapshot) -> None:
        replicas.update(snapshot.replicas)
        original(tally, snapshot)

    monkeypatch.setattr(Tally, "seen", look)
    killer = threading.Thread(target=remove_a_node, args=(cluster, output))
    killer.start()
    settings = job(
        source, output, address=cluster.address, cpus_per_replica=2, rows_per_unit=5, lost_after_s=6, engine={"max_sequences": 4}
    )
    result = run(settings)
    killer.join()
    assert (result.num_rows, result.num_errors) == (ROWS, 0)
    assert content(output) == plainly(job(source, tmp_path / "plain"))
    assert len(replicas) == 3  # two at first, one in the round after the loss


def remove_a_node(cluster: Any, output: Path) -> None:
    """Once some parts are there, a node dies hard, with its replica in the middle of its units."""
    while len(list(output.glob("part-*"))) < 3:
        time.sleep(0.05)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
