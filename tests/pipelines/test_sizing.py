"""Units sized by the input alone, and cut as a plan of that size would have cut them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drawloom.pipelines.sizing import COARSE_ROWS, FINE_ROWS, sized
from drawloom.pipelines.sources import find_inputs
from drawloom.pipelines.units import Plan, plan_units


def plan(path: Path, num_rows: int, ending: str) -> tuple[Plan, list]:
    lines = [{"prompt": f"row {place} " + "x" * (place % 13)} for place in range(num_rows)]
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(lines), path / "in.parquet")
    else:
        (path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = find_inputs(str(path))
    return plan_units(files, FINE_ROWS, None), files


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
@pytest.mark.parametrize(("num_rows", "rows_per_unit"), [(1, 8), (72, 8), (1000, 8), (10_000, 16), (100_000, COARSE_ROWS)])
def test_a_sized_plan_is_the_plan_of_that_size(tmp_path: Path, ending: str, num_rows: int, rows_per_unit: int) -> None:
    fine, files = plan(tmp_path, num_rows, ending)
    found = sized(fine)
    assert found.rows_per_unit == rows_per_unit
    assert list(found.units()) == list(plan_units(files, rows_per_unit, None).units())
