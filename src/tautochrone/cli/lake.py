"""`taut adopt`, `drop`, `maintain`, `relocate`, `revise`: what changes the tables of a lake beside a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tautochrone.cli.options import check_not_running, names_of, opened_job, options_of, ownership_of
from tautochrone.cli.output import json_events, plain_listener, show, table
from tautochrone.errors import SettingsError
from tautochrone.model import events

if TYPE_CHECKING:
    from tautochrone.app.open import Project
    from tautochrone.meta import Store
    from tautochrone.model.revision import RevisionPlan
    from tautochrone.runtime.adoption.adoptable import Finding
    from tautochrone.runtime.dataset_changes.drop import DropPlan
    from tautochrone.runtime.job.job import Job

__all__ = ["adopt", "drop", "maintain", "relocate", "rename", "revise"]


# -- taut adopt ---------------------------------------------------------------------------------------


def adopt(arguments: argparse.Namespace) -> int:
    """Survey and show, and complete unless it is a dry run; 1 when a dataset is refused. With a warehouse its
    tables are copied before. Or hand over what the pipeline owned under another name.

    Raises:
        SettingsError: `CONFLICTING_OPTIONS`.
    """
    others = arguments.dry_run or arguments.rebuild or arguments.from_warehouse
    if arguments.from_pipeline is not None and others:
        raise SettingsError("CONFLICTING_OPTIONS", "--from-pipeline takes no other options")
    from tautochrone.app.locate import locate
    from tautochrone.app.open import Project
    from tautochrone.app.stores import require_release
    from tautochrone.model.reason import Reason, ReasonCode
    from tautochrone.runtime.adoption.adopt import Adoption
    from tautochrone.runtime.adoption.renaming import hand_over
    from tautochrone.runtime.job.ownership import Heartbeat
    from tautochrone.runtime.job.topology import find_all

    emit = plain_listener(arguments)
    options, ownership = options_of(arguments), ownership_of(arguments)
    located = locate(options)
    if arguments.dry_run:
        require_release(located[1])
    else:
        check_not_running(located[1], ownership, emit)
    with Project(options, emit, short_lived=True, located=located) as project:
        if arguments.from_warehouse is not None:
            project.identify()
            copied = _copy_warehouse(project, Path(arguments.from_warehouse), emit, arguments.dry_run)
            if arguments.dry_run and copied:
                # What is not copied yet cannot be surveyed.
                return 0
        job = project.job(ownership=None if arguments.dry_run else ownership)
        if arguments.from_pipeline is not None:
            hand_over(job, arguments.from_pipeline)
            return 0
        adoption = Adoption(job, find_all(job.definitions, names_of(arguments.rebuild)))
        findings = adoption.survey()
        if not findings:
            reason = Reason.of(ReasonCode.ALREADY_OWNED)
            emit(events.NothingToAdopt(job=job.name, reason=reason))
            return 0
        _show_findings(findings, as_json=arguments.json)
        if arguments.dry_run:
            return 1 if any(finding.error for finding in findings) else 0
        with Heartbeat(job.journal, job.settings.lease_ms, job.emit) as heartbeat:
            adoption.adopt_and_publish(findings, heartbeat.start)
    return 0


def _copy_warehouse(project: Project, warehouse: Path, emit: events.Emit, dry_run: bool) -> bool:
    """Copy the tables of a hadoop warehouse that the lake has not; whether there were such tables."""
    from tautochrone.app.relocation import WarehouseCopy

    copy = WarehouseCopy(warehouse, project.lake, project.settings, project.effects, emit)
    copy.copy_and_register(dry_run=dry_run)
    return bool(copy.tables)


def _show_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        for finding in findings:
            json_events(
                events.Surveyed(
                    dataset=str(finding.dataset),
                    action=str(finding.action),
                    reason=finding.reason,
                    hint=finding.error.hint if finding.error else None,
                )
            )
        return
    rows = [(finding.dataset, finding.action, finding.reason) for finding in findings]
    table(("dataset", "action", "reason"), rows)
    # The table is data and belongs to stdout; hints go to stderr like errors.
    for hint in dict.fromkeys(finding.error.hint for finding in findings if finding.error):
        if hint:
            sys.stderr.write(f"  hint: {hint}\n")


# -- taut drop -----------------------------------------------------------------------------------------


def drop(arguments: argparse.Namespace) -> int:
    """List what goes, and drop it if that is accepted.

    Raises:
        SettingsError: `CONFLICTING_OPTIONS`; `DROP_NOT_ACCEPTED`, there is nobody to ask.
    """
    if arguments.yes and arguments.dry_run:
        raise SettingsError("CONFLICTING_OPTIONS", "--dry-run drops nothing, whatever is accepted")
    if not (arguments.yes or arguments.dry_run or _can_ask(as_json=arguments.json)):
        raise SettingsError(
            "DROP_NOT_ACCEPTED",
            "What is dropped cannot be brought back, and there is nobody to ask",
            hint="--dry-run lists what would go, --yes drops it without asking",
        )
    from tautochrone.runtime.dataset_changes.drop import drop, survey

    with opened_job(arguments, plain_listener(arguments), changes=not arguments.dry_run) as (_, job):
        plan = survey(job, names_of(arguments.names), keeps_table=arguments.keep_table)
        _show_parts(plan, as_json=arguments.json)
        if arguments.dry_run:
            return 0
        if not (arguments.yes or _accepted("Drop them?")):
            sys.stderr.write("nothing was changed\n")
            return 0
        drop(job, plan)
    return 0


def rename(arguments: argparse.Namespace) -> int:
    """Let a dataset go on under the new name of its definition."""
    from tautochrone.runtime.dataset_changes.rename import rename, survey

    with opened_job(arguments, plain_listener(arguments), changes=not arguments.dry_run) as (project, job):
        plan = survey(job, arguments.old, arguments.new, project.graphs_of_rename)
        if arguments.dry_run:
            rows = [(old, new) for old, new in sorted(plan.tables.items())]
            show(
                ({"table": str(old), "renamed_to": str(new)} for old, new in rows),
                ("table", "renamed_to"),
                as_json=arguments.json,
            )
            return 0
        rename(job, plan)
    return 0


def _show_parts(plan: DropPlan, *, as_json: bool) -> None:
    if as_json:
        for part in plan.parts:
            json_events(part)
        return
    rows = [
        (
            part.dataset,
            part.kind,
            part.name_of_part,
            "" if part.bytes is None else f"{part.bytes:,}",
            part.reason or ("stays" if part.stays else ""),
        )
        for part in plan.parts
    ]
    table(("dataset", "what", "name", "bytes", ""), rows)


# -- taut maintain -------------------------------------------------------------------------------------


def maintain(arguments: argparse.Namespace) -> int:
    """Maintain the tables now, also while a run works; to compact, take the job over.

    Raises:
        SettingsError: `CONFLICTING_OPTIONS`.
        MetaError: `JOB_RUNNING`, with `--compact`.
    """
    if arguments.compact and arguments.dry_run:
        raise SettingsError("CONFLICTING_OPTIONS", "--compact takes the job over, which --dry-run excludes")
    from tautochrone.runtime.job.ownership import Heartbeat
    from tautochrone.runtime.loop.takeover import take_over
    from tautochrone.runtime.maintenance.maintain import Maintenance

    emit = plain_listener(arguments)
    with opened_job(arguments, emit, changes=arguments.compact) as (_, job):
        maintenance = Maintenance(job)
        with Heartbeat(job.journal, job.settings.lease_ms, job.emit) as heartbeat:
            if arguments.compact:
                # Compaction moves main, so only an owner may do it: a concurrent run's commit would fail.
                take_over(job, owned=heartbeat.start)
            done = maintenance.run(dry_run=arguments.dry_run)
    versions, files = sum(expired.versions for expired in done), sum(expired.files for expired in done)
    orphans = sum(len(orphans_found.files) for orphans_found in maintenance.orphans.results)
    emit(
        events.Maintained(
            tables=len(done),
            versions=versions,
            files=files,
            orphans=orphans,
            dry_run=arguments.dry_run,
        )
    )
    if not arguments.json and not versions and not orphans and not maintenance.failed:
        sys.stderr.write("nothing to do\n")
    return 1 if maintenance.failed else 0


# -- taut relocate -------------------------------------------------------------------------------------


def relocate(arguments: argparse.Namespace) -> int:
    """Rewrite the paths of a copied or moved storage; without Spark."""
    from tautochrone.app.locate import locate
    from tautochrone.app.relocation import Relocation
    from tautochrone.runtime.job.effects import effects_from_environment

    emit = plain_listener(arguments)
    spec, settings = locate(options_of(arguments))
    relocation = Relocation(
        spec,
        settings,
        effects_from_environment(),
        emit,
        from_project=arguments.from_project,
        moved=arguments.moved,
    )
    if not relocation.survey():
        if not relocation.accept_lake(dry_run=arguments.dry_run) and not arguments.json:
            sys.stderr.write("nothing to do: the storage is where it was made\n")
        return 0
    if not arguments.dry_run:
        relocation.relocate()
    return 0


# -- taut revise ---------------------------------------------------------------------------------------


def revise(arguments: argparse.Namespace) -> int:
    """List what would be taken back, and do it if that is accepted; or complete pending revisions, list them,
    or confirm one.

    Raises:
        SettingsError: `CONFLICTING_OPTIONS`, `REVISION_WITHOUT_CHECKPOINT`.
    """
    _check_revision_options(arguments)
    from tautochrone.app.locate import locate
    from tautochrone.app.open import Project
    from tautochrone.app.stores import require_release
    from tautochrone.runtime.revision.revise import complete_pending, confirm

    emit, options = plain_listener(arguments), options_of(arguments)
    located = locate(options)
    if arguments.dry_run:
        require_release(located[1])
    with Project(options, emit, short_lived=True, located=located) as project:
        job = project.job(ownership=None if arguments.dry_run else ownership_of(arguments))
        if arguments.names:
            return _revise(job, arguments)
        if arguments.confirm:
            revision = confirm(job, arguments.confirm)
            emit(events.RevisionConfirmed(revision=revision.id, tables=len(revision.plan.changed)))
            return 0
        complete_pending(job)
        _show_waiting(job.store, as_json=arguments.json)
    return 0


def _check_revision_options(arguments: argparse.Namespace) -> None:
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
    _show_plan(plan, streamed, as_json=arguments.json)
    if arguments.dry_run:
        return 0
    if not (arguments.accept or (_can_ask(as_json=arguments.json) and _accepted("Take these tables back?"))):
        sys.stderr.write("nothing was changed; --accept takes these tables back\n")
        return 0
    complete_pending(job)
    revise(job, request, plan)
    return 0


def _can_ask(*, as_json: bool) -> bool:
    """Whether somebody is at a terminal who can be asked."""
    return not as_json and sys.stdin.isatty() and sys.stderr.isatty()


def _accepted(question: str) -> bool:
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _show_plan(plan: RevisionPlan, streamed_sinks: Collection[str], *, as_json: bool) -> None:
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
    table(("revision", "state", "to", "tables"), rows, empty="no revision waits")
