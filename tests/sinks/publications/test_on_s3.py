"""Publications in a bucket: crashes, lost answers, other owners, a server without conditions, readers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("hudi")

from tests.sinks.publications.crashes import CrashError, crash_at_each_file
from tests.sinks.publications.test_commits import OTHERS
from tests.sinks.publications.toy_lake import COLUMNS, LINES, ORDERS, ToyLake, write_file
from tests.storage.s3 import KEY, REGION, SECRET, LosingProxy, bucket, s3_process

from tautochrone.errors import SinkError, SinkFencedError
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.reason import ReasonCode
from tautochrone.sinks import open_sink
from tautochrone.sinks.common import object_paths
from tautochrone.sinks.common.exclusive_files import put_if_absent, remove_folder
from tautochrone.sinks.common.object_paths import S3Path, s3_folder
from tautochrone.sinks.common.publication import listed_versions


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_process() as url:
        yield url


def options(url: str) -> dict[str, str]:
    return {
        "s3.endpoint": url,
        "s3.region": REGION,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.path-style-access": "true",
    }


@pytest.fixture
def folder(server: str, monkeypatch: pytest.MonkeyPatch) -> S3Path:
    """Of a server that is known to create objects once."""
    monkeypatch.setattr(object_paths, "_ROUNDS", 1)
    name = f"b{uuid4().hex}"
    bucket(server, name)
    return s3_folder("mirror", f"s3a://{name}/lake", options(server))


@pytest.fixture(params=["delta", "delta by location", "hudi", "paimon"])
def lake(tmp_path: Path, folder: S3Path, request: pytest.FixtureRequest) -> ToyLake:
    format_name, *_ = request.param.split()
    return ToyLake(tmp_path, format_name, links=request.param == "delta", bucket=folder)


@pytest.fixture
def delta_lake(tmp_path: Path, folder: S3Path) -> ToyLake:
    return ToyLake(tmp_path, bucket=folder)


@pytest.mark.parametrize("checkpoints", [3, pytest.param(11, marks=pytest.mark.slow)])
def test_each_checkpoint_gets_its_version(lake: ToyLake, checkpoints: int) -> None:
    for _ in range(checkpoints):
        lake.add()
    lake.deliver()
    lake.check(last=3)
    for table, version in lake.checkpoints[checkpoints].items():
        sink: Any = lake.open()
        assert sink.audit(table, CheckpointNumber(checkpoints)) == sink.digest_files(version)
        assert sink.damage(table, version) is None


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_a_crash_at_any_file_loses_and_repeats_nothing(
    lake: ToyLake, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    crash_at_each_file(lake, monkeypatch, before=before)


def test_lost_answers_are_no_conflicts(lake: ToyLake, server: str) -> None:
    """A client that repeats a PUT finds what it has put."""
    there = lake.bucket
    assert there is not None
    proxy = LosingProxy(server, every=3)
    with proxy.serving() as url:
        lake.bucket = S3Path.parse(str(there), s3_folder("mirror", str(there), options(url)).client)
        for _ in range(2):
            lake.add()
            lake.deliver()
        assert proxy.lost > 5
    lake.bucket = there
    lake.check()


def test_a_late_owner_is_refused(lake: ToyLake) -> None:
    """It wakes between its check and its decision; or it has read the state, and another one writes first."""
    lake.add()
    lake.deliver()
    lake.add()
    late = lake.open()
    fence = Fence(lake.fence)
    intent = lake.prepare(late, 2)
    lake.deliver()
    with pytest.raises(SinkFencedError):
        late.commit(intent.transaction, fence)
    state = late._states_folder.read()
    lake.open()
    with pytest.raises(SinkError, match="SINK_BASE_CHANGED"):
        late._states_folder.change(state, fence=Fence(99))
    lake.check()


def test_another_lake_is_refused(delta_lake: ToyLake) -> None:
    delta_lake.add()
    delta_lake.deliver()
    with pytest.raises(SinkError, match="SINK_DATABASE_TAKEN"):
        delta_lake.publication().claim("its copy")


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lake", ["delta", "hudi", "paimon"], indirect=True)
def test_the_version_of_another_writer_is_set_aside(
    lake: ToyLake, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """By processes that die at an object each."""
    lake.add()
    lake.deliver()
    (lake.table_folder(LINES) / OTHERS[lake.format]).put(b'{"commitInfo": {}}\n')
    lake.add()
    with pytest.raises(SinkError, match="PUBLICATION_DIVERGED"):
        lake.deliver()
    strikes = Strikes(monkeypatch, every)
    while True:
        sink = lake.open()
        reason = sink.damage(LINES, None)
        if reason is None:
            break
        assert reason.code is ReasonCode.PUBLISHED_LOG_DAMAGED
        strikes.next()
        try:
            aside = sink.set_aside(LINES, Fence(lake.fence))
        except CrashError:
            continue
        strikes.left = -1
        assert not lake.table_folder(LINES).is_dir()
        assert list(S3Path.parse(aside, sink._folder.client).below())
    assert strikes.number > 5
    lake.deliver()
    assert (lake.shown(LINES), lake.shown(ORDERS)) == (lake.rows(LINES, 2), lake.rows(ORDERS, 2))


class Strikes:
    """Ends the process at the n-th object that is copied, written or removed, each time at a later one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
        self.number, self.left, self.every = 0, -1, every
        for name in ("copy_from", "put", "unlink", "create"):
            monkeypatch.setattr(S3Path, name, self._counting(getattr(S3Path, name)))

    def next(self) -> None:
        self.number += self.every
        self.left = self.number

    def _counting(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise CrashError
            return write(*arguments, **named)

        return counted


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lake", ["delta", "hudi", "paimon"], indirect=True)
def test_a_rename_that_dies_at_an_object_is_completed(
    lake: ToyLake, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    lake.add()
    lake.deliver()
    moved = replace(LINES, table="moved")
    with pytest.raises(SinkError, match="SINK_NAME_TAKEN"):
        lake.open().rename_mirror(LINES, ORDERS)
    strikes = Strikes(monkeypatch, every)
    sink = lake.open()
    while sink.mirror_of(LINES) is not None:
        strikes.next()
        with suppress(CrashError):
            sink.rename_mirror(LINES, moved)
        strikes.left = -1
        sink = lake.open()
    assert strikes.number > 5
    assert sink.mirror_of(LINES) is None
    shown = lake.open().published()
    assert shown is not None
    assert shown.versions.keys() == {ORDERS, moved}
    assert lake.shown(moved) == lake.rows(LINES, 1)
    lake.open().drop_mirror(moved)
    assert lake.open().mirror_of(moved) is None
    assert lake.shown(ORDERS) == lake.rows(ORDERS, 1)


def test_a_server_that_overwrites_is_refused(delta_lake: ToyLake, folder: S3Path) -> None:
    """One that does not know the condition of a PUT."""

    def forget(params: dict[str, Any], **_: Any) -> None:
        params["headers"].pop("If-None-Match", None)

    delta_lake.add()
    folder.client.meta.events.register("before-call.s3.PutObject", forget)
    try:
        with pytest.raises(SinkError, match="PUBLICATION_STORAGE_NOT_EXCLUSIVE"):
            delta_lake.deliver()
    finally:
        folder.client.meta.events.unregister("before-call.s3.PutObject", forget)
    assert [path.name for path in (folder / "published").below()] == ["exclusive"]


def test_a_server_that_looks_first_is_refused(delta_lake: ToyLake, folder: S3Path) -> None:
    """Whoever writes while others write overwrites their object; one by one they are refused."""
    waiting = Barrier(8)

    def overwrite(params: dict[str, Any], **_: Any) -> None:
        if "/creators/" in params["url_path"]:
            waiting.wait(10)
            params["headers"].pop("If-None-Match", None)

    delta_lake.add()
    folder.client.meta.events.register("before-call.s3.PutObject", overwrite)
    try:
        with pytest.raises(SinkError, match="PUBLICATION_STORAGE_NOT_EXCLUSIVE"):
            delta_lake.deliver()
    finally:
        folder.client.meta.events.unregister("before-call.s3.PutObject", overwrite)
    assert [path.name for path in (folder / "published").below()] == ["exclusive"]


def test_files_of_a_local_lake_are_uploaded(delta_lake: ToyLake) -> None:
    delta_lake.files_in_bucket = False
    delta_lake.add()
    delta_lake.deliver()
    delta_lake.check()


def test_a_local_folder_takes_no_files_from_s3(delta_lake: ToyLake) -> None:
    delta_lake.add()
    local = ToyLake(delta_lake.folder, checkpoints=delta_lake.checkpoints)
    with pytest.raises(SinkError, match="PUBLICATION_STORAGE_NOT_REACHED"):
        local.deliver()
    assert not local.table_folder(ORDERS).exists()


def test_a_bucket_that_is_not_there_can_be_tried_again(server: str) -> None:
    sink = open_sink("mirror", "delta-publication", {"folder": "s3://nowhere/d", **options(server)})
    with pytest.raises(SinkError, match="PUBLICATION_FILE_FAILED") as failed:
        sink.claim("lake")
    assert failed.value.retryable


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    object_paths._client.cache_clear()
    with pytest.raises(SinkError, match="SINK_PACKAGE_MISSING") as missing:
        open_sink("mirror", "hudi-publication", {"folder": "s3://bucket/hudi"})
    assert missing.value.hint == "pip install 'tautochrone[s3]'"


def test_the_list_of_a_checkpoint_is_read(delta_lake: ToyLake, server: str) -> None:
    delta_lake.add()
    delta_lake.deliver()
    settings = {"folder": str(delta_lake.published_folder), **options(server)}
    assert listed_versions("mirror", settings, 1, "store") == {str(ORDERS): "0", str(LINES): "0"}
    assert listed_versions("mirror", settings, 2, "store") == {}


# -- paths ----------------------------------------------------------------------------------------


def test_objects_are_listed_as_files_are(folder: S3Path, tmp_path: Path) -> None:
    names = ["a-1/x.json", "a/1.json", "a/2.json", "a/b/3.json", "a/n.txt", "a b/%20/é.json", "c"]
    for name in names:
        (folder / name).put(b"")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for pattern in ("a/*.json", "*", "*/[0-9]*.json", "a/b/3.json", "a*/*", "a b/*/*", "d/*", "a/*/*"):
        globbed = {path.relative_to(folder).as_posix() for path in folder.glob(pattern)}
        assert globbed == {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob(pattern)}, pattern
    assert {path.name for path in (folder / "a").iterdir()} == {"1.json", "2.json", "b", "n.txt"}
    assert [(folder / name).is_dir() for name in ("a", "c", "d")] == [True, False, False]
    assert [(folder / name).exists() for name in ("a", "c", "d")] == [False, True, False]
    remove_folder(folder / "a", last="b")
    assert [str(path.relative_to(folder)) for path in folder.below()] == [names[5], names[0], names[6]]


def test_objects_are_read_in_any_order(folder: S3Path, tmp_path: Path) -> None:
    path = folder / "f"
    path.put(bytes(range(100)))
    ranges = [path.read_range(*each) for each in ((90, 20), (100, 5), (5, 0))]
    assert ranges == [bytes(range(90, 100)), b"", b""]
    with path.open() as file:
        assert (file.seek(-3, 2), file.read(), file.seek(4), file.read(2)) == (97, b"abc", 4, b"\x04\x05")
    local = write_file(tmp_path, COLUMNS, *((number, "x" * 50) for number in range(10_000)))
    path.copy_from(local)
    assert pq.read_table(path.open()).equals(pq.read_table(local))
    with pytest.raises(FileNotFoundError):
        (folder / "g").open()


def test_only_the_first_writer_creates_an_object(folder: S3Path) -> None:
    path = folder / "f"
    assert [put_if_absent(path, content) for content in (b"1", b"2", b"1")] == [True, False, False]
    assert path.read_bytes() == b"1"
