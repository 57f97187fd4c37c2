"""The exactly-once log of a job. Who may write what, and what a reader may believe, stands here.

OUTPUT/part-<unit>.parquet           the rows; a part appears whole, once, and never changes
OUTPUT/_SUCCESS                      every unit is committed; holds the totals
OUTPUT/_drawloom/job.yaml            what the job is: config, model, code, input, plan; another job is refused
OUTPUT/_drawloom/plan/<hash>         input files, schema and unit size
OUTPUT/_drawloom/manifests/<unit>    one entry per part: counts, sizes, hashes
OUTPUT/_drawloom/log/<hash>          many entries folded into one object; their single manifests are then deleted
OUTPUT/_drawloom/tmp/                half-written files of a local store

Readers take the folder (pyarrow, pandas, `datasets.load_dataset(OUTPUT)`) or OUTPUT/*.parquet (duckdb); nothing of ours under
_drawloom/ ends in .parquet or .json, so that none of them takes it for data.

A unit is committed when its part exists. The part is created by `put_if_absent`: of any number of committers (a retried task, a
process thought dead) one succeeds; the others find its part and describe that one. The entry is a pure function of the part's bytes,
so it does not matter who writes it, or how often. After a crash between part and entry, `open_job` writes the missing entry. A part
that someone deletes by hand is generated anew by the next run.

Where the store cannot create exclusively (`Store.exclusive` is False), two committers at one moment may both write the part; the
later bytes stand, and both hold the same text. The part that is there decides: an entry that does not fit it is written anew.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from drawloom.errors import DrawloomError, SettingError
from drawloom.pipelines.columns import Columns, Roles, resolve
from drawloom.pipelines.identity import JOB, JobIdentity, StoredJob, check_inputs, dump_job, load_job, refuse_other
from drawloom.pipelines.ledger import MANIFESTS, SUCCESS, Ledger, fold, read_ledger, totals, unsettled
from drawloom.pipelines.manifests import Entry, decode_part, describe, dump_entry, encode_part, part_path
from drawloom.pipelines.objects import TMP, Store, before_start
from drawloom.pipelines.outcomes import outcome_schema
from drawloom.pipelines.sources import InputFile
from drawloom.pipelines.units import Plan, Unit, dump_plan, load_plan, moved

PLAN = "_drawloom/plan/"
FOLD_AT = 1000  # single manifests before they are folded into one object
ADOPT_THREADS = 8
Hook = Callable[[str], None]  # called with before_data, after_data, before_manifest, after_manifest


def no_hook(point: str) -> None:
    """The product's hook; tests pass one that kills the process at a named point."""


@dataclass(frozen=True)
class CommitLog:
    """What a writer needs to commit units. Picklable, without state."""

    store: Store
    job_id: str
    schema: pa.Schema  # of every part
    roles: Roles
    hook: Hook = no_hook

    def commit(self, unit: Unit, table: pa.Table) -> Entry:
        """Write the unit's part and entry, or adopt the part that is already there; return the entry of the part that stands.

        Raises DrawloomError when a part under this name is not this job's, StoreError when storage stays away.
        """
        data = encode_part(table.cast(self.schema), unit, self.job_id)
        self.hook("before_data")
        won = self.store.put_if_absent(part_path(unit.id), data)
        self.hook("after_data")
        entry = describe(table, data, unit, self.roles) if won and self.store.exclusive else self._standing(unit)
        self.hook("before_manifest")
        self._put(entry)
        self.hook("after_manifest")
        return entry

    def adopt(self, unit: Unit) -> Entry:
        """Write the entry of the part that is there."""
        entry = self._standing(unit)
        self._put(entry)
        return entry

    def _standing(self, unit: Unit) -> Entry:
        """The entry of the part as it is now."""
        tag, data = self._tag(unit), self.store.read(part_path(unit.id))
        while (now := self._tag(unit)) != tag:
            tag, data = now, self.store.read(part_path(unit.id))
        return describe(decode_part(data, unit, self.job_id, self.schema), data, unit, self.roles, tag)

    def _put(self, entry: Entry) -> None:
        self.store.put(MANIFESTS + entry.unit, dump_entry(entry))

    def _tag(self, unit: Unit) -> str:
        """What tells this part from a later one of the same unit; needed only where a part can be replaced."""
        found = None if self.store.exclusive else self.store.stat(part_path(unit.id))
        return found.tag if found else ""


