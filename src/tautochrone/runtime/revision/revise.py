"""Revision: all affected tables are reverted to a checkpoint, or cleared; or none of them is.

    1. take over the jobs that own the tables: a run of theirs ends at its next write
    2. survey again and decide: one transaction of the store that requires those fences
    3. per table one commit: main goes back to the old version; a tag keeps the reverted one
    4. record the revision as complete; return the leases of jobs that do not run

Before 2 nothing happened. After 2 the next `taut run` of such a job, or the next `taut revise`, completes the
rest. The next run computes what depends on the tables, as after any other change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

from tautochrone.errors import (
    ConflictError,
    FencedError,
    HistoryLostError,
    MetaError,
    TableMissingError,
)
from tautochrone.iceberg.changes.streams import versions_in_offsets
from tautochrone.meta import DatasetEntry, Store
from tautochrone.meta.protocols.checkpoints import Roots
from tautochrone.model import events
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.effects import Step
from tautochrone.model.lake import NO_VERSION, ChangeKind, CommitMetadata
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version, is_clock
from tautochrone.model.near_names import matching_tables
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.revision import (
    RevisedTable,
    Revision,
    RevisionAction,
    RevisionPlan,
    RevisionState,
    tag_of,
)
from tautochrone.model.source_position import LogPosition, SparkPosition
from tautochrone.project.definitions import Definitions
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.reconcile_store import require_reconciled
from tautochrone.runtime.job.topology import JobTopology, find_all, tables_of_sinks
from tautochrone.runtime.revision.plan import (
    DatasetNode,
    RevertCheck,
    RevisionRequest,
    affected_datasets,
    plan_revision,
)
from tautochrone.runtime.revision.revert_table import RevisionCommit, revert_table, revoked_range

__all__ = ["complete_pending", "confirm", "revise", "survey", "tables_named"]


def tables_named(store: Store, definitions: Definitions, texts: Sequence[str]) -> tuple[TableName, ...]:
    """Resolve names that a user typed to datasets of the project or the store, or to their inputs.

    Raises:
        DefinitionError: `DATASET_NOT_FOUND`.
    """
    entries = store.datasets.registered()
    names = {entry.name for entry in entries}.union(*(entry.inputs for entry in entries))
    tables = []
    for text in texts:
        matches = matching_tables(text, names)
        # Ambiguous and unknown names: a dataset of the project wins, or its error names the nearest one.
        tables.append(matches[0] if len(matches) == 1 else find_all(definitions, [text])[0])
    return tuple(tables)


def survey(job: Job, request: RevisionRequest) -> RevisionPlan:
    """Plan a revision. Writes nothing.

    Raises:
        MetaError: see `plan_revision`; `META_STORE_NOT_IN_AGREEMENT`.
        CheckpointUnavailableError: the checkpoint that should stay cannot be read.
        TableMissingError: a table of another job is not in this lake.
    """
    require_reconciled(job)
    return _survey(job, request)


def _survey(job: Job, request: RevisionRequest) -> RevisionPlan:
    store = job.store
    nodes = _nodes(store, job.topology)
    changing = affected_datasets(request, nodes)
    names = {node.table for node in changing}
    versions: dict[TableName, Version] = {}
    older: dict[TableName, CheckpointNumber] = {}
    if request.to is not None:
        versions |= store.reads.published_versions(request.to)
        # A dataset without a version at that checkpoint is reverted to the last one before it.
        for name, (number, version) in store.revisions.last_complete(
            request.to, sorted(names - versions.keys())
        ).items():
            versions[name], older[name] = version, number
    around = sorted(names | {name for node in changing for name in node.streamed})
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        checks = dict(
            zip(
                around,
                pool.map(
                    lambda name: _revert_check(job.lake, name, nodes.get(name), versions),
                    around,
                ),
                strict=True,
            )
        )
    sinks = tables_of_sinks(job.topology, job.settings.sinks)
    jobs = {node.job for node in changing}
    revoked = () if request.to is None else store.revisions.published_after(request.to, jobs)
    return plan_revision(request, nodes, versions, checks, sinks, revoked, older)


def revise(job: Job, request: RevisionRequest, accepted: RevisionPlan) -> Revision:
    """Carry out the accepted plan. Returns when all tables are reverted.

    Raises:
        MetaError: `JOB_RUNNING`, another process runs a job that owns one of the tables; nothing was changed.
        FencedError: `REVISION_CONTESTED`, a job was taken over at the same time; nothing was changed.
        ConflictError: `REVISION_PLAN_CHANGED`, the tables changed since the plan was accepted; nothing was
            changed, but running jobs have ended.
    """
    # Must come before the fences rise: they would make an older copy of the store look current.
    require_reconciled(job)
    fences: dict[str, Fence] = {}
    try:
        for name in accepted.jobs:
            # No run is ended before it is known that all can be.
            job.ownership.require_free(job.store, name, job.emit)
        for name in accepted.jobs:
            fences[name] = _take_over(job, name, accepted)
        decided = _decide(job, request, accepted, fences)
    except (MetaError, ConflictError):
        # Nothing was decided. The leases are returned, so that these jobs can start at once.
        _return_leases(job.store, fences)
        raise
    _complete(job, decided, fences, running=None)
    return decided


def _decide(
    job: Job, request: RevisionRequest, accepted: RevisionPlan, fences: Mapping[str, Fence]
) -> Revision:
    # Without `require_reconciled`: with the fences raised, every store looks newer than the lake.
    plan = _survey(job, request)
    if not plan.has_same_actions(accepted):
        raise ConflictError(
            "REVISION_PLAN_CHANGED",
            "The plan changed since it was listed; nothing was changed",
            hint="list the plan again and accept it",
        )
    revision = uuid4().hex[:8]
    try:
        return job.effects.perform(
            Step.META_REVISE, revision, lambda: job.store.revisions.decide(revision, plan, fences)
        )
    except FencedError as error:
        raise FencedError(
            "REVISION_CONTESTED",
            f"Another process took a job over meanwhile; nothing was changed: {error.message}",
            hint="stop whatever restarts the job, then revise again",
        ) from error


def complete_pending(job: Job, running: Fence | None = None) -> list[Revision]:
    """Complete decided revisions: of this job if it runs, else of all jobs of the pipeline.

    Args:
        running: the job's fence, if the caller runs it. Other jobs of a revision are taken over.
    """
    pipeline_jobs = {status.name for status in job.store.jobs.states() if status.pipeline == job.spec.name}
    jobs = pipeline_jobs if running is None else {job.name}
    done = []
    for revision in job.store.revisions.find([RevisionState.DECIDED]):
        if jobs.isdisjoint(revision.plan.jobs):
            continue
        table = _needs_other_project(job.lake, revision, pipeline_jobs)
        if table is not None:
            job.emit(
                events.RevisionLeft(
                    revision=revision.id,
                    dataset=str(table.table),
                    job=table.job,
                    reason=Reason.of(ReasonCode.LEFT_TO_PROJECT_OF_JOB),
                )
            )
            continue
        fences = {} if running is None else {job.name: running}
        for name in revision.plan.jobs:
            if name not in fences:
                # A running job is ended too: it must not publish before its tables are reverted.
                fences[name] = _take_over(job, name, revision.plan, decided=True)
        _complete(job, revision, fences, running=None if running is None else job.name)
        done.append(revision)
    return done


def _needs_other_project(
    lake: LakeCatalog, revision: Revision, pipeline_jobs: Collection[str]
) -> RevisedTable | None:
    """A table that can be reverted only from the project of its own pipeline, if there is one."""
    for table in revision.plan.changed:
        if table.job in pipeline_jobs:
            continue
        if table.action is RevisionAction.CLEAR or not lake.exists(table.table):
            return table
    return None


def confirm(job: Job, identity: str) -> Revision:
    """Drop the tags that keep the reverted data. May be repeated.

    Raises:
        MetaError: `REVISION_NOT_FOUND`.
    """
    revision = job.store.revisions.get(identity)
    complete_pending(job)
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        list(pool.map(lambda table: _untag(job.lake, table.table, tag_of(identity)), revision.plan.changed))
    job.effects.perform(Step.META_CONFIRM, identity, lambda: job.store.revisions.confirm(identity))
    return job.store.revisions.get(identity)


# -- survey ---------------------------------------------------------------------------------------


def _nodes(store: Store, topology: JobTopology) -> dict[TableName, DatasetNode]:
    """All datasets of the store. Only for those of the project the definitions are known."""
    project_tables = {*topology.graph.order, *topology.sibling_tables}
    owners = {status.dataset: status.job for status in store.datasets.statuses()}
    nodes = {}
    for entry in store.datasets.registered():
        own = entry.name in project_tables
        dataset = topology.definitions.datasets[entry.name] if own else None
        nodes[entry.name] = DatasetNode(
            table=entry.name,
            job=owners[entry.name],
            kind=entry.kind,
            inputs=entry.inputs,
            streamed=topology.graph.inputs(entry.name).stream if own else _streamed(entry),
            bad_records_of=None if dataset is None else dataset.bad_records_of,
            own=own,
        )
    return nodes


def _streamed(entry: DatasetEntry) -> frozenset[TableName]:
    """The inputs that a streaming table of another project may read as streams: all of them."""
    if entry.is_root or entry.kind == DatasetKind.MATERIALIZED_VIEW:
        return frozenset()
    return frozenset(name for name in entry.inputs if not is_clock(name))


def _revert_check(
    lake: LakeCatalog, name: TableName, node: DatasetNode | None, versions: Mapping[TableName, Version]
) -> RevertCheck:
    version = versions.get(name)
    is_view = node is not None and node.is_view
    if version is None:
        return RevertCheck()
    table = lake.load(name)
    fork = table.fork()
    change = table.change_between(version, fork.version)
    can_follow = change.kind in (ChangeKind.NONE, ChangeKind.APPEND)
    changed = None if can_follow else str(change.reason)
    try:
        then, now = table.merged_commit_metadata_at(version), fork.commit_metadata
        is_refreshed = now is not None and now.mode is not None
        if is_refreshed and then is not None and then.mode is None and table.row_count(version) != 0:
            # Without them the next refresh would take the table for one that has merged nothing.
            then = None
        check = _obstacle(then, now, is_view=is_view)
        if check.obstacle is None and then is not None and node is not None and not is_view:
            inputs = {each: versions[each] for each in node.streamed if each in versions}
            check = RevertCheck(obstacle=_lost_input(lake, then, inputs))
        return replace(check, changed=changed)
    except HistoryLostError as error:
        return RevertCheck(obstacle=error.message, changed=changed)


def _lost_input(lake: LakeCatalog, then: CommitMetadata, inputs: Mapping[TableName, Version]) -> str | None:
    """Why a streaming table could not go on from where it stood in its inputs. A table that got no rows for
    long stood at versions that are older than those of the checkpoint, and not kept with it.

    Args:
        inputs: those that it reads as streams, at the checkpoint.
    """

    def reason(name: TableName, version: Version) -> Reason | None:
        change = lake.load(name).change_between(version, inputs[name])
        return change.reason if change.kind is ChangeKind.UNKNOWN and not change.appended else None

    if then.companions:
        # Otherwise a table without offsets takes the versions of the checkpoint: see `revert_table`.
        reached = {name: Version(then.inputs[str(name)]) for name in inputs if str(name) in then.inputs}
        lost = filter(None, (reason(name, version) for name, version in sorted(reached.items())))
        if (first := next(lost, None)) is not None:
            return f"it goes on where it stood, and {first}"
    offsets = [each.offsets for each in then.positions.values() if isinstance(each, SparkPosition)]
    for version in sorted(versions_in_offsets("\n".join(offsets)) - {NO_VERSION}):
        # Offsets do not say of which input a version is.
        reasons = [reason(name, version) for name in sorted(inputs)]
        if reasons and None not in reasons:
            return f"it goes on where it stood, and {reasons[0]}"
    return None


_LOG_ACKNOWLEDGED = "the database need not keep the log that came since then"
_LOG_HINT = (
    "captured tables are made from the log table: name them instead; to copy the database again, "
    "`taut run` with --full-refresh of the log table and of the captured tables"
)


def _obstacle(then: CommitMetadata | None, now: CommitMetadata | None, *, is_view: bool) -> RevertCheck:
    """Why a table cannot be reverted to an old version, if it cannot."""
    if then is None or now is None or (is_view and then.definition is None):
        return RevertCheck(obstacle="the metadata of that version is expired")
    for flow, position in then.positions.items():
        current = now.positions.get(flow)
        if current is None or current.origin != position.origin:
            return RevertCheck(obstacle=f"flow {flow} was restarted from the beginning since then")
        if isinstance(position, LogPosition) and position != current:
            # What was acknowledged may be gone at the database, and the same log would come again.
            return RevertCheck(obstacle=_LOG_ACKNOWLEDGED, hint=_LOG_HINT)
    return RevertCheck()


# -- carry out ------------------------------------------------------------------------------------


def _take_over(job: Job, name: str, plan: RevisionPlan, *, decided: bool = False) -> Fence:
    """Raise a job's fence above those in the store and in its tables."""
    tables = [table.table for table in plan.changed if table.job == name]
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        fence_in_lake = max(pool.map(lambda table: _fence_of(job.lake, table), tables))
    store = job.store
    ownership = replace(job.ownership, takeover=True) if decided else job.ownership
    fence = job.effects.perform(
        Step.META_TAKE_OVER,
        name,
        lambda: ownership.claim_when_free(
            store,
            name,
            job.emit,
            lambda claim: store.jobs.take_over(
                name, at_least=fence_in_lake, lease_ms=job.settings.lease_ms, claim=claim
            ),
        ),
    )
    job.emit(events.Takeover(job=name, fence=int(fence)))
    return fence


