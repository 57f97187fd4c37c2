"""Reading the log: which units are committed. The part that is there decides; entries only describe it."""

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from drawloom.pipelines.manifests import Entry, dump_entries, load_entries, load_entry, part_path
from drawloom.pipelines.objects import Listed, Store
from drawloom.pipelines.units import Plan, Unit

MANIFESTS, LOG, SUCCESS = "_drawloom/manifests/", "_drawloom/log/", "_SUCCESS"
THREADS = 32  # for small objects
SUMMED = ("rows", "completed", "errors", "prompt_tokens", "completion_tokens", "forwards", "drafted", "accepted", "data_bytes")


@dataclass(frozen=True)
class Ledger:
    """What a folder holds, read in an order that never misses a unit while a job is running."""

    entries: Mapping[str, tuple[Entry, ...]]  # unit id -> its distinct entries; more than one only after a part was replaced
    loose: frozenset[str]  # unit ids that have a manifest of their own
    parts: Mapping[str, Listed]  # path -> part
    logs: tuple[str, ...]  # paths of the objects that hold folded entries

    @property
    def doubtful(self) -> bool:
        """Whether an entry is there that describes a part which has been deleted or replaced since."""
        return any(len(found) > 1 or part_path(unit_id) not in self.parts for unit_id, found in self.entries.items())

    def settled(self, unit_id: str) -> Entry | None:
        """The one entry that matches the unit's part; None when there is no part, no entry for it, or doubt."""
        part = self.parts.get(part_path(unit_id))
        if part is None:
            return None
        fitting = [one for one in self.entries.get(unit_id, ()) if one.data_bytes == part.size and one.tag in ("", part.tag)]
        return fitting[0] if len(fitting) == 1 else None


def read_ledger(store: Store) -> Ledger:
    """List and read all manifests, then the folded logs, then the parts: what moves between them meanwhile is seen at least once."""
    entries: dict[str, list[Entry]] = {}
    names = [listed.path for listed in store.list(MANIFESTS)]
    with ThreadPoolExecutor(THREADS) as threads:
        loose = [entry for entry in threads.map(lambda path: _read_entry(store, path), names) if entry is not None]
        places = tuple(listed.path for listed in store.list(LOG))
        logs = threads.map(lambda path: load_entries(store.read(path), path), places)
        for entry in (*loose, *(one for log in logs for one in log)):
            known = entries.setdefault(entry.unit, [])
            if entry not in known:
                known.append(entry)
    parts = {listed.path: listed for listed in store.list("part-")}
    return Ledger({unit: tuple(found) for unit, found in entries.items()}, frozenset(one.unit for one in loose), parts, places)


def _read_entry(store: Store, path: str) -> Entry | None:
    """None when it was folded into a log since it was listed."""
    try:
        return load_entry(store.read(path), path)
    except FileNotFoundError:
        return None


def unsettled(ledger: Ledger, plan: Plan) -> list[Unit]:
    """Units whose part is there without an entry that fits it: their committer died, or another replaced the part."""
    return [unit for unit in plan.units() if part_path(unit.id) in ledger.parts and ledger.settled(unit.id) is None]


def fold(store: Store, entries: Iterable[Entry], replaced: Iterable[str] = ()) -> None:
    """Put many entries into one object, then delete their single manifests and the `replaced` logs, which hold nothing else.

    A crash in between leaves equal copies, which do no harm.
    """
    kept = sorted(entries, key=lambda entry: entry.ordinal)
    data = dump_entries(kept)
    path = LOG + hashlib.blake2b(data, digest_size=16).hexdigest()
    store.put(path, data)
    store.delete(MANIFESTS + entry.unit for entry in kept)
    store.delete(place for place in replaced if place != path)


def totals(entries: Iterable[Entry]) -> dict[str, Any]:
    """Sums over entries. `content` is the hash of the output so far: equal for equal outputs, whatever the unit size and order."""
    sums: dict[str, Any] = dict.fromkeys(SUMMED, 0)
    codes: dict[str, int] = {}
    units = content = 0
    for entry in entries:
        units += 1
        content = (content + int(entry.content, 16)) % (1 << 128)
        for name in SUMMED:
            sums[name] += getattr(entry, name)
        for code, count in entry.error_codes.items():
            codes[code] = codes.get(code, 0) + count
    return sums | {"units": units, "content": f"{content:032x}", "error_codes": dict(sorted(codes.items()))}
