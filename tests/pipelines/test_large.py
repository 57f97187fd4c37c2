"""Many rows in one row group: every replica gets its share, and the driver stays small."""

import re
import threading
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_rig import command

from drawloom.jobs.verify import verify

DRIVER_BYTES = 600 * 1024 * 1024


def watch(process: psutil.Process, peaks: list[int]) -> None:
    """The largest resident size that the kernel has seen of a process, until it is gone."""
    while True:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        if found is None:  # it has ended, and nobody has asked for its result yet
            return
        peaks.append(int(found[1]) * 1024)
        time.sleep(0.2)


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_one_large_row_group(count: int, ray_address: str, tmp_path: Path) -> None:
    table = pa.table({"id": range(count), "prompt": [f"short row {row}" for row in range(count)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=count)
    assert pq.ParquetFile(tmp_path / "in.parquet").num_row_groups == 1
    arguments = ["generate", str(tmp_path / "in.parquet"), str(tmp_path / "out"), "--model", "fake", "--max-tokens", "4"]
    driver = command(*arguments, "--replicas", "3", "--cpus-per-replica", "1", "--progress", "lines", "--address", ray_address)
    peaks: list[int] = []
    watcher = threading.Thread(target=watch, args=(psutil.Process(driver.pid), peaks))
    watcher.start()
    said, _ = driver.communicate(timeout=600)
    watcher.join()
    assert driver.returncode == 0, said
    assert max(peaks) < DRIVER_BYTES
    line = said.split("rows by replica")[1].splitlines()[0]
    shares = [int(count.replace(",", "")) for count in re.findall(r"\d[\d,]*\d", line)]
    assert len(shares) == 3
    assert sum(shares) == count
    assert min(shares) > 0.2 * count
    verdict = verify(str(tmp_path / "out"))
    assert verdict.ok, verdict.problems
    assert verdict.sums["completed"] == count
