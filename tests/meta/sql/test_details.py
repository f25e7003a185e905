"""What a job tells of its datasets for people, and light looks at many checkpoints at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta import CheckpointLine, DatasetEntry, MetaStore, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import CheckpointState, Refresh, RefreshMode
from tautochrone.model.definitions import ColumnLineage, ColumnRef, DatasetDetails, LakeColumn
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import unclassified

ROOT, VIEW, OTHER = (TableName("lake", ("db",), table) for table in ("orders", "totals", "other"))
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"), rows_inserted=3)
TOLD = DatasetDetails(
    dataset=VIEW,
    definition="b",
    location="views.sql:3",
    text="SELECT sum(x) AS `s\n\u2603` FROM orders",
    columns=(LakeColumn("s\n\u2603", "bigint"), LakeColumn("a", "int", "the first")),
    lineage=ColumnLineage(
        values={"s\n\u2603": frozenset({ColumnRef(ROOT, "x"), ColumnRef(ROOT, "y")}), "a": frozenset()},
        rows=frozenset({ColumnRef(ROOT, "k")}),
    ),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db", clock=lambda: 5_000) as opened:
        opened.jobs.start_run(
            "shop",
            "job",
            [
                DatasetEntry(ROOT, "streaming table", "a"),
                DatasetEntry(VIEW, "materialized view", "b", frozenset({ROOT})),
            ],
        )
        opened.jobs.start_run("side", "idle", [DatasetEntry(OTHER, "materialized view", "c")])
        opened.jobs.take_over("job")
        yield opened


def test_details_come_back_as_they_were_told(store: Store) -> None:
    assert store.datasets.details(VIEW) is None
    store.datasets.describe("job", Fence(1), [TOLD])
    assert store.datasets.details(VIEW) == TOLD
    assert [*store.datasets.details(VIEW).lineage.values] == ["s\n\u2603", "a"]  # type: ignore[union-attr]
    unknown = replace(TOLD, definition="c", lineage=ColumnLineage(problem="no plan"))
    store.datasets.describe("job", Fence(1), [unknown])
    store.datasets.describe("job", Fence(1), [unknown])
    assert store.datasets.details(VIEW) == unknown
    assert store.datasets.details_of_job("job") == {VIEW: unknown}
    assert store.datasets.details_of_job("idle") == {}


def test_only_the_owner_tells_and_only_of_its_own(store: Store) -> None:
    with pytest.raises(MetaError, match="DATASET_NOT_FOUND"):
        store.datasets.describe("job", Fence(1), [TOLD, replace(TOLD, dataset=OTHER)])
    assert store.datasets.details(VIEW) is None, "all or nothing"
    store.jobs.take_over("job")
    with pytest.raises(FencedError, match="JOB_FENCED"):
        store.datasets.describe("job", Fence(1), [TOLD])


def test_what_is_retired_is_not_described(store: Store) -> None:
    store.datasets.describe("job", Fence(1), [TOLD])
    store.jobs.start_run("shop", "job", [DatasetEntry(ROOT, "streaming table", "a")])
    assert store.datasets.details_of_job("job") == {}


def test_the_timeline_counts(store: Store) -> None:
    first = store.checkpoints.open("job", Fence(1), NewCheckpoint({ROOT: Version("1")}, 1_000)).number
    store.checkpoints.record_version("job", Fence(1), first, VIEW, Version("v1"), FULL)
    store.checkpoints.publish("job", Fence(1), first, 1_500)
    second = store.checkpoints.open("job", Fence(1), NewCheckpoint({ROOT: Version("2")}, 2_000)).number
    store.checkpoints.record_failure("job", Fence(1), second, VIEW, unclassified("broke"))
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
    assert store.history.timeline() == (opened, done)
    assert store.history.timeline(1) == (opened,)
    assert store.checkpoints.cut_times([first, second, 99]) == {first: 1_000, second: 2_000}
    assert [(r.dataset, r.error) for r in store.history.recent_refreshes()] == [(VIEW, "broke"), (VIEW, None)]
    assert [r.checkpoint for r in store.history.refreshes_at(first)] == [first]


def test_reports_have_their_time(store: Store) -> None:
    store.roots.report("job", Fence(1), {ROOT: Version("1")})
    ((table, job, at_ms),) = [(r.table, r.job, r.at_ms) for r in store.roots.report_times()]
    assert (table, job, at_ms) == (ROOT, "job", 5_000)
