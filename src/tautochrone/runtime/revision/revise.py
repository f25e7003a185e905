"""Revision: tables are taken back to what they were at a checkpoint, or cleared, all or none of them.

    1. take the jobs over that own them: a run that goes on ends at its next write
    2. look at everything again, and decide: one transaction of the store, against those fences
    3. per table one commit: main goes back, what it was keeps a tag
    4. say that it is done, and give back the leases of jobs that run nowhere

Before 2 nothing happened. After it whoever comes next carries out the rest: `taut run` of such a job as its
first act, or `taut revise`. What is computed from the tables follows with the next run, as any other change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from tautochrone.meta import DatasetEntry
from tautochrone.model.clock import is_clock
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.effects import Step
from tautochrone.model.lake import ChangeKind, CommitMetadata
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.revision import (
    RevisedTable,
    Revision,
    RevisionAction,
    RevisionPlan,
    RevisionState,
    tag_of,
)
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.selection import find_all
from tautochrone.runtime.ownership.reconcile_store import require_reconciled
from tautochrone.runtime.revision.plan import Node, Request, Stand, affected, plan_revision
from tautochrone.runtime.revision.revert_table import Says, revoked_range, take_back

__all__ = ["complete_pending", "confirm", "named", "revise", "survey"]


def named(job: Job, texts: Sequence[str]) -> tuple[TableName, ...]:
    """Tables by the names that people type: datasets of the project or of the store, and what they read.

    Raises:
        DefinitionError: `DATASET_NOT_FOUND`.
    """
    entries = job.store.datasets()
    known = {entry.name for entry in entries}.union(*(entry.inputs for entry in entries))
    found = []
    for text in texts:
        means = [n for n in sorted(known) if text in (str(n), n.without_catalog, n.table)]
        # A name of the project's own wins, and says how it is spelt when there is none.
        found.append(means[0] if len(means) == 1 else find_all(job.definitions, [text])[0])
    return tuple(found)


def survey(job: Job, request: Request) -> RevisionPlan:
    """Look at everything and write nothing.

    Raises:
        MetaError: see `plan_revision`; `META_STORE_NOT_IN_AGREEMENT`.
        CheckpointUnavailableError: the checkpoint that should stay cannot be read.
        TableMissingError: a table of another job is not in this lake.
    """
    require_reconciled(job)
    return _survey(job, request)


def _survey(job: Job, request: Request) -> RevisionPlan:
    store = job.store
    nodes = _nodes(job)
    changing = affected(request, nodes)
    names = {node.table for node in changing}
    at: dict[TableName, Version] = {}
    older: dict[TableName, CheckpointNumber] = {}
    if request.to is not None:
        at |= store.published_versions(request.to)
        # Of a dataset that failed there, or whose job left it out, the one before is as right.
        for name, (number, version) in store.last_complete(request.to, sorted(names - at.keys())).items():
            at[name], older[name] = version, number
    around = sorted(names | {name for node in changing for name in node.streamed})
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        stands = dict(
            zip(
                around,
                pool.map(
                    lambda name: _stand(
                        job, name, at.get(name), is_view=name in nodes and nodes[name].is_view
                    ),
                    around,
                ),
                strict=True,
            )
        )
    sinks = {name.table: job.graph.inputs(name).tables for name in job.definitions.sinks}
    jobs = {node.job for node in changing}
    revoked = () if request.to is None else store.published_after(request.to, jobs)
    return plan_revision(request, nodes, at, stands, sinks, revoked, older)


def revise(job: Job, request: Request, accepted: RevisionPlan) -> Revision:
    """Carry out what was accepted. Returns when all tables are taken back.

    Raises:
        MetaError: `JOB_RUNNING`, another process runs a job that owns one of the tables; nothing was changed.
        FencedError: `REVISION_CONTESTED`, a job was taken over at the same time; nothing was changed.
        ConflictError: `REVISION_PLAN_CHANGED`, what is there is no longer what was accepted; nothing was
            changed but that running jobs have ended.
    """
    # Before a fence rises in the store: by it a copy is recognised.
    require_reconciled(job)
    fences: dict[str, Fence] = {}
    try:
        for name in accepted.jobs:
            # Nothing is taken from a run while another one cannot be had.
            job.ownership.require_free(job.store, name, job.emit)
        for name in accepted.jobs:
            fences[name] = _take_over(job, name, accepted)
        decided = _decide(job, request, accepted, fences)
    except (MetaError, ConflictError):
        # Nothing was decided: who starts these jobs next need not wait for our leases.
        _give_back(job, fences)
        raise
    _complete(job, decided, fences, running=None)
    return decided


def _decide(job: Job, request: Request, accepted: RevisionPlan, fences: Mapping[str, Fence]) -> Revision:
    # By now the fences have risen, so the store would look newer than the lake whatever it is.
    plan = _survey(job, request)
    if not plan.same_work(accepted):
        raise ConflictError(
            "REVISION_PLAN_CHANGED",
            "Other tables would be taken back than those that were listed; nothing was changed",
            hint="look at the new list and accept it",
        )
    revision = uuid4().hex[:8]
    try:
        return job.effects.perform(
            Step.META_REVISE, revision, lambda: job.store.decide(revision, plan, fences)
        )
    except FencedError as error:
        raise FencedError(
            "REVISION_CONTESTED",
            f"A job was taken over before its tables were taken back; nothing was changed: {error.message}",
            hint="stop what starts the job again and again, then revise",
        ) from error


def complete_pending(job: Job, running: Fence | None = None) -> list[Revision]:
    """Carry out what was decided and is not done: what takes tables of this job back when it runs, else of
    any job of the project's pipeline.

    Args:
        running: the fence of the job, if the caller runs it; the other jobs of a revision are taken over.
    """
    ours = {status.name for status in job.store.job_states() if status.pipeline == job.spec.name}
    mine = ours if running is None else {job.name}
    done = []
    for revision in job.store.revisions([RevisionState.DECIDED]):
        if mine.isdisjoint(revision.plan.jobs):
            continue
        needs = _needs_other_project(job, revision, ours)
        if needs is not None:
            job.emit(
                "revision_left",
                revision=revision.id,
                dataset=str(needs.table),
                job=needs.job,
                reason="only the project of its job can finish it: no checkpoint is opened until then",
            )
            continue
        held = {} if running is None else {job.name: running}
        for name in revision.plan.jobs:
            if name not in held:
                # Decided is decided: none of its jobs can publish before its tables are taken back.
                held[name] = _take_over(job, name, revision.plan, decided=True)
        _complete(job, revision, held, running=None if running is None else job.name)
        done.append(revision)
    return done


def _needs_other_project(job: Job, revision: Revision, ours: set[str]) -> RevisedTable | None:
    """A table that only its own pipeline's project can clear, or find."""
    for one in revision.plan.changed:
        if one.job not in ours and (one.action is RevisionAction.CLEAR or not job.lake.exists(one.table)):
            return one
    return None


