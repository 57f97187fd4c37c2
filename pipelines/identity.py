"""What a job is. One output folder holds one job; anything else is refused, key by key."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from drawloom.errors import DrawloomError, SettingError
from drawloom.pipelines.columns import Columns
from drawloom.pipelines.objects import Store
from drawloom.pipelines.sources import InputFile
from drawloom.pipelines.streams import digest_of
from drawloom.pipelines.units import Plan, listing_digest

JOB = "_drawloom/job.yaml"
FORMAT = 1  # of the folder's layout
MAX_NAMED = 5  # differences in one message


@dataclass(frozen=True)
class JobIdentity:
    """What may not change within one output folder. `operational` (replicas, sizes) is kept for the reader and may change."""

    config: Mapping[str, Any]  # resolved settings that the text depends on; JSON values
    model_fingerprint: str
    code_version: str
    operational: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config_hash(self) -> str:
        return _hash(json.dumps(self.config, sort_keys=True).encode())


@dataclass(frozen=True)
class StoredJob:
    """job.yaml as it stands in the folder."""

    id: str  # a hash of the bytes of job.yaml, which is written once
    facts: Mapping[str, Any]

    @property
    def plan_id(self) -> str:
        return str(self.facts["plan"])

    @property
    def columns(self) -> Columns:
        return Columns.parse(self.facts["columns"], JOB)


def dump_job(identity: JobIdentity, columns: Columns, plan: Plan, plan_id: str) -> bytes:
    """job.yaml: JSON, which is YAML too."""
    facts = {
        "format": FORMAT,
        "config": identity.config,
        "config_hash": identity.config_hash,
        "columns": columns.model_dump(),
        "model_fingerprint": identity.model_fingerprint,
        "code_version": identity.code_version,
        "input": listing_digest(plan),
        "plan": plan_id,
        "rows": plan.num_rows,
        "units": plan.num_units,
        "operational": identity.operational,
    }
    return json.dumps(facts, indent=2, sort_keys=True).encode()


def load_job(store: Store) -> StoredJob | None:
    """The folder's job, or None. Raises DrawloomError when job.yaml is damaged or of a later format."""
    try:
        data = store.read(JOB)
    except FileNotFoundError:
        return None
    try:
        facts = json.loads(data)
        known = facts["format"] == FORMAT and facts["config_hash"] == _hash(json.dumps(facts["config"], sort_keys=True).encode())
    except (ValueError, TypeError, KeyError) as error:
        raise DrawloomError(f"{store.uri}/{JOB} is damaged ({error}); without it the output cannot be resumed or verified") from error
    if not known:
        raise DrawloomError(
            f"{store.uri}/{JOB} was changed by hand or written by another version (format {facts['format']}, here {FORMAT})"
        )
    return StoredJob(_hash(data), facts)


def refuse_other(stored: StoredJob, identity: JobIdentity, columns: Columns, where: str) -> None:
    """Raise SettingError that names every key in which the folder's job differs from this one."""
    mine: Mapping[str, Any] = json.loads(json.dumps(identity.config))  # as it reads back
    pairs = [("model_fingerprint", identity.model_fingerprint), ("code_version", identity.code_version)]
    different = [f"{key} is {stored.facts.get(key)!r} there, {value!r} here" for key, value in pairs if stored.facts.get(key) != value]
    different += list(_differences(stored.facts["config"], mine, ""))
    if not different:  # the config may hold the columns as well
        different += list(_differences(stored.facts["columns"], columns.model_dump(), "columns"))
    if different:
        more = f" and {len(different) - MAX_NAMED} more" if len(different) > MAX_NAMED else ""
        raise SettingError(
            f"the output {where} belongs to another job: {'; '.join(different[:MAX_NAMED])}{more}. "
            "Use a new output folder, or the settings of that job"
        )


def check_inputs(plan: Plan, files: Sequence[InputFile], where: str) -> None:
    """Raise SettingError when the input is no longer what was planned: files added, gone or changed. A file that was only copied or
    touched has another tag but the same digest, and is fine."""
    old, new = {one.file.name: one for one in plan.files}, {file.name: file for file in files}
    found = [f"{name} is new" for name in new.keys() - old.keys()] + [f"{name} is gone" for name in old.keys() - new.keys()]
    touched = [file for name, file in new.items() if name in old and (file.size, file.tag) != (old[name].file.size, old[name].file.tag)]
    with ThreadPoolExecutor(8) as threads:
        for file, digest in zip(touched, threads.map(digest_of, touched), strict=True):
            if digest != old[file.name].digest:
                found.append(f"{file.name} has changed")
    if found:
        more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        raise SettingError(
            f"the input of the output {where} is another one now: {', '.join(sorted(found)[:MAX_NAMED])}{more}. "
            "Restore it, or use a new output folder"
        )


def _differences(there: Any, here: Any, path: str) -> Iterator[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted(there.keys() | here.keys()):
            yield from _differences(there.get(key), here.get(key), f"{path}.{key}" if path else key)
    elif there != here:
        yield f"{path} is {there!r} there, {here!r} here"


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