def _fence_of(lake: LakeCatalog, name: TableName) -> Fence:
    """Nobody writes a dropped table: no fence can be too low for it."""
    try:
        return lake.load(name).fork().fence
    except TableMissingError:
        return Fence(0)


def _complete(job: Job, revision: Revision, fences: Mapping[str, Fence], *, running: str | None) -> None:
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        for _ in pool.map(lambda table: _revise(job, revision, table, fences), revision.plan.changed):
            pass
    job.effects.perform(Step.META_REVISED, revision.id, lambda: job.store.revisions.complete(revision.id))
    job.emit(
        events.Revision(
            revision=revision.id,
            to=revision.plan.to,
            tables=len(revision.plan.changed),
            sinks=list(revision.plan.sinks),
            reason=Reason.of(ReasonCode.OLD_DATA_KEPT),
        )
    )
    # These jobs do not run now, so other jobs need not wait for the end of their leases.
    _return_leases(job.store, {name: fence for name, fence in fences.items() if name != running})


def _return_leases(store: Store, fences: Mapping[str, Fence]) -> None:
    for name, fence in fences.items():
        with suppress(FencedError):
            store.jobs.end_run(name, fence)


def _revise(job: Job, revision: Revision, revised: RevisedTable, fences: Mapping[str, Fence]) -> None:
    assert revised.job is not None
    fence, tag = fences[revised.job], tag_of(revision.id)
    try:
        table = job.lake.load(revised.table)
    except TableMissingError as error:
        # A dropped table must not keep its job from running; the job creates it anew.
        job.emit(
            events.Revised(
                revision=revision.id,
                dataset=str(revised.table),
                action="gone",
                version=None,
                reason=Reason.of(ReasonCode.TABLE_DROPPED, error_class=error.error_class, text=str(error)),
            )
        )
        return
    to = revision.plan.to
    versions = {} if to is None else job.store.checkpoints.versions_at(to)
    commit = RevisionCommit(fence, job.store.incarnation, revoked_range(revision.plan), versions)
    version = revert_table(job.base, job.topology, table, revised, commit, tag)
    if revised.table in job.store.roots.reported(revised.job):
        # Otherwise cuts of other jobs and weak readers would use the revoked version until the next run.
        journal = Journal(job.store, revised.job, job.effects, fence)
        journal.record(Roots.report, {revised.table: version})
    job.emit(
        events.Revised(
            revision=revision.id,
            dataset=str(revised.table),
            action=str(revised.action),
            version=str(version),
            reason=revised.reason,
        )
    )


def _untag(lake: LakeCatalog, name: TableName, tag: str) -> None:
    if lake.exists(name):
        lake.load(name).untag(tag)
