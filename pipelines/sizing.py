"""How many rows make a unit when nobody says: by the number of rows of the input alone, so that every run of it agrees."""

from dataclasses import replace

from drawloom.pipelines.units import Plan, PlannedFile

FINE_ROWS = 8  # a plan is first cut this finely; also the smallest unit, so that a small file still feeds several replicas
COARSE_ROWS = 128  # the largest: what a crash can cost, and what keeps ten million rows below a hundred thousand parts
WANTED_UNITS = 512


def sized(fine: Plan) -> Plan:
    """A plan in units of FINE_ROWS, made coarser: about WANTED_UNITS units within the two limits."""
    assert fine.rows_per_unit == FINE_ROWS
    factor = min(max(fine.num_rows // WANTED_UNITS, FINE_ROWS), COARSE_ROWS) // FINE_ROWS
    return Plan(tuple(_coarser(one, factor) for one in fine.files), fine.schema, FINE_ROWS * factor)


def _coarser(one: PlannedFile, factor: int) -> PlannedFile:
    """Every factor-th offset of a text file, and its end."""
    kept = one.offsets[:-1:factor] + one.offsets[-1:]
    return replace(one, offsets=kept)
