"""What changed at a checkpoint: by the history of refreshes, and by the summaries of snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import URL

from tautochrone.errors import CheckpointUnavailableError, TableMissingError
from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.metaservice.checkpoint_changes import (
    RowCounts,
    changes_at,
    rows_between_snapshots,
    rows_from_metadata,
)
from tautochrone.model.checkpoint import CheckpointState, Refresh, RefreshMode
from tautochrone.model.names import NOW, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.rest_catalog.metadata import JdbcSource

ROOT, VIEW, STALE = (TableName("lake", ("db",), name) for name in ("orders", "totals", "quiet"))


def snapshot(number: int, parent: int | None, operation: str = "append", **summary: int) -> dict[str, Any]:
    counts = {name.replace("_", "-"): str(value) for name, value in summary.items()}
    return {
        "snapshot-id": number,
        "parent-snapshot-id": parent,
        "summary": {"operation": operation, **counts},
    }


METADATA = {
    "snapshots": [
        snapshot(1, None, added_records=10),
        snapshot(2, 1, added_records=5),
        snapshot(3, 2, "overwrite", added_records=2, added_position_deletes=2),
        snapshot(4, 3, "replace", added_records=15, deleted_records=17, removed_position_deletes=2),
        # A file of ten rows goes, of which three had gone before.
        snapshot(5, 4, "delete", deleted_records=10, removed_position_deletes=3),
        snapshot(6, 5, "overwrite", added_records=1, added_equality_deletes=1),
        snapshot(9, 8, added_records=1),
    ]
}


@pytest.mark.parametrize(
    ("before", "version", "rows"),
    [
        (None, "1", RowCounts(10, 0)),
        (None, "2", RowCounts(15, 0)),
        ("1", "2", RowCounts(5, 0)),
        ("2", "3", RowCounts(2, 2)),
        ("3", "4", RowCounts(0, 0)),
        ("2", "5", RowCounts(2, 9)),
        ("5", "5", RowCounts(0, 0)),
        ("5", "6", None),
        ("7", "9", None),
        ("2", "1", None),
        ("1", "77", None),
    ],
)
def test_rows_between_snapshots(before: str | None, version: str, rows: RowCounts | None) -> None:
    assert rows_between_snapshots(METADATA, before, version) == rows


def test_tables_that_cannot_be_read_have_no_rows() -> None:
    class Gone:
        catalog = "lake"

        def load(self, table: TableName) -> Any:
            raise TableMissingError("TABLE_NOT_FOUND", f"There is no table {table}")

    assert rows_from_metadata(None)(ROOT, None, Version("1")) is None
    assert rows_from_metadata(Gone())(ROOT, None, Version("1")) is None  # type: ignore[arg-type]


def test_a_lake_that_cannot_be_read_is_said(open_store: Callable[[], MetaStore], tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database" * 100)
    source = JdbcSource("lake", URL.create("sqlite", database=str(tmp_path / "broken.db")), {})
    with open_store() as store:
        refreshed(store, (5, 3, 4))
        store.checkpoints.revoke("job", store.jobs.newest_fence("job"), 2)
        changes = changes_at(store, 3, rows_from_metadata(source))
    assert "[METADATA_UNREADABLE]" in (changes.problem or "")
    assert [change.rows for change in changes.tables] == [None]


@pytest.fixture
def open_store(tmp_path: Path) -> Callable[[], MetaStore]:
    return lambda: MetaStore.open(f"sqlite:///{tmp_path}/meta.db")


def test_changes_since_the_checkpoint_before(open_store: Callable[[], MetaStore]) -> None:
    requests: list[tuple[TableName, Version | None, Version]] = []

    def rows_between(table: TableName, before: Version | None, version: Version) -> RowCounts:
        requests.append((table, before, version))
        return RowCounts(4, 0)

    with open_store() as store:
        entries = [DatasetEntry(ROOT, "streaming table", "r", is_root=True)]
        entries += [
            DatasetEntry(view, "materialized view", "v", frozenset({ROOT, NOW})) for view in (VIEW, STALE)
        ]
        store.jobs.start_run("shop", "job", entries)
        fence = store.jobs.take_over("job")
        for cut in (1, 2, 3):
            roots = {ROOT: Version(str(cut)), NOW: Version(str(cut))}
            number = store.checkpoints.open("job", fence, NewCheckpoint(roots, cut)).number
            if cut == 2:
                store.checkpoints.abort("job", fence, number)
                continue
            refresh = Refresh(
                mode=RefreshMode.FULL, reason=unclassified("x"), rows_inserted=cut, rows_deleted=1
            )
            quiet = Refresh(
                mode=RefreshMode.NO_DATA if cut > 1 else RefreshMode.FULL, reason=unclassified("x")
            )
            store.checkpoints.record_version("job", fence, number, VIEW, Version(f"v{cut}"), refresh)
            store.checkpoints.record_version("job", fence, number, STALE, Version("s"), quiet)
            store.checkpoints.publish("job", fence, number, cut)
        third = changes_at(store, 3, rows_between)
        # The second checkpoint shows nothing, so the first one is compared with.
        assert (third.previous, third.following, third.compared) == (2, None, 1)
        by_table = {change.table: change for change in third.tables}
        assert by_table[VIEW].rows == RowCounts(3, 1)
        assert by_table[ROOT].rows == RowCounts(4, 0)
        assert by_table[ROOT].is_root
        assert (by_table[STALE].changed, by_table[STALE].rows) == (False, RowCounts(0, 0))
        assert third.tables[-1].table == STALE
        assert (by_table[NOW].changed, by_table[NOW].rows) == (True, None)
        assert requests == [(ROOT, Version("1"), Version("3"))]
        first = changes_at(store, 1, rows_between)
        assert (first.previous, first.compared) == (None, None)
        assert {change.changed for change in first.tables} == {None}
        with pytest.raises(CheckpointUnavailableError):
            changes_at(store, 77, rows_between)


def refreshed(store: MetaStore, rows: Sequence[int | None]) -> None:
    """A checkpoint for each of `rows`: of so many rows of the view, 0: without news, None: it fails."""
    store.jobs.start_run("shop", "job", [DatasetEntry(VIEW, "materialized view", "v", frozenset())])
    fence, version = store.jobs.take_over("job"), Version("none")
    for cut, count in enumerate(rows, 1):
        number = store.checkpoints.open("job", fence, NewCheckpoint({}, cut)).number
        if count is None:
            store.checkpoints.record_failure("job", fence, number, VIEW, unclassified("it broke"))
        else:
            version = Version(f"v{cut}") if count else version
            mode = RefreshMode.INCREMENTAL if count else RefreshMode.NO_DATA
            refresh = Refresh(mode=mode, reason=unclassified("x"), rows_inserted=count)
            store.checkpoints.record_version("job", fence, number, VIEW, version, refresh)
        store.checkpoints.publish("job", fence, number, cut)


@pytest.mark.parametrize(
    ("rows", "gone", "expected"),
    [
        ((5, 3), (), (1, "v1", True, 3)),
        # A refresh at a checkpoint that nobody can read counted a part of the rows.
        ((5, 3, 4), (2,), (1, "v1", True, 99)),
        ((5, 3, 0), (2,), (1, "v1", True, 99)),
        ((5, 0, 4), (2,), (1, "v1", True, 4)),
        # A checkpoint without the view does not make it new.
        ((5, None, 0), (), (1, "v1", False, 0)),
        ((5, None, None, 4), (), (1, "v1", True, 4)),
        # Nothing to compare with.
        ((None, 4), (), (None, None, None, 4)),
        ((5, None, 4), (1,), (None, None, None, 4)),
    ],
)
@pytest.mark.parametrize("state", [CheckpointState.REVOKED, CheckpointState.EXPIRED])
def test_each_table_has_its_own_comparison(
    open_store: Callable[[], MetaStore],
    rows: tuple[int | None, ...],
    gone: tuple[int, ...],
    expected: tuple[int | None, str | None, bool | None, int],
    state: CheckpointState,
) -> None:
    with open_store() as store:
        refreshed(store, rows)
        for number in gone:
            if state is CheckpointState.EXPIRED:
                store.checkpoints.expire(number)
            else:
                store.checkpoints.revoke("job", store.jobs.newest_fence("job"), number)
        newest = changes_at(store, len(rows), lambda *_: RowCounts(99, 0))
        (change,) = newest.tables
        assert newest.compared == max({*range(1, len(rows))} - {*gone}, default=None)
        added = None if change.rows is None else change.rows.added
        assert (change.compared, change.before, change.changed, added) == expected


def test_a_table_is_new_where_it_did_not_fail_before(open_store: Callable[[], MetaStore]) -> None:
    with open_store() as store:
        refreshed(store, (5,))
        other = DatasetEntry(STALE, "materialized view", "v", frozenset())
        store.jobs.start_run(
            "shop", "job", [DatasetEntry(VIEW, "materialized view", "v", frozenset()), other]
        )
        fence = store.jobs.take_over("job")
        number = store.checkpoints.open("job", fence, NewCheckpoint({}, 2)).number
        for name in (VIEW, STALE):
            refresh = Refresh(mode=RefreshMode.FULL, reason=unclassified("x"), rows_inserted=7)
            store.checkpoints.record_version("job", fence, number, name, Version("w"), refresh)
        store.checkpoints.publish("job", fence, number, 2)
        by_table = {change.table: change for change in changes_at(store, number, lambda *_: None).tables}
    new = by_table[STALE]
    assert (new.compared, new.before, new.changed, new.rows) == (None, None, True, RowCounts(7, 0))
