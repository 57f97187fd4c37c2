"""Stores: local folders, and S3 by moto, by SeaweedFS and behind a proxy that makes faults."""

import gzip
import json
import os
import pickle
import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import zstandard
from commit_rig import POINTS, Rig, prompts, write_rows
from s3_rig import BUCKET, Faults, Server, faulting_proxy, free_ports

from drawloom.errors import SettingError
from drawloom.jobs.verify import verify
from drawloom.pipelines import s3
from drawloom.pipelines.objects import Store, StoreError
from drawloom.pipelines.preflight import preflight
from drawloom.pipelines.reading import read_unit
from drawloom.pipelines.sources import find_inputs
from drawloom.pipelines.store import LocalStore, open_store
from drawloom.pipelines.units import plan_units

Use = Callable[..., None]


@pytest.fixture(params=["local", "moto", pytest.param("weed", marks=pytest.mark.s3)])
def store(request: pytest.FixtureRequest, tmp_path: Path, use_s3: Use) -> Store:
    if request.param == "local":
        return open_store(str(tmp_path / "store")).probe()
    server = request.getfixturevalue(f"{request.param}_server")
    return open_store(_place(server, use_s3) + "/some/prefix").probe()


def _place(server: Server, use_s3: Use) -> str:
    """An empty prefix, and this process pointed at the server."""
    use_s3(server)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def test_reads_back_what_was_put(store: Store) -> None:
    store.put("a/b c/ü+&=%.bin", b"0123456789")
    assert store.read("a/b c/ü+&=%.bin") == b"0123456789"
    assert store.read_range("a/b c/ü+&=%.bin", 2, 5) == b"234"
    assert store.read_range("a/b c/ü+&=%.bin", 5, 5) == b""
    store.put("a/b c/ü+&=%.bin", b"")
    assert store.read("a/b c/ü+&=%.bin") == b""
    found = store.stat("a/b c/ü+&=%.bin")
    assert found is not None
    assert found.size == 0


def test_what_is_not_there(store: Store) -> None:
    assert store.stat("gone") is None
    assert list(store.list("gone")) == []
    store.delete(["gone"])
    for read in (store.read, store.open_input, lambda path: store.read_range(path, 0, 1)):
        with pytest.raises(FileNotFoundError):
            read("gone")


