"""`taut revise`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from tautochrone.cli.events import json_events, line_events
from tautochrone.cli.options import names_of, options_of
from tautochrone.cli.output import table
from tautochrone.cli.running_job import ownership_of
from tautochrone.errors import SettingsError
from tautochrone.model import events

if TYPE_CHECKING:
    from tautochrone.meta import Store
    from tautochrone.model.revision import RevisionPlan
    from tautochrone.runtime.job.job import Job

__all__ = ["revise"]


def revise(arguments: argparse.Namespace) -> int:
    """List what would be taken back, and do it if that is accepted; or complete pending revisions, list them,
    or confirm one.

    Raises:
        SettingsError: `CONFLICTING_OPTIONS`, `REVISION_WITHOUT_CHECKPOINT`.
    """
    _check(arguments)
    from tautochrone.app.open import Project
    from tautochrone.runtime.revision.revise import complete_pending, confirm

    emit = json_events if arguments.json else line_events
    with Project(options_of(arguments), emit, short_lived=True) as project:
        job = project.job()
        job.ownership = ownership_of(arguments)
        if arguments.names:
            return _revise(job, arguments)
        if arguments.confirm:
            revision = confirm(job, arguments.confirm)
            emit(events.RevisionConfirmed(revision=revision.id, tables=len(revision.plan.changed)))
            return 0
        complete_pending(job)
        _show_waiting(job.store, as_json=arguments.json)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    plans_revision = arguments.to is not None or arguments.full or arguments.read_again or arguments.accept
    if arguments.confirm and (arguments.names or plans_revision or arguments.dry_run):
        raise SettingsError("CONFLICTING_OPTIONS", "--confirm takes a revision's id and nothing else")
    if plans_revision and not arguments.names:
        raise SettingsError("CONFLICTING_OPTIONS", "say which tables were corrected: taut revise NAME …")
    if arguments.accept and arguments.dry_run:
        raise SettingsError("CONFLICTING_OPTIONS", "--dry-run changes nothing, whatever is accepted")
    if arguments.names and arguments.to is None and not arguments.full:
        raise SettingsError(
            "REVISION_WITHOUT_CHECKPOINT",
            "Up to which checkpoint is the data right?",
            hint="--to N takes tables back to checkpoint N (`taut checkpoints` lists them); "
            "--full builds them anew from the beginning",
        )


def _revise(job: Job, arguments: argparse.Namespace) -> int:
    from tautochrone.model.names import CheckpointNumber
    from tautochrone.runtime.revision.plan import RevisionRequest
    from tautochrone.runtime.revision.revise import complete_pending, revise, survey, tables_named
    from tautochrone.sinks import has_adapter

    request = RevisionRequest(
        named=tables_named(job.store, job.definitions, names_of(arguments.names)),
        to=None if arguments.to is None else CheckpointNumber(arguments.to),
        read_again=arguments.read_again,
        full=arguments.full,
    )
    plan = survey(job, request)
    streamed = {name.table for name, sink in job.definitions.sinks.items() if not has_adapter(sink.format)}
    _show(plan, streamed, as_json=arguments.json)
    if arguments.dry_run:
        return 0
    if not (arguments.accept or _confirmed_by_user(as_json=arguments.json)):
        sys.stderr.write("nothing was changed; --accept takes these tables back\n")
        return 0
    complete_pending(job)
    revise(job, request, plan)
    return 0


def _confirmed_by_user(*, as_json: bool) -> bool:
    if as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write("Take these tables back? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _show(plan: RevisionPlan, streamed_sinks: Collection[str], *, as_json: bool) -> None:
    """Print the plan; `streamed_sinks` are the names of the sinks that Spark writes."""
    if as_json:
        json_events(
            events.RevisionPlanned(
                to=plan.to, tables=plan.tables, revoked=plan.revoked, sinks=plan.sinks, last=plan.last
            )
        )
        return
    rows: list[tuple[object, ...]] = [
        (
            table_plan.table,
            table_plan.action,
            "" if table_plan.version is None else table_plan.version,
            table_plan.reason,
        )
        for table_plan in plan.tables
    ]
    rows += [
        (sink, "stop", "", f"stops with STREAM_INPUT_CHANGED; --full-refresh {sink} sends all rows again")
        if sink in streamed_sinks
        else (sink, "compensate", "", "cannot be rolled back: gets the difference with the next checkpoint")
        for sink in plan.sinks
    ]
    table(("table", "action", "version", "reason"), rows)
    if plan.revoked:
        numbers = ", ".join(map(str, plan.revoked))
        sys.stderr.write(f"checkpoints that are revoked: {numbers}, and what is published meanwhile\n")
    sys.stderr.write(f"jobs that are taken over: {', '.join(plan.jobs)}\n")


def _show_waiting(store: Store, *, as_json: bool) -> None:
    """The revisions that still keep the old data."""
    from tautochrone.model.revision import RevisionState

    waiting = store.revisions.find([RevisionState.DECIDED, RevisionState.DONE])
    if as_json:
        for revision in waiting:
            plan = revision.plan
            json_events(
                events.RevisionWaiting(
                    revision=revision.id,
                    state=str(revision.state),
                    to=plan.to,
                    tables=plan.tables,
                    revoked=plan.revoked,
                    sinks=plan.sinks,
                    last=plan.last,
                )
            )
        return
    rows = [
        (revision.id, revision.state, revision.plan.to, len(revision.plan.changed)) for revision in waiting
    ]
    table(("revision", "state", "to", "tables"), rows)