def confirm(job: Job, identity: str) -> Revision:
    """Drop the tags that keep the old data. Repeatable.

    Raises:
        MetaError: `REVISION_NOT_FOUND`.
    """
    revision = job.store.revision(identity)
    complete_pending(job)
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        list(pool.map(lambda one: _untag(job, one.table, tag_of(identity)), revision.plan.changed))
    job.effects.perform(Step.META_CONFIRM, identity, lambda: job.store.confirm_revision(identity))
    return job.store.revision(identity)


# -- looking --------------------------------------------------------------------------------------


def _nodes(job: Job) -> dict[TableName, Node]:
    """The topology of the whole store; what only definitions tell is known of the project's datasets."""
    whole = {*job.graph.order, *job.topology.sibling_tables}
    owners = {status.dataset: status.job for status in job.store.status()}
    found = {}
    for entry in job.store.datasets():
        own = entry.name in whole
        dataset = job.definitions.datasets[entry.name] if own else None
        found[entry.name] = Node(
            table=entry.name,
            job=owners[entry.name],
            kind=entry.kind,
            inputs=entry.inputs,
            streamed=job.graph.inputs(entry.name).stream if own else _streamed(entry),
            bad_records_of=None if dataset is None else dataset.bad_records_of,
            own=own,
        )
    return found