class Job:
    """An output folder as its driver sees it. Writers get `log`; the driver records the entries that they return."""

    def __init__(self, log: CommitLog, plan: Plan, ledger: Ledger) -> None:
        self.log, self.plan = log, plan
        self.entries: dict[str, Entry] = {}  # unit id -> entry, of every committed unit
        self._loose: dict[str, Entry] = {}  # those with a manifest of their own
        self._settle(ledger)

    @property
    def finished(self) -> bool:
        """Every unit is committed (`finish` then writes _SUCCESS, if it is not there yet)."""
        return len(self.entries) == self.plan.num_units

    def _settle(self, ledger: Ledger) -> None:
        """Take the committed units from the folder; describe the parts that have no entry yet."""
        found = {unit.id: entry for unit in self.plan.units() if (entry := ledger.settled(unit.id)) is not None}
        self.entries = found
        self._loose = {unit_id: found[unit_id] for unit_id in ledger.loose & found.keys()}
        with ThreadPoolExecutor(ADOPT_THREADS) as threads:
            for entry in threads.map(self.log.adopt, unsettled(ledger, self.plan)):
                self.record(entry)
        if ledger.doubtful:
            fold(self.log.store, self.entries.values(), replaced=ledger.logs)
            self._loose.clear()

    def committed(self) -> set[str]:
        """Ids of the units that need no more work."""
        return set(self.entries)

    def pending(self) -> Iterator[Unit]:
        """Units without an outcome, in input order."""
        return (unit for unit in self.plan.units() if unit.id not in self.entries)

    def record(self, entry: Entry) -> None:
        """Note a commit; every FOLD_AT of them the single manifests are folded into one object."""
        self.entries[entry.unit] = entry
        self._loose[entry.unit] = entry
        if len(self._loose) >= FOLD_AT:
            self.fold()

    def fold(self) -> None:
        """Fold the single manifests that this driver knows of into one object."""
        if self._loose:
            fold(self.log.store, self._loose.values())
            self._loose.clear()

    def finish(self) -> None:
        """Check against the folder that every unit is committed, then write _SUCCESS. Raises DrawloomError when one is not."""
        store = self.log.store
        ledger = read_ledger(store)
        if missing := [unit.id for unit in self.plan.units() if part_path(unit.id) not in ledger.parts]:
            raise DrawloomError(f"{len(missing)} of {self.plan.num_units} units have no part ({missing[0]}, ...); run the job again")
        self._settle(ledger)
        self.fold()
        store.put(SUCCESS, json.dumps(totals(self.entries.values()), sort_keys=True).encode())
        store.delete([listed.path for listed in store.list(TMP)])


def open_job(
    store: Store, identity: JobIdentity, files: Sequence[InputFile], make_plan: Callable[[], Plan], columns: Columns, hook: Hook = no_hook
) -> Job:
    """Create the job in this folder, or resume it; a finished one comes back with nothing pending.

    make_plan is called only when the folder holds no job yet: a resumed job keeps its units. Raises SettingError when the folder
    belongs to another job (naming each key that differs), its input has changed, or it holds files that no job wrote.
    """
    with before_start():
        stored = load_job(store)
        if stored is None:
            stored = _create(store, identity, columns, make_plan())
        refuse_other(stored, identity, columns, store.uri)
        plan = read_plan(store, stored)
        check_inputs(plan, files, store.uri)
        return Job(log_of(store, stored, plan, hook), moved(plan, files), read_ledger(store))


def log_of(store: Store, stored: StoredJob, plan: Plan, hook: Hook = no_hook) -> CommitLog:
    """The commit log of a stored job."""
    roles = resolve(stored.columns, plan.schema)
    return CommitLog(store, stored.id, outcome_schema(plan.schema, roles), roles, hook)


def read_plan(store: Store, stored: StoredJob) -> Plan:
    """The stored plan. Raises DrawloomError when it is gone or not the one that job.yaml names."""
    try:
        data = store.read(PLAN + stored.plan_id)
    except FileNotFoundError:
        raise DrawloomError(f"{store.uri}/{PLAN}{stored.plan_id} is gone; without it the output cannot be resumed or verified") from None
    if hashlib.blake2b(data, digest_size=16).hexdigest() != stored.plan_id:
        raise DrawloomError(f"{store.uri}/{PLAN}{stored.plan_id} is damaged; without it the output cannot be resumed or verified")
    return load_plan(data)


def _create(store: Store, identity: JobIdentity, columns: Columns, plan: Plan) -> StoredJob:
    """Bind the folder to this job. Of two drivers that start at once, one binds it and both go on with its plan."""
    for listed in store.list():
        if not listed.path.startswith("_drawloom/"):
            raise SettingError(f"the output {store.uri} holds {listed.path}, which no job wrote; use an empty or new folder")
    data = dump_plan(plan)
    plan_id = hashlib.blake2b(data, digest_size=16).hexdigest()
    store.put(PLAN + plan_id, data)
    store.put_if_absent(JOB, dump_job(identity, columns, plan, plan_id))
    stored = load_job(store)
    if stored is None:
        raise DrawloomError(f"{store.uri}/{JOB} was written but cannot be read back")
    return stored
