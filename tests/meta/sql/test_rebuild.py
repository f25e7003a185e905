"""A lost store is built again from the commit metadata of the lake's commits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tautochrone.errors import MetaError
from tautochrone.meta import DatasetEntry, LakeVersion, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import NOW, CheckpointNumber, Fence, TableName, Version, today

ROOT, A, B = (TableName("lake", ("db",), table) for table in ("root", "a", "b"))


def timed(version: str, checkpoint: int, **clocks: str) -> LakeVersion:
    """Of a view that also asks for the time, or for the date in Tokyo."""
    untimed = made(version, checkpoint, root="r1")
    assert untimed.commit_metadata is not None
    names = {"now": str(NOW), "today": str(today("Asia/Tokyo"))}
    inputs = {**untimed.commit_metadata.inputs, **{names[clock]: value for clock, value in clocks.items()}}
    return replace(untimed, commit_metadata=replace(untimed.commit_metadata, inputs=inputs))


def made(version: str, checkpoint: int | None = None, fence: int = 3, **inputs: str) -> LakeVersion:
    commit_metadata = CommitMetadata(
        pipeline="shop",
        job="job",
        fence=Fence(fence),
        store="lost",
        checkpoint=None if checkpoint is None else CheckpointNumber(checkpoint),
        inputs={f"lake.db.{table}": input_version for table, input_version in inputs.items()},
    )
    return LakeVersion(
        version=Version(version), commit_metadata=commit_metadata, committed_at_ms=int(checkpoint or 0) * 10
    )


def test_rebuild_restores_all_complete_checkpoints(store: Store) -> None:
    rebuilt = store.recovery.rebuild(
        {
            ROOT: [made("r1"), made("r2"), made("r3", fence=9)],
            A: [made("a1", 5, root="r1"), made("a2", 7, root="r2")],
            B: [made("b1", 5, a="a1"), made("b2", 7, a="a2")],
        }
    )
    assert rebuilt == (5, 7)
    assert store.checkpoints.versions_at(5) == {ROOT: "r1", A: "a1", B: "b1"}
    assert store.checkpoints.versions_at(7) == {ROOT: "r2", A: "a2", B: "b2"}
    assert store.checkpoints.get(7).roots == {ROOT: "r2"}
    assert store.checkpoints.get(7).cut_at_ms == 70
    store.jobs.start_run("shop", "job", [DatasetEntry(n, "materialized view", "") for n in (ROOT, A, B)])
    fence = store.jobs.take_over("job", at_least=9)
    assert fence > 1000
    assert store.checkpoints.open("job", fence, NewCheckpoint({ROOT: Version("r3")}, 1)).number > 1000
    assert not store.recovery.is_empty()
    with pytest.raises(MetaError, match="META_STORE_NOT_EMPTY"):
        store.recovery.rebuild({})


def test_rebuild_omits_incomplete_and_contradictory_checkpoints(store: Store) -> None:
    rebuilt = store.recovery.rebuild(
        {
            # At 6 only A was finished: B still stands on A's older version.
            A: [made("a1", 5, root="r1"), made("a2", 6, root="r2")],
            B: [made("b1", 5, a="a1", root="r1")],
        }
    )
    assert rebuilt == (5,)
    assert store.checkpoints.versions_at(5) == {ROOT: "r1", A: "a1", B: "b1"}
    assert store.reads.resolve().versions == {ROOT: "r1", A: "a1", B: "b1"}


def test_rebuild_across_fence_commits(store: Store) -> None:
    rebuilt = store.recovery.rebuild(
        {
            A: [made("a1", 5, root="r1"), made("a1f"), made("a2", 9, root="r3", side="s1")],
            # B saw the fence snapshot of A, which holds the same rows; it does not read `root`.
            B: [made("b1", 5, a="a1"), made("b2", 6, a="a1f", other="o1"), made("b3", 9, a="a2")],
        }
    )
    assert rebuilt == (5, 6, 9)
    assert store.checkpoints.versions_at(6)[A] == "a1"
    assert store.checkpoints.get(6).state is CheckpointState.PUBLISHED


def test_metadata_only_commit_means_no_change(store: Store) -> None:
    lake = {
        A: [made("a1", 5, root="r1"), made("a2", 6, root="r2")],
        B: [made("b1", 5, root="r1"), made("b1", 6, root="r2")],
    }
    assert store.recovery.rebuild(lake) == (5, 6)
    assert store.checkpoints.versions_at(6) == {ROOT: "r2", A: "a2", B: "b1"}


def test_unchanged_view_keeps_its_older_time(store: Store) -> None:
    lake = {
        A: [timed("a1", 5, now="900", today="20254"), timed("a2", 6, now="1000", today="20255")],
        # At 6 nothing of it changed, so no commit tells its time there. As text 900 would be the newer one.
        B: [timed("b1", 5, now="900")],
    }
    assert store.recovery.rebuild(lake) == (5, 6)
    assert store.checkpoints.versions_at(5)[NOW] == "900"
    assert store.checkpoints.versions_at(6) == {
        ROOT: "r1",
        A: "a2",
        B: "b1",
        NOW: "1000",
        today("Asia/Tokyo"): "20255",
    }
    assert store.reads.resolve().versions == {ROOT: "r1", A: "a2", B: "b1"}


def test_a_lake_without_anything_of_ours(store: Store) -> None:
    alien = LakeVersion(version=Version("x"), commit_metadata=None, committed_at_ms=1)
    assert store.recovery.rebuild({A: [alien]}) == ()
    assert store.recovery.is_empty()
    assert store.reads.knows(A) is False


def by(job: str, commit: LakeVersion) -> LakeVersion:
    assert commit.commit_metadata is not None
    return replace(commit, commit_metadata=replace(commit.commit_metadata, job=job))


def entries(table: TableName, *inputs: TableName) -> list[DatasetEntry]:
    kind = "materialized view" if inputs else "streaming table"
    return [DatasetEntry(table, kind, "", frozenset(inputs), is_root=not inputs)]


def test_rebuild_restores_connected_jobs_together(store: Store) -> None:
    apart, other = TableName("lake", ("db",), "apart"), TableName("lake", ("db",), "other")
    rebuilt = store.recovery.rebuild(
        {
            ROOT: [by("ingest", made("r1")), by("ingest", made("r2")), by("ingest", made("r3"))],
            # Job b left 6 out and came to 7; at 8 only a had done its part.
            A: [by("a", made(f"a{n}", number, root=f"r{n}")) for n, number in ((1, 5), (2, 6), (3, 8))],
            B: [by("b", made("b1", 5, root="r1", a="a1")), by("b", made("b2", 7, root="r2", a="a2"))],
            # Nothing joins these to the others: that 8 is undecided there is nothing to them.
            apart: [by("far", made("x1", 8, other="o1"))],
            other: [by("beyond", made("o1"))],
        }
    )
    assert rebuilt == (5, 7, 8)
    assert store.checkpoints.versions_at(5) == {ROOT: "r1", A: "a1", B: "b1"}
    seven = {ROOT: "r2", A: "a2", B: "b2"}
    assert store.checkpoints.versions_at(7) == seven
    assert store.reads.resolve(lease_ms=0).versions == {**seven, apart: "x1", other: "o1"}
    assert {part.job: part.part.value for part in store.checkpoints.progress(7)} == dict.fromkeys(
        "ab", "done"
    ) | {"ingest": "done"}
    assert store.reads.resolve(tables=[A], lease_ms=0).versions == {A: "a2"}
    assert store.reads.resolve(tables=[apart], lease_ms=0).versions == {apart: "x1"}
    # Whoever comes first cuts for all of them, though they have not started yet.
    store.jobs.start_run("shop", "ingest", entries(ROOT))
    fence = store.jobs.take_over("ingest", at_least=3)
    store.roots.report("ingest", fence, {ROOT: Version("r4")})
    number = store.checkpoints.open("ingest", fence, NewCheckpoint({ROOT: Version("r4")}, 1)).number
    assert number > 1000
    assert store.reads.resolve(tables=[ROOT, B], lease_ms=0).versions == {ROOT: "r2", B: "b2"}
    assert store.checkpoints.versions_at(8) == {**seven, apart: "x1", other: "o1"}
    store.jobs.start_run("shop", "b", entries(B, ROOT, A))
    assert store.checkpoints.begin_next("b", store.jobs.take_over("b")) is not None
    # What a has not done is not there for b, whatever it was before.
    assert store.checkpoints.versions_at(number) == {ROOT: "r4", apart: "x1", other: "o1"}


def test_table_known_from_readers_gets_its_job_at_start(store: Store) -> None:
    assert store.recovery.rebuild({B: [by("b", made("b1", 5, a="a1"))]}) == (5,)
    store.jobs.start_run("shop", "b", entries(B, A))
    fence = store.jobs.take_over("b")
    store.jobs.start_run("shop", "a", entries(A, ROOT))
    assert store.reads.resolve(tables=[A, B], lease_ms=0).versions == {A: "a1", B: "b1"}
    number = store.checkpoints.open("b", fence, NewCheckpoint({ROOT: Version("r2")}, 1)).number
    assert store.checkpoints.versions_at(number) == {ROOT: "r2"}
