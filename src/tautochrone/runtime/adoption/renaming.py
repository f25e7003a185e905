"""A pipeline has another name in its spec now: what it owns goes on under that name.

    1. every table is asked whose it is; one of somebody else's, and nothing is written
    2. store: the jobs of the old name belong to the new one, with all that was recorded; their fences rise
    3. each job is taken over   4. each table's commit metadata says the new names   5. the leases are
       given back

Main moves nowhere, so batches that were prepared under the old name stay what they are. A process that dies
in between is followed by one that does the rest: until then runs are refused, as some table has the old name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import partial

from tautochrone.errors import LakeError, SettingsError
from tautochrone.model.effects import Step
from tautochrone.model.lake import CommitMetadata, Fork, LakeTable
from tautochrone.model.names import Fence, TableName
from tautochrone.runtime.job.job import Job

__all__ = ["hand_over"]


def hand_over(job: Job, before: str) -> int:
    """Let the tables of pipeline `before` belong to the job's pipeline. Answers how many did not yet.

    Raises:
        SettingsError: `PIPELINE_NOT_RENAMED`, it has that name.
        LakeError: `TABLE_OF_ANOTHER_PIPELINE`, a table belongs to a third one.
        MetaError: `JOB_RUNNING`, `JOB_NAME_TAKEN`.
    """
    after = job.spec.name
    if before == after:
        raise SettingsError(
            "PIPELINE_NOT_RENAMED",
            f"The pipeline is called {after} in its spec",
            hint="--from-pipeline takes the name that it had before",
            location=str(job.spec.path),
        )
    found = _tables(job, before)
    store = job.store
    jobs = job.effects.perform(Step.META_BELONG, job.name, partial(store.rename_pipeline, before, after))
    fences = _take_over(job, {name: fork for name, (_, fork) in found.items()}, before)
    moved = 0
    for table, fork in found.values():
        assert fork.commit_metadata is not None
        owner = _job_of(fork.commit_metadata, before, after)
        commit_metadata = CommitMetadata(
            pipeline=after, job=owner, fence=fences[owner], store=store.incarnation
        )
        moved += fork.commit_metadata.pipeline != after
        table.commit_metadata_only(fork, commit_metadata)
    for owner, fence in fences.items():
        if owner in {status.name for status in store.job_states()}:
            store.end_run(owner, fence)
    job.emit("pipeline_renamed", before=before, pipeline=after, jobs=jobs, tables=moved)
    return moved


def _tables(job: Job, before: str) -> dict[TableName, tuple[LakeTable, Fork]]:
    """The project's tables that are written by a pipeline, those of its other jobs included."""
    found: dict[TableName, tuple[LakeTable, Fork]] = {}
    for name in [*job.graph.order, *sorted(job.topology.sibling_tables)]:
        if not job.lake.exists(name):
            continue
        table = job.lake.load(name)
        fork = table.fork()
        if fork.commit_metadata is None:
            continue
        if fork.commit_metadata.pipeline not in (before, job.spec.name):
            raise LakeError(
                "TABLE_OF_ANOTHER_PIPELINE",
                f"{name} is written by pipeline {fork.commit_metadata.pipeline}, neither by {before} nor by "
                f"{job.spec.name}",
                hint="one dataset has one producing pipeline: rename one of them",
                location=str(job.definitions.datasets[name].location),
                sqlstate="42P07",
            )
        found[name] = table, fork
    return found


def _job_of(commit_metadata: CommitMetadata, before: str, after: str) -> str:
    """A pipeline's own job is called like it; others have names of their own."""
    return after if commit_metadata.job == before else commit_metadata.job


def _take_over(job: Job, forks: Mapping[TableName, Fork], before: str) -> dict[str, Fence]:
    """A fence for each job that wrote one of the tables, above all that the store and the lake have seen."""
    seen: dict[str, Fence] = {}
    for fork in forks.values():
        assert fork.commit_metadata is not None
        owner = _job_of(fork.commit_metadata, before, job.spec.name)
        seen[owner] = max(seen.get(owner, Fence(0)), fork.fence)
    known = {status.name for status in job.store.job_states()}
    process = f"{socket.gethostname()}:{os.getpid()}"
    fences: dict[str, Fence] = {}
    for owner, highest in seen.items():
        # A store that knows no such job is filled from the lake at the next run.
        fences[owner] = Fence(highest + 1)
        if owner in known:
            taken = partial(job.store.take_over, owner, at_least=highest, owner=process)
            fences[owner] = job.effects.perform(Step.META_TAKE_OVER, owner, taken)
    return fences
