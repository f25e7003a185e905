"""What a job tells of its datasets for people, and light looks at many checkpoints at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta import CheckpointLine, DatasetEntry, MetaStore
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.details import Column, ColumnLineage, ColumnRef, DatasetDetails
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.refresh import Refresh, RefreshMode

ROOT, VIEW, OTHER = (TableName("lake", ("db",), table) for table in ("orders", "totals", "other"))
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"), rows_inserted=3)
TOLD = DatasetDetails(
    dataset=VIEW,
    definition="b",
    location="views.sql:3",
    text="SELECT sum(x) AS `s\n\u2603` FROM orders",
    columns=(Column("s\n\u2603", "bigint"), Column("a", "int", "the first")),
    lineage=ColumnLineage(
        values={"s\n\u2603": frozenset({ColumnRef(ROOT, "x"), ColumnRef(ROOT, "y")}), "a": frozenset()},
        rows=frozenset({ColumnRef(ROOT, "k")}),
    ),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetaStore]:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db", clock=lambda: 5_000) as opened:
        opened.start_run(
            "shop",
            "job",
            [
                DatasetEntry(ROOT, "streaming table", "a"),
                DatasetEntry(VIEW, "materialized view", "b", frozenset({ROOT})),
            ],
        )
        opened.start_run("side", "idle", [DatasetEntry(OTHER, "materialized view", "c")])
        opened.take_over("job")
        yield opened


def test_details_come_back_as_they_were_told(store: MetaStore) -> None:
    assert store.details(VIEW) is None
    store.describe("job", Fence(1), [TOLD])
    assert store.details(VIEW) == TOLD
    assert [*store.details(VIEW).lineage.values] == ["s\n\u2603", "a"]  # type: ignore[union-attr]
    unknown = replace(TOLD, definition="c", lineage=ColumnLineage(problem="no plan"))
    store.describe("job", Fence(1), [unknown])
    store.describe("job", Fence(1), [unknown])
    assert store.details(VIEW) == unknown
    assert store.described("job") == {VIEW: unknown}
    assert store.described("idle") == {}


def test_only_the_owner_tells_and_only_of_its_own(store: MetaStore) -> None:
    with pytest.raises(MetaError, match="DATASET_NOT_FOUND"):
        store.describe("job", Fence(1), [TOLD, replace(TOLD, dataset=OTHER)])
    assert store.details(VIEW) is None, "all or nothing"
    store.take_over("job")
    with pytest.raises(FencedError, match="JOB_FENCED"):
        store.describe("job", Fence(1), [TOLD])


def test_what_is_retired_is_not_described(store: MetaStore) -> None:
    store.describe("job", Fence(1), [TOLD])
    store.start_run("shop", "job", [DatasetEntry(ROOT, "streaming table", "a")])
    assert store.described("job") == {}


def test_the_timeline_counts(store: MetaStore) -> None:
    first = store.open_checkpoint("job", Fence(1), {ROOT: Version("1")}, 1_000).number
    store.record_version("job", Fence(1), first, VIEW, Version("v1"), FULL)
    store.publish("job", Fence(1), first, 1_500)
    second = store.open_checkpoint("job", Fence(1), {ROOT: Version("2")}, 2_000).number
    store.record_failure("job", Fence(1), second, VIEW, unclassified("broke"))
    done = CheckpointLine(
        number=CheckpointNumber(first),
        job="job",
        state=CheckpointState.PUBLISHED,
        cut_at_ms=1_000,
        published_at_ms=1_500,
        recorded=1,
        failed=0,
    )
    opened = replace(
        done,
        number=CheckpointNumber(second),
        state=CheckpointState.OPEN,
        cut_at_ms=2_000,
        published_at_ms=None,
        recorded=0,
        failed=1,
    )
    assert store.timeline() == (opened, done)
    assert store.timeline(1) == (opened,)
    assert store.cut_times([first, second, 99]) == {first: 1_000, second: 2_000}
    assert [(r.dataset, r.error) for r in store.recent_refreshes()] == [(VIEW, "broke"), (VIEW, None)]
    assert [r.checkpoint for r in store.refreshes_at(first)] == [first]


def test_reports_are_told_with_their_time(store: MetaStore) -> None:
    store.report("job", Fence(1), {ROOT: Version("1")})
    ((table, job, at),) = [(r.table, r.job, r.at_ms) for r in store.reports()]
    assert (table, job, at) == (ROOT, "job", 5_000)
