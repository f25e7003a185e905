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
from dataclasses import dataclass, replace
from uuid import uuid4

from tautochrone.errors import ConflictError, FencedError, HistoryLostError, LakeError, TableMissingError
from tautochrone.meta import DatasetEntry
from tautochrone.model.clock import is_clock
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.effects import Step
from tautochrone.model.lake import ChangeKind, CommitNote, LakeTable
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.refresh import RefreshMode
from tautochrone.model.revision import (
    RevisedTable,
    Revision,
    RevisionAction,
    RevisionPlan,
    RevisionState,
    tag_of,
)
from tautochrone.runtime.job import Job
from tautochrone.runtime.revision_plan import Node, Request, Stand, affected, plan_revision
from tautochrone.runtime.selection import find_all
from tautochrone.runtime.store_check import require_agreement

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
    require_agreement(job)
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
        FencedError: `REVISION_CONTESTED`, a job was taken over at the same time; nothing was changed.
        ConflictError: `REVISION_PLAN_CHANGED`, what is there is no longer what was accepted; nothing was
            changed but that running jobs have ended.
    """
    # Before a fence rises in the store: by it a copy is recognised.
    require_agreement(job)
    fences = {name: _take_over(job, name, accepted) for name in accepted.jobs}
    plan = survey(job, request)
    if not plan.same_work(accepted):
        raise ConflictError(
            "REVISION_PLAN_CHANGED",
            "Other tables would be taken back than those that were listed; nothing was changed",
            hint="look at the new list and accept it",
        )
    revision = uuid4().hex[:8]
    try:
        decided = job.effects.perform(
            Step.META_REVISE, revision, lambda: job.store.decide(revision, plan, fences)
        )
    except FencedError as error:
        raise FencedError(
            "REVISION_CONTESTED",
            f"A job was taken over before its tables were taken back; nothing was changed: {error.message}",
            hint="stop what starts the job again and again, then revise",
        ) from error
    _complete(job, decided, fences, running=None)
    return decided


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
                held[name] = _take_over(job, name, revision.plan)
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
    whole = {*job.graph.order, *job.elsewhere}
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
            beside=None if dataset is None else dataset.beside,
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
        return Stand(lost=_lost(table.note_at(at), now.note, is_view=is_view), changed=changed)
    except HistoryLostError as error:
        return Stand(lost=error.message, changed=changed)


def _lost(then: CommitNote | None, now: CommitNote | None, *, is_view: bool) -> str | None:
    """Why what a table was then cannot be what it is again."""
    if then is None or now is None or (is_view and then.definition is None):
        return "what was known of its version is expired"
    for flow, position in then.positions.items():
        known = now.positions.get(flow)
        if known is None or known.query_id != position.query_id:
            return f"flow {flow} was begun anew since then"
    return None


# -- doing ----------------------------------------------------------------------------------------


def _take_over(job: Job, name: str, plan: RevisionPlan) -> Fence:
    """Raise a job's fence above the store's and above all that its tables have seen."""
    mine = [one.table for one in plan.changed if one.job == name]
    with ThreadPoolExecutor(job.settings.parallelism) as pool:
        seen = max(pool.map(lambda table: job.lake.load(table).fork().fence, mine))
    store = job.store
    fence = job.effects.perform(Step.META_TAKE_OVER, name, lambda: store.take_over(name, at_least=seen))
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
    for name, fence in fences.items():
        if name != running:
            # Nobody runs it from here: the others need not wait until its lease is over.
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
    # The lake remembers it: a store that is lost, or an older copy, must not publish it again.
    says = _Says(fence, job.store.incarnation, _revoked(revision.plan))
    if one.action is RevisionAction.ROLL_BACK:
        version = _roll_back(table, one, says, tag)
    elif one.action is RevisionAction.CLEAR:
        version = _clear(job, table, says, tag)
    else:
        version = _rebuild(table, says, tag)
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


@dataclass(frozen=True, slots=True)
class _Says:
    """What every commit of a revision says: who writes, with which store, and what is taken back."""

    fence: Fence
    store: str
    revoked: tuple[tuple[int, int], ...]


def _revoked(plan: RevisionPlan) -> tuple[tuple[int, int], ...]:
    if plan.to is None:
        return ()
    # A decision of an older release does not know the highest number of then.
    last = max((plan.to, *plan.revoked)) if plan.last is None else plan.last
    return ((int(plan.to), int(last)),) if last > plan.to else ()


def _roll_back(table: LakeTable, one: RevisedTable, says: _Says, tag: str) -> Version:
    assert one.version is not None
    note = table.note_at(one.version)
    if note is None:
        raise LakeError("NOT_A_TABLE_OF_OURS", f"{one.table} at version {one.version} was not written by us")
    newest = table.fork().note
    revoked = tuple(sorted({*says.revoked, *note.revoked, *(() if newest is None else newest.revoked)}))
    said = replace(note, fence=says.fence, store=says.store, revoked=revoked)
    return table.revert(one.version, said, tag).version


def _clear(job: Job, table: LakeTable, says: _Says, tag: str) -> Version:
    """Rows and positions go in one commit, and its history starts anew, so that a stream that reads it from
    the beginning meets new rows only."""
    note = _note(table, says)
    if tag not in table.tags():
        # The fence comes first: nobody moves main between its tag and its end.
        table.raise_fence(table.fork(), note)
        table.tag(table.current_version(), tag)
    nothing = job.base.createDataFrame([], job.graph.schemas[table.name])
    reset = replace(note, reset=True)
    return table.redefine(table.fork(), job.definition(table.name), nothing, reset).version


def _rebuild(table: LakeTable, says: _Says, tag: str) -> Version:
    """The view forgets what it was computed from; its rows stay until there are others."""
    note = _note(table, says)
    if tag not in table.tags():
        table.raise_fence(table.fork(), note)
        table.tag(table.current_version(), tag)
    return table.note_only(table.fork(), replace(note, mode=str(RefreshMode.FULL), reset=True)).version


def _note(table: LakeTable, says: _Says) -> CommitNote:
    """Who writes: nothing about rows or positions."""
    known = table.fork().note
    if known is None:
        raise LakeError("NOT_A_TABLE_OF_OURS", f"{table.name} was not written by us")
    return CommitNote(
        pipeline=known.pipeline,
        job=known.job,
        fence=says.fence,
        store=says.store,
        revoked=says.revoked,
    )


def _untag(job: Job, name: TableName, tag: str) -> None:
    if job.lake.exists(name):
        job.lake.load(name).untag(tag)
