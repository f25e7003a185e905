"""Pipelines that read each other's tables and come one after the other to a store that knows none of them."""

from __future__ import annotations

from tests.support.stores import Backing

from tautochrone.meta import DatasetEntry, LakeVersion
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version

SOURCE, MIDDLE, LAST = (TableName("lake", ("db",), name) for name in ("t0", "t1", "t2"))


def commit(job: str, version: str, reads: TableName, input_version: str) -> LakeVersion:
    commit_metadata = CommitMetadata(
        pipeline=job,
        job=job,
        fence=Fence(1),
        store="lost",
        checkpoint=CheckpointNumber(2),
        mode="full",
        definition="d",
        inputs={str(reads): input_version},
    )
    return LakeVersion(version=Version(version), commit_metadata=commit_metadata, committed_at_ms=1)


def test_external_table_is_shown_at_its_own_jobs_checkpoint(
    database: Backing,
) -> None:
    with database.open() as store:
        store.recovery.rebuild({LAST: [commit("b", "20", MIDDLE, "10")]})
        store.recovery.reconcile("a", {MIDDLE: [commit("a", "10", SOURCE, "1")]})
        entry = DatasetEntry(MIDDLE, "materialized view", "d", frozenset([SOURCE]))
        store.jobs.start_run("a", "a", [entry])
        opened = store.checkpoints.open(
            "a", store.jobs.take_over("a"), NewCheckpoint({SOURCE: Version("2")}, 5)
        )

        assert MIDDLE not in store.checkpoints.versions_at(opened.number)
