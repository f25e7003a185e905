"""Publications without Spark: crashes at each file that it writes, late owners, other writers, damage."""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("hudi")

from tests.sinks.publications.crashes import LAST, crash_at_each_file
from tests.sinks.publications.toy_lake import (
    COLUMNS,
    LINES,
    ORDERS,
    READERS,
    ToyLake,
    ToyVersion,
    write_file,
)
from tests.support.paimon import append_rows, create_tag, paimon_rows, paimon_snapshots

from tautochrone.errors import SinkError, SinkFencedError
from tautochrone.model.names import CheckpointNumber, Fence, Version
from tautochrone.model.sink import TakesFiles, TransactionState
from tautochrone.sinks.common import publication_state
from tautochrone.sinks.common.publication import PublicationSink
from tautochrone.sinks.delta import log
from tautochrone.sinks.delta import sink as delta_sink
from tautochrone.sinks.delta.log import DeltaLog
from tautochrone.sinks.delta.sink import open_delta_publication
from tautochrone.sinks.hudi import sink as hudi_sink
from tautochrone.sinks.paimon import snapshots


@pytest.fixture(params=["delta", pytest.param("delta by location", marks=pytest.mark.slow), "hudi", "paimon"])
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> ToyLake:
    format_name, *_ = request.param.split()
    return ToyLake(tmp_path, format_name, links=request.param == "delta")


@pytest.fixture
def delta_lake(tmp_path: Path) -> ToyLake:
    return ToyLake(tmp_path)


@pytest.fixture
def paimon_lake(tmp_path: Path) -> ToyLake:
    return ToyLake(tmp_path, "paimon")


@pytest.mark.parametrize("before", [True, False])
def test_a_crash_at_any_file_loses_and_repeats_nothing(
    lake: ToyLake, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    crash_at_each_file(lake, monkeypatch, before=before)


def test_who_looks_writes_nothing(lake: ToyLake) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in Path(lake.folder).rglob("*") if path.is_file()}

    for number in (None, 1):
        before = files()
        sink = lake.publication()
        shown = sink.published()
        assert (None if shown is None else shown.checkpoint) == number
        assert sink.highest_fence() == (number or 0)
        assert not number or not sink.changed_tables((ORDERS, LINES), 100)
        sink.close()
        assert files() == before
        lake.add()
        lake.deliver()


def test_each_checkpoint_gets_its_version_after_an_outage(lake: ToyLake) -> None:
    lake.add()
    lake.deliver()
    for _ in range(24):
        lake.add()
    lake.deliver()
    lake.check(last=LAST[lake.format])


def test_a_log_is_read_from_its_checkpoint(delta_lake: ToyLake) -> None:
    for _ in range(12):
        delta_lake.add()
    delta_lake.deliver()
    folder = delta_lake.table_folder(ORDERS)
    replayed = DeltaLog(folder).read()
    (folder / "_delta_log/00000000000000000010.checkpoint.parquet").unlink()
    assert replayed.adds == DeltaLog(folder).read().adds
    assert len(replayed.adds) == 12


LOGS = {"delta": "_delta_log", "hudi": ".hoodie", "paimon": "snapshot"}