def _streamed(entry: DatasetEntry) -> frozenset[TableName]:
    """Of another project's streaming table it isn't known which inputs it follows: any may be one."""
    if entry.is_root or entry.kind == DatasetKind.MATERIALIZED_VIEW:
        return frozenset()
    return frozenset(name for name in entry.inputs if not is_clock(name))


def _stand(job: Job, name: TableName, at: Version | None, *, is_view: bool) -> Stand:
    if at is None:
        return Stand()
    table = job.lake.load(name)
    now = table.fork()
    change = table.change_between(at, now.version)
    followed = change.kind in (ChangeKind.NONE, ChangeKind.APPEND)
    changed = None if followed else change.reason
    try:
        return Stand(
            lost=_lost(table.commit_metadata_at(at), now.commit_metadata, is_view=is_view), changed=changed
        )
    except HistoryLostError as error:
        return Stand(lost=error.message, changed=changed)


def _lost(then: CommitMetadata | None, now: CommitMetadata | None, *, is_view: bool) -> str | None:
    """Why what a table was then cannot be what it is again."""
    if then is None or now is None or (is_view and then.definition is None):
        return "what was known of its version is expired"
    for flow, position in then.positions.items():
        known = now.positions.get(flow)
        if known is None or known.origin != position.origin:
            return f"flow {flow} was begun anew since then"
    return None


# -- doing ----------------------------------------------------------------------------------------


def _take_over(job: Job, name: str, plan: RevisionPlan, *, decided: bool = False) -> Fence:
    """Raise a job's fence above the store's and above all that its tables have seen."""
    mine = [one.table for one in plan.changed if one.job == name]
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        seen = max(pool.map(lambda table: job.lake.load(table).fork().fence, mine))
    store = job.store
    ownership = replace(job.ownership, takeover=True) if decided else job.ownership
    fence = job.effects.perform(
        Step.META_TAKE_OVER,
        name,
        lambda: ownership.claimed(
            store,
            name,
            job.emit,
            lambda claim: store.take_over(name, at_least=seen, lease_ms=job.settings.lease_ms, claim=claim),
        ),
    )
    job.emit("takeover", job=name, fence=int(fence))
    return fence


def _complete(job: Job, revision: Revision, fences: Mapping[str, Fence], *, running: str | None) -> None:
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        for _ in pool.map(lambda one: _revise(job, revision, one, fences), revision.plan.changed):
            pass
    job.effects.perform(Step.META_REVISED, revision.id, lambda: job.store.complete_revision(revision.id))
    job.emit(
        "revision",
        revision=revision.id,
        to=revision.plan.to,
        tables=len(revision.plan.changed),
        sinks=list(revision.plan.sinks),
        reason="the next run computes what was taken back again; the old data is kept until it is confirmed",
    )
    # Nobody runs them from here: the others need not wait until their leases are over.
    _give_back(job, {name: fence for name, fence in fences.items() if name != running})


def _give_back(job: Job, fences: Mapping[str, Fence]) -> None:
    for name, fence in fences.items():
        with suppress(FencedError):
            job.store.end_run(name, fence)


def _revise(job: Job, revision: Revision, one: RevisedTable, fences: Mapping[str, Fence]) -> None:
    assert one.job is not None
    fence, tag = fences[one.job], tag_of(revision.id)
    try:
        table = job.lake.load(one.table)
    except TableMissingError as error:
        # Nobody shall be kept from running by a table that somebody dropped: it is built from nothing.
        job.emit(
            "revised",
            revision=revision.id,
            dataset=str(one.table),
            action="gone",
            version=None,
            reason=str(error),
        )
        return
    says = Says(fence, job.store.incarnation, revoked_range(revision.plan))
    version = take_back(job, table, one, says, tag)
    if one.table in job.store.reported(one.job):
        # Until the next run does it, a cut of another job and weak readers would see what was taken back.
        job.effects.perform(
            Step.META_REPORT,
            str(one.table),
            lambda: job.store.report(one.job or "", fence, {one.table: version}),
        )
    job.emit(
        "revised",
        revision=revision.id,
        dataset=str(one.table),
        action=str(one.action),
        version=str(version),
        reason=one.reason,
    )


def _untag(job: Job, name: TableName, tag: str) -> None:
    if job.lake.exists(name):
        job.lake.load(name).untag(tag)