def test_the_first_of_many_creators_wins(store: Store) -> None:
    assert store.exclusive
    barrier, won = threading.Barrier(6), []

    def create(number: int) -> None:
        barrier.wait()
        if store.put_if_absent("one", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("one") == str(won[0]).encode()
    assert not store.put_if_absent("one", b"later")
    store.delete(["one"])
    assert store.put_if_absent("one", b"anew")


def test_lists_by_prefix(store: Store) -> None:
    names = ["part-1", "part-2", "other", "deep/part-3", "deep/er/x", "_drawloom/manifests/u1"]
    for name in names:
        store.put(name, name.encode())
    assert {one.path for one in store.list()} == set(names)
    assert {one.path for one in store.list("part-")} == {"part-1", "part-2"}
    assert {one.path for one in store.list("deep/")} == {"deep/part-3", "deep/er/x"}
    assert {one.path for one in store.list("deep/p")} == {"deep/part-3"}
    assert {(one.path, one.size) for one in store.list("other")} == {("other", 5)}
    before = next(store.list("other"))
    store.put("other", b"wider than it was")
    assert next(store.list("other")).tag != before.tag
    store.delete(names)
    assert list(store.list()) == []


def test_pyarrow_reads_a_part_of_a_file(store: Store, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "x.parquet", prompts(1000), row_group_size=100)
    store.put("x.parquet", path.read_bytes())
    with pq.ParquetFile(store.open_input("x.parquet")) as file:
        assert file.read_row_group(7, columns=["id"]).column("id").to_pylist() == list(range(700, 800))
    assert pickle.loads(pickle.dumps(store)).read("x.parquet") == path.read_bytes()


@pytest.mark.parametrize("kind", ["moto", pytest.param("weed", marks=pytest.mark.s3)])
def test_lists_and_deletes_page_by_page(kind: str, request: pytest.FixtureRequest, use_s3: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PAGE", 7)
    store = open_store(_place(request.getfixturevalue(f"{kind}_server"), use_s3))
    names = {f"many/{number}" for number in range(23)}
    for name in names:
        store.put(name, b"")
    assert {one.path for one in store.list("many/")} == names
    store.delete(names)
    assert list(store.list()) == []


@pytest.mark.parametrize("kind", ["moto", pytest.param("weed", marks=pytest.mark.s3)])
def test_a_whole_job_on_s3(kind: str, request: pytest.FixtureRequest, use_s3: Use, tmp_path: Path) -> None:
    place = _place(request.getfixturevalue(f"{kind}_server"), use_s3)
    local = Rig(str(write_rows(tmp_path / "in" / "in.parquet", prompts(40))), str(tmp_path / "out"))
    local.run()
    open_store(place).put("data/in.parquet", Path(local.spec).read_bytes())
    rig = replace(local, spec=place + "/data", output=place + "/out")
    store = preflight(rig.spec, find_inputs(rig.spec), open_store(rig.output))
    rig = replace(rig, store=store)
    job = rig.open()
    for unit in list(job.pending())[::2]:
        job.record(rig.commit(job, unit))
    rig.run()
    verdict = verify(rig.output, deep=True)
    assert verdict.ok, verdict.problems
    assert verdict.sums["content"] == verify(local.output).sums["content"]  # the same rows, wherever they lie


@pytest.mark.parametrize("point", POINTS)
def test_stops_at_each_point_on_s3_and_resumes(moto_server: Server, use_s3: Use, tmp_path: Path, point: str) -> None:
    place = _place(moto_server, use_s3)
    rig = Rig(str(write_rows(tmp_path / "in.parquet", prompts(10))), place + "/out")
    victim = list(rig.open().pending())[1]
    with pytest.raises(KeyboardInterrupt):
        rig.commit(rig.open(partial(_interrupt, point)), victim)
    assert (victim.id in rig.open().committed()) == (point != "before_data")
    rig.run()
    verdict = verify(rig.output, deep=True)
    assert verdict.ok, verdict.problems


@pytest.mark.parametrize("name", ["in.parquet", "in.jsonl", "in.jsonl.gz", "in.csv.zst"])
def test_every_format_is_read_from_s3(moto_server: Server, use_s3: Use, name: str) -> None:
    place = _place(moto_server, use_s3)
    table, sink = pa.Table.from_pylist(prompts(30)), pa.BufferOutputStream()
    pq.write_table(table, sink) if name == "in.parquet" else csv.write_csv(table, sink)
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in prompts(30))
    written = sink.getvalue().to_pybytes()
    forms = {"in.parquet": written, "in.csv.zst": zstandard.compress(written), "in.jsonl": lines, "in.jsonl.gz": gzip.compress(lines)}
    open_store(place).put(name, forms[name])
    plan = plan_units(find_inputs(place), 7)
    assert [row for unit in plan.units() for row in read_unit(unit, plan.schema).table.to_pylist()] == prompts(30)


@pytest.mark.parametrize("kind", ["moto", pytest.param("weed", marks=pytest.mark.s3)])
def test_a_fifth_of_requests_fails_and_nothing_is_lost(kind: str, request: pytest.FixtureRequest, use_s3: Use, tmp_path: Path) -> None:
    server = request.getfixturevalue(f"{kind}_server")
    place = _place(server, use_s3)
    path = write_rows(tmp_path / "in.parquet", prompts(60))
    open_store(place).put("data/in.parquet", path.read_bytes())
    faults = Faults(busy=0.2, lost=0.03, reset=0.03, cut=0.03, seed=3)
    with faulting_proxy(server, faults) as proxy:
        use_s3(proxy)
        rig = Rig(place + "/data", place + "/out")
        store = preflight(rig.spec, find_inputs(rig.spec), open_store(rig.output))
        assert store.exclusive
        replace(rig, store=store).run()
        verdict = verify(rig.output, deep=True)
    assert verdict.ok, verdict.problems
    assert all(faults.seen[fault] for fault in ("busy", "lost", "reset", "cut", "forward")), faults.seen
    local = Rig(str(path), str(tmp_path / "out"))
    local.run()
    assert verdict.sums["content"] == verify(local.output).sums["content"]


def test_a_lost_answer_to_a_creation_is_no_defeat(moto_server: Server, use_s3: Use) -> None:
    place = _place(moto_server, use_s3)
    with faulting_proxy(moto_server, Faults(lost=0.4, seed=2)) as proxy:
        use_s3(proxy)
        store = open_store(place)
        assert all(store.put_if_absent(f"k{number}", str(number).encode()) for number in range(12))
        assert not any(store.put_if_absent(f"k{number}", b"other") for number in range(12))


def test_a_refusal_in_mid_job_may_pass(moto_server: Server, use_s3: Use) -> None:
    place = _place(moto_server, use_s3)
    with faulting_proxy(moto_server, Faults(refused=0.3, seed=1)) as proxy:
        use_s3(proxy)
        store = open_store(place)
        for number in range(12):
            store.put(f"k{number}", b"x")
        assert len(list(store.list())) == 12
        with pytest.raises(StoreError, match="AccessDenied"):  # but not at first contact
            [store.brisk().read("k1") for _ in range(100)]


def test_a_server_that_ignores_conditions_is_found_out(moto_server: Server, use_s3: Use, tmp_path: Path) -> None:
    place = _place(moto_server, use_s3)
    with faulting_proxy(moto_server, Faults(ignore_conditions=True)) as proxy:
        use_s3(proxy)
        store = open_store(place + "/out").probe()
        assert not store.exclusive
        rig = Rig(str(write_rows(tmp_path / "in.parquet", prompts(20))), store.uri, store=store)
        job, zombie = rig.open(), rig.open()
        first, second, *_ = job.plan.units()
        job.record(rig.commit(job, first))
        # A zombie that saw no part overwrites it and dies before its entry: the part that is there decides.
        late = replace(zombie.log, store=_Blind(zombie.log.store))
        with pytest.raises(KeyboardInterrupt):
            replace(late, hook=_interrupt_after_data).commit(first, rig.table(zombie, first))
        with pytest.raises(KeyboardInterrupt):
            replace(job.log, hook=_interrupt_after_data).commit(second, rig.table(job, second))
        assert not verify(rig.output).ok
        rig.run()
        verdict = verify(rig.output, deep=True)
        assert verdict.ok, verdict.problems


def _interrupt(at: str, point: str) -> None:
    if point == at:
        raise KeyboardInterrupt


_interrupt_after_data = partial(_interrupt, "after_data")


class _Blind:
    """A store on which a committer looked before another wrote, and writes after."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._store.put(path, data)
        return True


def _refused(action: Callable[[], object]) -> str:
    """The message of the refusal, which comes before a minute has passed; botocore's own defaults would wait for several."""
    started = time.monotonic()
    with pytest.raises(SettingError) as caught:
        action()
    assert time.monotonic() - started < 60
    return str(caught.value)


@pytest.mark.s3
def test_wrong_secret_is_named(weed_server: Server, use_s3: Use, tmp_path: Path) -> None:
    place = _place(weed_server, use_s3)
    use_s3(weed_server, AWS_SECRET_ACCESS_KEY="wrong")
    path = write_rows(tmp_path / "in.parquet", prompts(3))
    files = find_inputs(str(path))
    message = _refused(lambda: preflight(str(path), files, open_store(place + "/out")))
    for word in (f"{BUCKET!r}", "out/_drawloom/tmp/", "ListObjectsV2", "AWS_SECRET_ACCESS_KEY"):
        assert word in message
    message = _refused(lambda: find_inputs(place + "/data/in.parquet"))
    for word in (f"{BUCKET!r}", "data/in.parquet", "GetObject", "AWS_SECRET_ACCESS_KEY"):
        assert word in message


@pytest.mark.parametrize("kind", ["moto", pytest.param("weed", marks=pytest.mark.s3)])
def test_a_missing_bucket_is_named(kind: str, request: pytest.FixtureRequest, use_s3: Use, tmp_path: Path) -> None:
    use_s3(request.getfixturevalue(f"{kind}_server"))
    path = write_rows(tmp_path / "in.parquet", prompts(3))
    files = find_inputs(str(path))
    message = _refused(lambda: preflight(str(path), files, open_store("s3://no-such-bucket/out")))
    for word in ("'no-such-bucket'", "'out/_drawloom/tmp/", "ListObjectsV2", "create the bucket"):
        assert word in message
    assert "'no-such-bucket'" in _refused(lambda: find_inputs("s3://no-such-bucket/data"))


@pytest.mark.s3
def test_a_missing_permission_is_named(weed_server: Server, use_s3: Use, tmp_path: Path) -> None:
    place = _place(weed_server, use_s3)
    use_s3(weed_server, AWS_ACCESS_KEY_ID="READER")
    path = write_rows(tmp_path / "in.parquet", prompts(3))
    message = _refused(lambda: preflight(str(path), find_inputs(str(path)), open_store(place + "/out")))
    for word in (f"{BUCKET!r}", "PutObject", "AccessDenied", "allow this action"):
        assert word in message


def test_no_server_and_no_credentials_are_named(moto_server: Server, use_s3: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = Server(f"http://127.0.0.1:{free_ports(1)[0]}")
    use_s3(dead)
    message = _refused(lambda: find_inputs("s3://bucket/data"))
    assert dead.endpoint in message
    use_s3(moto_server)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    s3._client.cache_clear()
    assert "credentials" in _refused(lambda: find_inputs("s3://bucket/data"))


def test_a_server_that_never_answers_is_given_up(use_s3: Use) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        use_s3(Server(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        message = _refused(lambda: find_inputs("s3://bucket/data"))
    assert "bucket" in message


def test_gives_up_at_last_in_mid_job(moto_server: Server, use_s3: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    place = _place(moto_server, use_s3)
    with faulting_proxy(moto_server, Faults(busy=1.0)) as proxy:
        use_s3(proxy)
        store = replace(open_store(place), patience=s3.Patience(1.0, 1.0, 1.0))  # type: ignore[type-var]
        with pytest.raises(StoreError, match="SlowDown"):
            store.put("k", b"x")


@pytest.mark.parametrize("uri", ["gs://b/p", "s3:///key"])
def test_refuses_addresses_it_does_not_know(uri: str) -> None:
    with pytest.raises(SettingError):
        open_store(uri)


def test_local_errors_name_path_and_action(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"file/out/.*cannot write: Not a directory"):
        LocalStore(str(tmp_path / "file" / "out")).put("a", b"x")
    path = write_rows(tmp_path / "in.parquet", prompts(1))
    with pytest.raises(SettingError, match="cannot write"):
        preflight(str(path), find_inputs(str(path)), LocalStore(str(tmp_path / "file" / "out")))


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(StoreError, match="no hard links"):
        LocalStore(str(tmp_path / "out")).probe()


def test_killed_writers_leave_nothing_that_readers_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(tmp_path))

    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    for step in ("fsync", "link"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, cut)
            with pytest.raises(KeyboardInterrupt):
                store.put_if_absent("part-1", random.Random(0).randbytes(1000))
    assert list(store.list("part-")) == []
    assert store.put_if_absent("part-1", b"whole")