def test_old_versions_leave_the_logs(lake: ToyLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_LOG_MS", 0)
    monkeypatch.setattr(log, "TOMBSTONE_MS", 0)
    monkeypatch.setattr(delta_sink, "TOMBSTONE_MS", 0)
    monkeypatch.setattr(hudi_sink, "_LISTED_INSTANTS", 18)
    monkeypatch.setattr(hudi_sink, "_COMPLETE_EVERY", 5)
    monkeypatch.setattr(snapshots, "_OLD_MS", 0)
    for _ in range(33):
        lake.add()
    lake.deliver()
    names = [path.name for path in (lake.table_folder(ORDERS) / LOGS[lake.format]).iterdir()]
    assert len(names) <= 18 * 3 + 2
    # Of the files of deletion vectors, one for each version, those that are still needed are left.
    vectors, needed = ("index/*", 24) if lake.format == "paimon" else ("*.bin", 14)
    assert len(list(lake.table_folder(ORDERS).glob(vectors))) <= needed
    for table, version in lake.checkpoints[33].items():
        assert lake.shown(table) == lake.rows(table, 33)
        publication = lake.publication()
        assert isinstance(publication, TakesFiles)
        assert publication.audit(table, CheckpointNumber(33)) == publication.digest_files(version)


def test_missing_instants_of_hudi_are_noticed(tmp_path: Path) -> None:
    lake = ToyLake(tmp_path, "hudi")
    for _ in range(3):
        lake.add()
    lake.deliver()
    min((lake.table_folder(ORDERS) / ".hoodie").glob("*.commit")).unlink()
    lake.add()
    with pytest.raises(SinkError, match="PUBLICATION_LOG_INCOMPLETE"):
        lake.deliver()


def test_readers_begin_at_the_checkpoint_of_the_log(delta_lake: ToyLake) -> None:
    for _ in range(12):
        delta_lake.add()
    delta_lake.deliver()
    for version in range(10):
        (delta_lake.table_folder(ORDERS) / f"_delta_log/{version:020d}.json").unlink()
    assert delta_lake.shown(ORDERS) == delta_lake.rows(ORDERS, 12)
    assert delta_lake.shown(ORDERS, "10") == delta_lake.rows(ORDERS, 11)


def test_files_of_a_table_that_did_not_move_are_not_listed(
    lake: ToyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.add()
    lake.deliver()
    same = lake.checkpoints[1]
    monkeypatch.setattr(ToyVersion, "files", property(lambda _: pytest.fail("the files are listed")))
    for number in (2, 3):
        lake.checkpoints[number] = same
    lake.deliver()
    monkeypatch.undo()
    lake.check()


def test_a_late_owner_is_refused(lake: ToyLake) -> None:
    lake.add()
    lake.deliver()
    late = lake.open()
    late_fence = Fence(lake.fence)
    lake.add()
    intent = lake.prepare(late, 2)
    lake.deliver()
    with pytest.raises(SinkFencedError):
        late.commit(intent.transaction, late_fence)
    with pytest.raises(SinkFencedError):
        late.fence(late_fence)
    lake.check()


def test_an_owner_that_sleeps_behind_its_decision_changes_nothing(
    lake: ToyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.add()
    lake.deliver()
    lake.add()
    late = lake.open()
    late_fence = Fence(lake.fence)
    intent = lake.prepare(late, 2)
    finish = PublicationSink._finish

    def sleep(sink: PublicationSink, state: Any) -> None:
        monkeypatch.setattr(PublicationSink, "_finish", finish)
        lake.add()
        lake.deliver()
        finish(sink, state)

    monkeypatch.setattr(PublicationSink, "_finish", sleep)
    with pytest.raises(SinkError, match="SINK_BASE_CHANGED"):
        late.commit(intent.transaction, late_fence)
    lake.check()


def test_a_transaction_that_was_not_decided_is_dropped(lake: ToyLake) -> None:
    lake.add()
    lake.deliver()
    lake.add()
    sink = lake.open()
    intent = lake.prepare(sink, 2)
    again = lake.open()
    (recovered,) = again.recover([intent], Fence(lake.fence))
    assert recovered.state is TransactionState.ABORTED
    lake.deliver()
    lake.check()


OTHERS = {
    "delta": "_delta_log/00000000000000000001.json",
    "hudi": ".hoodie/99990101000000000.commit",
    "paimon": "snapshot/snapshot-2",
}


def test_the_version_of_another_writer_is_refused(lake: ToyLake) -> None:
    lake.add()
    lake.deliver()
    (lake.table_folder(LINES) / OTHERS[lake.format]).write_text('{"commitInfo": {}}\n')
    lake.add()
    with pytest.raises(SinkError, match="PUBLICATION_DIVERGED") as refused:
        lake.deliver()
    assert str(lake.table_folder(LINES)) in (refused.value.hint or "")
    shutil.rmtree(lake.table_folder(LINES))
    lake.deliver()
    # Of the deleted table there is one version for the delivery that began it again, and one for the next.
    assert lake.shown(LINES) == lake.rows(LINES, 2)
    assert lake.shown(ORDERS) == lake.rows(ORDERS, 2)


def test_another_writer_behind_the_decision_is_noticed(
    delta_lake: ToyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    delta_lake.add()
    delta_lake.deliver()
    delta_lake.add()
    sink = delta_lake.open()
    intent = delta_lake.prepare(sink, 2)
    other = delta_lake.table_folder(LINES) / "_delta_log/00000000000000000001.json"
    other.write_text('{"commitInfo": {}}\n')
    for _ in range(2):
        with pytest.raises(SinkError, match="PUBLICATION_DIVERGED"):
            sink.commit(intent.transaction, Fence(delta_lake.fence))
    shutil.rmtree(delta_lake.table_folder(LINES))
    delta_lake.deliver()
    assert delta_lake.shown(LINES) == delta_lake.rows(LINES, 2)
    delta_lake.add()
    delta_lake.deliver()
    assert delta_lake.shown(ORDERS) == delta_lake.rows(ORDERS, 3)


def test_a_file_system_without_links_is_refused(lake: ToyLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.add()
    lake.deliver()
    lake.add()
    link = os.link

    def refusing(source: Path, path: Path) -> None:
        if path.suffix == ".parquet":
            raise OSError(errno.EXDEV, "another file system")
        link(source, path)

    monkeypatch.setattr(os, "link", refusing)
    if lake.format == "delta" and not lake.links:
        lake.deliver()
        return
    with pytest.raises(SinkError, match="PUBLICATION_FILE_NOT_LINKED") as refused:
        lake.deliver()
    assert not refused.value.retryable
    monkeypatch.setattr(os, "link", link)
    lake.deliver()
    lake.check()


def test_a_full_disk_is_reported(lake: ToyLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.add()

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(publication_state, "put_if_absent", full)
    with pytest.raises(SinkError, match="PUBLICATION_FILE_FAILED") as refused:
        lake.deliver()
    assert refused.value.retryable


def test_a_folder_belongs_to_one_lake(lake: ToyLake) -> None:
    lake.add()
    lake.deliver()
    with pytest.raises(SinkError, match="SINK_DATABASE_TAKEN"):
        lake.publication().claim("another lake")


def test_an_audit_notices_damage(lake: ToyLake) -> None:
    for _ in range(3):
        lake.add()
    lake.deliver()
    sink = lake.open()
    version = lake.checkpoints[3][ORDERS]
    assert isinstance(sink, TakesFiles)
    expected = sink.digest_files(version)
    assert sink.audit(ORDERS, CheckpointNumber(3)) == expected
    if lake.format == "delta":
        vectors = max(lake.table_folder(ORDERS).glob("*.bin"), key=lambda path: path.stat().st_mtime_ns)
        content = vectors.read_bytes()
        vectors.write_bytes(content[:-6] + b"\0\0" + content[-4:])
        assert sink.audit(ORDERS, CheckpointNumber(3)) != expected
        vectors.write_bytes(content)
    next(iter(version.deleted)).write_bytes(b"")
    for path in lake.table_folder(ORDERS).glob("*.parquet"):
        path.write_bytes(b"")
    assert sink.audit(ORDERS, CheckpointNumber(3)) != expected


def test_deleted_rows_are_left_out_at_any_position(lake: ToyLake) -> None:
    """Bitmaps have containers of 2 to the power of 16 positions, as lists, bits or runs."""
    path = write_file(lake.folder / "data", COLUMNS, *((number, "") for number in range(200_000)))
    sparse = {0, 65_535, 65_536, 131_071, 131_072, 199_999}
    dense = set(range(70_000, 90_000)) | set(range(131_073, 180_000, 2))
    for deleted in (sparse, sparse | dense):
        number = lake.publish(orders={path: frozenset(deleted)}, lines={})
        lake.deliver()
        shown = READERS[lake.format](lake.table_folder(ORDERS), None)["id"].to_numpy()
        assert len(shown) == 200_000 - len(deleted)
        assert set(range(200_000)) - set(shown.tolist()) == deleted
        sink, version = lake.publication(), lake.checkpoints[number][ORDERS]
        assert isinstance(sink, TakesFiles)
        assert sink.audit(ORDERS, CheckpointNumber(number)) == sink.digest_files(version)


# -- Paimon ---------------------------------------------------------------------------------------


def test_a_snapshot_says_which_checkpoint_it_is_and_what_it_changed(paimon_lake: ToyLake) -> None:
    first, second, both = (
        write_file(paimon_lake.folder / "data", COLUMNS, *((number, "") for number in numbers))
        for numbers in ((1, 2), (3,), (2, 3))
    )
    none = frozenset[int]()
    versions: list[dict[Path, frozenset[int]]] = [
        {first: none},
        {first: none, second: none},
        {first: frozenset({0}), second: none},
    ]
    for files in versions:
        paimon_lake.publish(orders=files, lines={})
    paimon_lake.deliver()
    compacted = paimon_lake.publish(orders={both: none}, lines={})
    sink = paimon_lake.open()
    intent = paimon_lake.prepare(sink, compacted, moves_rows=False)
    sink.commit(intent.transaction, Fence(paimon_lake.fence))
    paimon_lake.check()
    paths = [paimon_lake.table_folder(ORDERS) / f"snapshot/snapshot-{number}" for number in range(1, 5)]
    described = [json.loads(path.read_text()) for path in paths]
    kinds = [(each["commitIdentifier"], each["commitKind"], each["totalRecordCount"]) for each in described]
    assert kinds == [(1, "OVERWRITE", 2), (2, "APPEND", 3), (3, "OVERWRITE", 3), (4, "COMPACT", 2)]


def test_a_tag_keeps_its_snapshot(paimon_lake: ToyLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_OLD_MS", 0)
    for _ in range(3):
        paimon_lake.add()
    paimon_lake.deliver()
    create_tag(paimon_lake.table_folder(ORDERS), "month", "3")
    for _ in range(4):
        # Nothing of the tag is in force any more.
        number = paimon_lake.publish(orders={}, lines={})
        for _ in range(5):
            number = paimon_lake.add()
    paimon_lake.deliver()
    folder = paimon_lake.table_folder(ORDERS)
    assert "3" not in paimon_snapshots(folder)
    tagged = paimon_rows(folder, tag="month").to_pylist()
    assert sorted(tagged, key=repr) == paimon_lake.rows(ORDERS, 3)
    assert paimon_lake.shown(ORDERS) == paimon_lake.rows(ORDERS, number)


def test_a_file_that_comes_back_is_shown_again(lake: ToyLake) -> None:
    """As after a revision of the lake."""
    first = write_file(lake.folder / "data", COLUMNS, (1, "one"), (2, "two"))
    other = write_file(lake.folder / "data", COLUMNS, (3, "three"))
    some, none = frozenset({1}), frozenset[int]()
    for files in ({first: none}, {other: none}, {first: some}, {other: none, first: none}, {first: some}):
        lake.publish(orders=files, lines={})
    lake.deliver()
    lake.check(last=LAST[lake.format])


@pytest.mark.parametrize("what", ["snapshot", "schema", "rollback"])
def test_what_other_programs_do_to_a_paimon_table_is_noticed(paimon_lake: ToyLake, what: str) -> None:
    for _ in range(2):
        paimon_lake.add()
    paimon_lake.deliver()
    folder = paimon_lake.table_folder(LINES)
    if what == "snapshot":
        append_rows(folder, {"id": "int32", "word": "string"}, {"id": 7, "word": "theirs"})
    elif what == "schema":
        schema = json.loads((folder / "schema/schema-0").read_text())
        (folder / "schema/schema-1").write_text(json.dumps({**schema, "id": 1, "fields": []}))
    else:
        (folder / "snapshot/snapshot-2").unlink()
    paimon_lake.add()
    with pytest.raises(SinkError, match="PUBLICATION_DIVERGED"):
        paimon_lake.deliver()
    shutil.rmtree(folder)
    paimon_lake.deliver()
    for table in (ORDERS, LINES):
        assert paimon_lake.shown(table) == paimon_lake.rows(table, 3)


def test_a_first_snapshot_that_lost_its_files_is_begun_again(
    paimon_lake: ToyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    paimon_lake.add()
    sink = paimon_lake.open()
    intent = paimon_lake.prepare(sink, 1)
    folder = paimon_lake.table_folder(ORDERS)
    for path in (folder / "manifest").iterdir():
        path.unlink()
    for _ in range(2):
        with pytest.raises(SinkError, match="PUBLICATION_LOG_INCOMPLETE") as refused:
            sink.commit(intent.transaction, Fence(paimon_lake.fence))
    assert str(folder) in (refused.value.hint or "")
    shutil.rmtree(folder)
    paimon_lake.deliver()
    paimon_lake.add()
    paimon_lake.deliver()
    for table in (ORDERS, LINES):
        assert paimon_lake.shown(table) == paimon_lake.rows(table, 2)


def test_a_cleaning_leaves_what_others_have_in_the_folder(
    paimon_lake: ToyLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a branch, and a draft that a crash left, which is none of theirs."""
    monkeypatch.setattr(snapshots, "_OLD_MS", 0)
    paimon_lake.add()
    paimon_lake.deliver()
    folder = paimon_lake.table_folder(ORDERS)
    theirs = folder / "bucket-0" / f"data-{uuid.uuid4()}-0.parquet"
    draft = folder / "bucket-0" / f".data-{'0' * 32}.parquet.{'0' * 32}"
    for path in (theirs, draft):
        path.write_bytes(b"")
    branch = folder / "branch/branch-b"
    shutil.copytree(folder / "snapshot", branch / "snapshot")
    of_branch = paimon_rows(folder, "1")
    for _ in range(3):
        paimon_lake.publish(orders={}, lines={})
        for _ in range(6):
            paimon_lake.add()
    paimon_lake.deliver()
    assert theirs.exists()
    assert not draft.exists()
    assert "1" not in paimon_snapshots(folder)
    shutil.copy(branch / "snapshot/snapshot-1", folder / "snapshot")
    assert paimon_rows(folder, "1") == of_branch


def test_a_manifest_that_another_program_removed_is_noticed(paimon_lake: ToyLake) -> None:
    paimon_lake.add()
    paimon_lake.deliver()
    for path in (paimon_lake.table_folder(ORDERS) / "manifest").iterdir():
        path.unlink()
    paimon_lake.add()
    with pytest.raises(SinkError, match="PUBLICATION_LOG_INCOMPLETE"):
        paimon_lake.deliver()


# -- columns --------------------------------------------------------------------------------------

RENAMED = ({**COLUMNS[0]}, {**COLUMNS[1], "name": "text"})
REPLACED = (COLUMNS[0], {**COLUMNS[1], "id": 3})
ADDED = (*COLUMNS, {"id": 3, "name": "n", "required": False, "type": "double"})
WIDENED = ({**COLUMNS[0], "type": "long"}, COLUMNS[1])
SWAPPED = ({**COLUMNS[0], "name": "word"}, {**COLUMNS[1], "name": "id"})
DROPPED = (COLUMNS[1],)


def change_columns(
    lake: ToyLake, columns: Any, *rows: tuple[Any, ...], old: Any = COLUMNS, row: tuple[Any, ...] = (1, "one")
) -> None:
    """A file of the old columns, published; then one of the new columns beside it."""
    files = {write_file(lake.folder / "data", old, row): frozenset[int]()}
    for of_version, added in ((old, ()), (columns, rows)):
        if added:
            files[write_file(lake.folder / "data", of_version, *added)] = frozenset()
        number = lake.publish(orders=files, lines={})
        version = lake.checkpoints[number][ORDERS].version
        lake.checkpoints[number][ORDERS] = ToyVersion(ORDERS, version, of_version, dict(files))
        lake.deliver()


def test_an_added_column_is_null_in_older_rows(lake: ToyLake) -> None:
    change_columns(lake, ADDED, (2, "two", 0.5))
    rows = [{"id": 1, "word": "one", "n": None}, {"id": 2, "word": "two", "n": 0.5}]
    assert lake.shown(ORDERS) == rows
    if lake.format == "delta":
        assert lake.shown(ORDERS, "0") == [{"id": 1, "word": "one"}]


def test_a_widened_column_is_named_to_readers_of_delta(delta_lake: ToyLake) -> None:
    change_columns(delta_lake, WIDENED, (2**40, "two"))
    actions = DeltaLog(delta_lake.table_folder(ORDERS)).read()
    assert actions.protocol is not None
    assert actions.metadata is not None
    assert "typeWidening" in actions.protocol["readerFeatures"]
    (column, _) = json.loads(actions.metadata["schemaString"])["fields"]
    assert column["metadata"]["delta.typeChanges"] == [{"fromType": "integer", "toType": "long"}]


@pytest.mark.parametrize("lake", ["hudi", "paimon"], indirect=True)
def test_a_widened_column_has_older_values(lake: ToyLake) -> None:
    change_columns(lake, WIDENED, (2**40, "two"))
    assert lake.shown(ORDERS) == [{"id": 1, "word": "one"}, {"id": 2**40, "word": "two"}]


@pytest.mark.parametrize("lake", ["delta", "delta by location", "hudi"], indirect=True)
@pytest.mark.parametrize("columns", [RENAMED, REPLACED], ids=["renamed", "replaced"])
def test_columns_that_names_do_not_tell_apart_are_refused(lake: ToyLake, columns: Any) -> None:
    with pytest.raises(SinkError, match="PUBLICATION_COLUMNS_RENAMED"):
        change_columns(lake, columns, (2, "two"))
    assert lake.shown(ORDERS) == [{"id": 1, "word": "one"}]


@pytest.mark.parametrize(
    ("columns", "first"),
    [
        (RENAMED, {"id": 1, "text": "one"}),
        (REPLACED, {"id": 1, "word": None}),
        (SWAPPED, {"word": 1, "id": "one"}),
        (DROPPED, {"word": "one"}),
    ],
    ids=["renamed", "replaced", "swapped", "dropped"],
)
def test_paimon_finds_columns_by_id(paimon_lake: ToyLake, columns: Any, first: dict[str, Any]) -> None:
    second = {2: (2, "two"), 1: ("two",)}[len(columns)]
    change_columns(paimon_lake, columns, second)
    names = [column["name"] for column in columns]
    expected = [first, dict(zip(names, second, strict=True))]
    assert paimon_lake.shown(ORDERS) == sorted(expected, key=repr)
    assert paimon_lake.shown(ORDERS, "1") == [{"id": 1, "word": "one"}]
    # A table whose files have several schemas from the beginning.
    shutil.rmtree(paimon_lake.table_folder(ORDERS))
    paimon_lake.deliver()
    assert paimon_lake.shown(ORDERS) == sorted(expected, key=repr)


def test_renamed_columns_are_mapped_by_id_if_readers_can(delta_lake: ToyLake) -> None:
    delta_lake.by_id = True
    change_columns(delta_lake, RENAMED, (2, "two"))
    actions = DeltaLog(delta_lake.table_folder(ORDERS)).read()
    assert actions.metadata is not None
    assert actions.metadata["configuration"]["delta.columnMapping.mode"] == "id"
    names = [field["name"] for field in json.loads(actions.metadata["schemaString"])["fields"]]
    assert names == ["id", "text"]


def of_kinds(struct: Any) -> list[Any]:
    """A column of a struct, a list of such and a map to such; the ids of their columns differ."""

    def with_ids(first: int) -> Any:
        return {"type": "struct", "fields": [{**each, "id": each["id"] + first} for each in struct]}

    item = {"element-id": 20, "element": with_ids(20), "element-required": False}
    entry = {"key-id": 30, "key": "string", "value-id": 31, "value": with_ids(40), "value-required": False}
    kinds = (with_ids(10), {"type": "list", **item}, {"type": "map", **entry})
    return [{"id": 2 + n, "name": f"c{n}", "required": False, "type": kind} for n, kind in enumerate(kinds)]


def test_paimon_finds_columns_of_structs_by_id(paimon_lake: ToyLake) -> None:
    def column(number: int, name: str, kind: str) -> dict[str, Any]:
        return {"id": number, "name": name, "required": False, "type": kind}

    old = of_kinds([column(1, "a", "int"), column(2, "b", "string"), column(3, "c", "double")])
    new = of_kinds([column(4, "c", "string"), column(2, "text", "string"), column(1, "a", "long")])
    before, after = {"a": 1, "b": "x", "c": 0.5}, {"c": "y", "text": "z", "a": 2**40}
    row, added = (before, [before, None], [("k", before)]), (after, [after], [("k", after)])
    change_columns(paimon_lake, new, added, old=old, row=row)
    seen = {"c": None, "text": "x", "a": 1}
    expected = [
        {"c0": seen, "c1": [seen, None], "c2": [("k", seen)]},
        {f"c{n}": value for n, value in enumerate(added)},
    ]
    assert paimon_lake.shown(ORDERS) == sorted(expected, key=repr)
    assert paimon_lake.shown(ORDERS, "1") == [{f"c{n}": value for n, value in enumerate(row)}]


@pytest.mark.parametrize("kind", ["time", "uuid", "fixed[4]", "timestamp_ns", "variant", "unknown"])
def test_types_that_a_format_lacks_are_refused_before_anything_is_written(lake: ToyLake, kind: str) -> None:
    nested = {"type": "list", "element-id": 5, "element": kind, "element-required": False}
    for of_column in (kind, nested):
        columns = [*COLUMNS, {"id": 4, "name": "odd", "required": False, "type": of_column}]
        path = write_file(lake.folder / "data", COLUMNS, (1, "one"))
        lake.checkpoints = {1: {ORDERS: ToyVersion(ORDERS, Version("1"), columns, {path: frozenset()})}}
        with pytest.raises(SinkError, match="SINK_SCHEMA_UNSUPPORTED"):
            lake.deliver()
    assert not lake.table_folder(ORDERS).exists()


def test_a_column_that_paimon_would_not_find_in_a_file_is_refused(paimon_lake: ToyLake) -> None:
    path = write_file(paimon_lake.folder / "data", COLUMNS, (1, "one"))
    stored = pq.read_table(path)
    pq.write_table(
        stored.set_column(0, stored.field(0).with_type(pa.int16()), stored["id"].cast("int16")), path
    )
    paimon_lake.publish(orders={path: frozenset()}, lines={})
    with pytest.raises(SinkError, match=r"PUBLICATION_FILE_UNREADABLE.*column id has the type int16"):
        paimon_lake.deliver()
    assert not (paimon_lake.table_folder(ORDERS) / "snapshot").exists()


@pytest.mark.parametrize("name", ["_KEY_id", "_ROW_ID", "rowkind"])
def test_names_that_paimon_keeps_for_itself_are_refused(paimon_lake: ToyLake, name: str) -> None:
    with pytest.raises(SinkError, match="SINK_SCHEMA_UNSUPPORTED"):
        change_columns(paimon_lake, ({**COLUMNS[0], "name": name}, COLUMNS[1]), (2, "two"))


@pytest.mark.parametrize(
    ("options", "error_class"),
    [
        ({}, "SINK_OPTION_MISSING"),
        ({"folder": "gs://bucket/delta"}, "SINK_OPTION_INVALID"),
        ({"folder": "s3://bucket"}, "SINK_OPTION_INVALID"),
        ({"folder": "s3://bucket/delta", "files": "links"}, "SINK_OPTION_INVALID"),
        ({"folder": "delta", "files": "copies"}, "SINK_OPTION_INVALID"),
        ({"folder": "delta", "columns": "both"}, "SINK_OPTION_INVALID"),
        ({"folder": "delta", "colums": "ids"}, "SINK_OPTION_INVALID"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], error_class: str) -> None:
    with pytest.raises(SinkError, match=error_class):
        open_delta_publication("mirror", options)
