"""What an output folder holds, and a proof that every input row has exactly one outcome. Reads only; needs no model and no input."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from drawloom.errors import DrawloomError, SettingError
from drawloom.pipelines.commits import CommitLog, log_of, read_plan
from drawloom.pipelines.identity import StoredJob, load_job
from drawloom.pipelines.ledger import SUCCESS, Ledger, read_ledger, totals
from drawloom.pipelines.manifests import Entry, decode_part, describe, load_success, part_path
from drawloom.pipelines.objects import Store, before_start
from drawloom.pipelines.store import open_store
from drawloom.pipelines.units import Plan, Unit, listing_digest

DEEP_THREADS = 8


@dataclass(frozen=True)
class Folder:
    """An output folder, read once."""

    store: Store
    stored: StoredJob
    plan: Plan
    ledger: Ledger
    success: Mapping[str, Any] | None  # what _SUCCESS holds


@dataclass(frozen=True)
class Verdict:
    """The result of a verification. `sums` are ledger.totals of the units that are in order."""

    output: str
    problems: tuple[str, ...]
    sums: Mapping[str, Any]
    rows: int  # of the input
    units: int
    deep: bool

    @property
    def ok(self) -> bool:
        return not self.problems


def read_folder(output: str) -> Folder:
    """Raises SettingError when there is no job in this folder, DrawloomError when its records are damaged."""
    with before_start():
        store = open_store(output)
        stored = load_job(store.brisk())
        if stored is None:
            raise SettingError(f"{store.uri} holds no job; name a folder that `generate` wrote")
        plan = read_plan(store, stored)
        try:
            success = load_success(store.read(SUCCESS))
        except FileNotFoundError:
            success = None
        return Folder(store, stored, plan, read_ledger(store), success)


def check(folder: Folder, deep: bool) -> Verdict:
    """Prove from the records alone that the outcomes partition the input rows; `deep` also reads every part and hashes it again."""
    problems = list(_plan_problems(folder))
    log = log_of(folder.store, folder.stored, folder.plan)
    sound: list[tuple[Unit, Entry]] = []
    for unit in folder.plan.units():
        entry = folder.ledger.settled(unit.id)
        if wrong := _unit_problem(folder, unit, entry):
            problems.append(wrong)
        elif entry is not None:
            sound.append((unit, entry))
    if deep:
        with ThreadPoolExecutor(DEEP_THREADS) as threads:
            problems += [wrong for wrong in threads.map(lambda pair: _part_problem(log, *pair), sound) if wrong]
    sums = totals(entry for _, entry in sound)
    problems += _strays(folder)
    problems += _end_problems(folder, sums)
    return Verdict(folder.store.uri, tuple(problems), sums, folder.plan.num_rows, folder.plan.num_units, deep)


def _plan_problems(folder: Folder) -> Iterator[str]:
    """The plan is the one job.yaml names, and its units cover each file from its first row to its last without gap or overlap."""
    facts, plan = folder.stored.facts, folder.plan
    for key, value in (("input", listing_digest(plan)), ("rows", plan.num_rows), ("units", plan.num_units)):
        if facts.get(key) != value:
            yield f"job.yaml says {key} {facts.get(key)}, the plan {value}"
    reached: dict[str, int] = {}
    for unit in plan.units():
        row = reached.get(unit.file.name, 0)
        if unit.start != row or unit.stop <= unit.start:
            yield f"unit {unit.id} covers rows {unit.start} to {unit.stop} of {unit.file.name}, where row {row} comes next"
        reached[unit.file.name] = unit.stop
    for one in plan.files:
        if reached.get(one.file.name, 0) != one.num_rows:
            yield f"{one.file.name} has {one.num_rows} rows, the plan covers {reached.get(one.file.name, 0)}"


def _unit_problem(folder: Folder, unit: Unit, entry: Entry | None) -> str | None:
    part, known = folder.ledger.parts.get(part_path(unit.id)), folder.ledger.entries.get(unit.id, ())
    where = f"unit {unit.id} (rows {unit.start} to {unit.stop} of {unit.file.name})"
    if part is None:
        return f"{where}: the part is gone, its entry is there" if known else f"{where}: no outcome yet"
    if entry is None:
        sizes = ", ".join(str(one.data_bytes) for one in known)
        return f"{where}: the part has {part.size} bytes, its entry says {sizes}" if known else f"{where}: the part has no entry"
    if entry.ordinal != unit.ordinal or entry.rows != unit.num_rows:
        return f"{where}: the entry is of unit number {entry.ordinal} with {entry.rows} rows"
    if entry.completed + entry.errors != entry.rows or sum(entry.error_codes.values()) != entry.errors:
        return f"{where}: {entry.completed} completed and {entry.errors} failed do not make {entry.rows} rows"
    return None


def _part_problem(log: CommitLog, unit: Unit, entry: Entry) -> str | None:
    """Whether the part's bytes give the entry again."""
    try:
        data = log.store.read(part_path(unit.id))
        again = describe(decode_part(data, unit, log.job_id, log.schema), data, unit, log.roles, entry.tag)
    except FileNotFoundError:
        return f"unit {unit.id}: the part has gone while it was verified"
    except DrawloomError as error:
        return f"unit {unit.id}: {error}"
    if again != entry:
        names = [name for name in Entry.__dataclass_fields__ if getattr(again, name) != getattr(entry, name)]
        return f"unit {unit.id}: the part's {' and '.join(names)} differ from its entry"
    return None


def _strays(folder: Folder) -> Iterator[str]:
    """Files and entries that are no unit's: readers of the folder would count them as rows."""
    wanted = {part_path(unit.id) for unit in folder.plan.units()}
    for listed in folder.store.list():
        if listed.path not in wanted and not listed.path.startswith(("_", ".")):
            yield f"{listed.path} belongs to no unit of this job"
    for unit_id in folder.ledger.entries:
        if part_path(unit_id) not in wanted:
            yield f"the entry {unit_id} belongs to no unit of this job"


def _end_problems(folder: Folder, sums: Mapping[str, Any]) -> Iterator[str]:
    if folder.success is None:
        yield "not finished: there is no _SUCCESS; run `generate` again with the same settings"
    elif different := [name for name in sums if folder.success.get(name) != sums[name]]:
        yield f"_SUCCESS says {different[0]} {folder.success.get(different[0])}, the entries {sums[different[0]]}"
