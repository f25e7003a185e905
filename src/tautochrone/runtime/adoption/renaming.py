"""Moves a pipeline's tables to its new name after the spec was changed.

    1. check who wrote each table; if one belongs to another pipeline, nothing is written
    2. in the store, move the jobs of the old name with their records to the new name; raise their fences
    3. take each job over   4. write the new names into each table's commit metadata   5. return the leases

Main does not move, so batches prepared under the old name stay valid. After a crash the command is repeated;
until then runs are refused, because some tables still have the old name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from functools import partial

from tautochrone.errors import LakeError, SettingsError
from tautochrone.meta import Store
from tautochrone.model import events
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.effects import Effects, Step
from tautochrone.model.lake import CommitMetadata, Fork, LakeTable
from tautochrone.model.names import Fence, TableName
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.topology import JobTopology
from tautochrone.runtime.refresh.states import STATE_NAMESPACE, states_among

__all__ = ["hand_over"]


def hand_over(job: Job, before: str) -> int:
    """Move the tables of pipeline `before` to the job's pipeline; returns how many were moved.

    Raises:
        SettingsError: `PIPELINE_NOT_RENAMED`, it has that name.
        LakeError: `TABLE_OF_ANOTHER_PIPELINE`, a table belongs to a third one.
        MetaError: `JOB_RUNNING`, `JOB_NAME_TAKEN`, `RENAME_NOT_POSSIBLE`.
    """
    after = job.spec.name
    if before == after:
        raise SettingsError(
            "PIPELINE_NOT_RENAMED",
            f"The pipeline is called {after} in its spec",
            hint="--from-pipeline takes the name that it had before",
            location=str(job.spec.path),
        )
    tables = _tables(job.topology, job.lake, before, after)
    store = job.store
    jobs = job.effects.perform(Step.META_BELONG, job.name, partial(store.jobs.rename_pipeline, before, after))
    fences = _take_over(store, job.effects, [fork for _, fork in tables.values()], before, after)
    moved = 0
    for table, fork in tables.values():
        assert fork.commit_metadata is not None
        owner = _job_of(fork.commit_metadata, before, after)
        commit_metadata = CommitMetadata(
            pipeline=after, job=owner, fence=fences[owner], store=store.incarnation
        )
        moved += fork.commit_metadata.pipeline != after and table.name.namespace != STATE_NAMESPACE
        table.commit_metadata_only(fork, commit_metadata)
    for owner, fence in fences.items():
        if owner in {status.name for status in store.jobs.states()}:
            store.jobs.end_run(owner, fence)
    job.emit(events.PipelineRenamed(before=before, pipeline=after, jobs=jobs, tables=moved))
    return moved


def _tables(
    topology: JobTopology, lake: LakeCatalog, before: str, after: str
) -> dict[TableName, tuple[LakeTable, Fork]]:
    """The project's tables that a pipeline wrote, those of its other jobs and the states included."""
    tables: dict[TableName, tuple[LakeTable, Fork]] = {}
    datasets = [*topology.graph.order, *sorted(topology.sibling_tables)]
    for name in datasets:
        if not lake.exists(name):
            continue
        table = lake.load(name)
        fork = table.fork()
        if fork.commit_metadata is None:
            continue
        if fork.commit_metadata.pipeline not in (before, after):
            raise LakeError(
                "TABLE_OF_ANOTHER_PIPELINE",
                f"{name} is written by pipeline {fork.commit_metadata.pipeline}, neither by {before} nor by "
                f"{after}",
                hint="one dataset has one producing pipeline: rename one of them",
                location=str(topology.definitions.datasets[name].location),
                sqlstate="42P07",
            )
        tables[name] = table, fork
    for name in states_among(lake.tables(), datasets):
        table = lake.load(name)
        fork = table.fork()
        # A state may be of a table of that name which another pipeline had.
        if fork.commit_metadata is not None and fork.commit_metadata.pipeline in (before, after):
            tables[name] = table, fork
    return tables


def _job_of(commit_metadata: CommitMetadata, before: str, after: str) -> str:
    """The table's job under the new name: a pipeline's default job has the pipeline's name."""
    return after if commit_metadata.job == before else commit_metadata.job


def _take_over(
    store: Store, effects: Effects, forks: Collection[Fork], before: str, after: str
) -> dict[str, Fence]:
    """Take over each job that wrote one of the tables: a fence above all in the store and the lake."""
    in_lake: dict[str, Fence] = {}
    for fork in forks:
        assert fork.commit_metadata is not None
        owner = _job_of(fork.commit_metadata, before, after)
        in_lake[owner] = max(in_lake.get(owner, Fence(0)), fork.fence)
    stored_jobs = {status.name for status in store.jobs.states()}
    process = f"{socket.gethostname()}:{os.getpid()}"
    fences: dict[str, Fence] = {}
    for owner, highest in in_lake.items():
        # If the store does not know the job, the next run rebuilds the store from the lake.
        fences[owner] = Fence(highest + 1)
        if owner in stored_jobs:
            take_over = partial(store.jobs.take_over, owner, at_least=highest, owner=process)
            fences[owner] = effects.perform(Step.META_TAKE_OVER, owner, take_over)
    return fences
