"""`taut plan --build`, `--list` and `--drop`, and `taut apply`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from tautochrone.cli.diff import difference_line, show_differences
from tautochrone.cli.options import opened_job, options_of
from tautochrone.cli.output import answer, json_line, plain_listener, report, table
from tautochrone.cli.reading import rows_of
from tautochrone.errors import TautochroneError
from tautochrone.model.counts import counted
from tautochrone.model.moments import iso_timestamp
from tautochrone.redaction import redacted

if TYPE_CHECKING:
    from tautochrone.app.open import Project
    from tautochrone.model.project_build import BuiltTable, ProjectBuild, RowComparison
    from tautochrone.runtime.job.job import Job
    from tautochrone.runtime.planning.build import BuildPrice

__all__ = ["apply", "build", "drop", "list_builds"]

_EXIT_CHANGED, _EXIT_ERROR, _EXIT_REFUSED = 1, 2, 3


def build(arguments: argparse.Namespace) -> int:
    """Build a plan and show what it changes.

    With `--exit-code` 0: nothing is to be built, 1: something was, 2: it could not.
    In any case 3: it was built, and did not pass its checks.
    """
    try:
        built = _build(arguments)
    except TautochroneError as error:
        if not arguments.exit_code:
            raise
        report(error)
        return _EXIT_ERROR
    if built is None:
        return 0
    if built.problems:
        return _EXIT_REFUSED
    return _EXIT_CHANGED if arguments.exit_code else 0


def _build(arguments: argparse.Namespace) -> ProjectBuild | None:
    from tautochrone.app.launch import launch
    from tautochrone.app.locate import locate
    from tautochrone.app.stores import require_release

    options = options_of(arguments)
    located = locate(options)
    require_release(located[1])
    launch(located[1], short_lived=True)
    from tautochrone.app.build import build_project
    from tautochrone.app.open import Project, log_event

    durations: dict[str, int] = {}

    def note(built: BuiltTable, duration_ms: int) -> None:
        durations[str(built.table)] = duration_ms
        sys.stderr.write(f"built {built.table.without_catalog} in {duration_ms / 1000:.1f} s\n")

    with Project(options, log_event, short_lived=True, located=located) as project:
        job = project.job()
        built = build_project(project, job, _write_price, note)
        if built is None:
            if arguments.json:
                json_line({"build": None})
            else:
                answer().write("nothing to build: no view changes\n")
            return None
        _show(arguments, project, job, built, durations)
        return built


def _write_price(price: BuildPrice, base: int) -> None:
    """What the build costs, before it begins."""
    known = f"their last computations took {price.duration_ms / 1000:.1f} s"
    if price.unmeasured:
        verb = "has" if price.unmeasured == 1 else "have"
        known += f"; {price.unmeasured} of them {verb} never been computed"
    views = counted(price.views, "view")
    sys.stderr.write(f"building {views} at checkpoint {base}: {counted(price.rows, 'row')}, {known}\n")


def _show(
    arguments: argparse.Namespace,
    project: Project,
    job: Job,
    built: ProjectBuild,
    durations: dict[str, int],
) -> None:
    from tautochrone.model.names import TableName
    from tautochrone.runtime.delivery.differences import differences
    from tautochrone.runtime.planning.build_views import SAMPLED_ROWS, record_comparisons

    key = [name.strip() for name in arguments.key.split(",")] if arguments.key else []
    rows = SAMPLED_ROWS if arguments.rows is None else arguments.rows
    names = [str(each.table) for each in built.tables]
    compared = differences(job.store, project.lake, project.base, int(built.base), built.id, names)
    lines = [difference_line(each, key, rows, as_json=arguments.json) for each in compared]
    record_comparisons(job, built, {TableName.parse(line["table"]): _comparison(line) for line in lines})
    if arguments.json:
        json_line(
            {
                "build": built.id,
                "checkpoint": built.base,
                "tables": [{"table": name, "duration_ms": durations[name]} for name in names],
                "problems": [redacted(problem) for problem in built.problems],
                "notes": [redacted(note) for note in built.notes],
            }
        )
        return
    show_differences(lines, key, of_build=True)
    for note in built.notes:
        answer().write(redacted(f"? {note}\n"))
    for problem in built.problems:
        answer().write(redacted(f"! {problem}\n"))
    answer().write(f"\nplan {built.id} is built at checkpoint {built.base}\n")
    if not built.problems:
        answer().write(f"taut apply {built.id}: makes its rows the next checkpoint\n")
    answer().write(f"taut plan --drop {built.id}: removes it\n")


def _comparison(line: dict[str, Any]) -> RowComparison:
    """What is kept of the line of one table."""
    from tautochrone.model.project_build import RowComparison
    from tautochrone.runtime.planning.build_views import row_sample

    return RowComparison(
        added=line["added"],
        removed=line["removed"],
        changed=line["changed"],
        changed_values=line["changed_values"] or {},
        columns_added=tuple(line["columns_added"]),
        columns_removed=tuple(line["columns_removed"]),
        samples=tuple(
            row_sample(sign, rows.column_names, rows_of(rows)) for sign, rows in line["samples"].items()
        ),
        problem=line["problem"],
    )


def list_builds(arguments: argparse.Namespace) -> int:
    """The built plans of all jobs, and the last ones that were applied or dropped, newest first."""
    from tautochrone.app.locate import locate
    from tautochrone.app.stores import existing_store
    from tautochrone.metaservice.plans import plan_summary

    _, settings = locate(options_of(arguments))
    with existing_store(settings) as store:
        builds = store.builds.remembered()
    if arguments.json:
        for each in builds:
            json_line(plan_summary(each))
        return 0
    if not builds:
        answer().write("there is no built plan\n")
        return 0
    header = ("plan", "state", "job", "checkpoint", "built at", "views")
    table(
        header,
        [
            (each.id, each.label, each.job, each.base, iso_timestamp(each.created_at_ms), len(each.views))
            for each in builds
        ],
    )
    return 0


def drop(arguments: argparse.Namespace) -> int:
    """Delete one built plan, or all of the job."""
    from tautochrone.app.launch import locate_and_launch

    options = options_of(arguments)
    located = locate_and_launch(options, reads_store=True)
    from tautochrone.app.open import Project, log_event
    from tautochrone.runtime.planning.drop_build import drop_build, drop_unknown_builds, require_droppable

    with Project(options, log_event, short_lived=True, located=located) as project:
        store = project.store()
        job_name = project.settings.job
        builds = [store.builds.get(arguments.drop)] if arguments.drop else store.builds.of_job(job_name)
        dropped = [each.id for each in builds]
        for each in builds:
            require_droppable(store, each, job_name)
        for each in builds:
            drop_build(store, project.lake, project.effects, each)
        if not arguments.drop:
            dropped += drop_unknown_builds(store, project.lake, job_name)
        for identity in dropped:
            if arguments.json:
                json_line({"dropped": identity})
            else:
                answer().write(f"plan {identity} is dropped\n")
        if not dropped and not arguments.json:
            answer().write("there is no built plan\n")
    return 0


def apply(arguments: argparse.Namespace) -> int:
    """Let the rows of a built plan be the next checkpoint: 1 if none shows them, or something else failed."""
    emit = plain_listener(arguments)
    with opened_job(arguments, emit, changes=True) as (_, job):
        from tautochrone.runtime.loop.run import RunState
        from tautochrone.runtime.planning.apply_build import apply_build

        applied = job.store.builds.get(arguments.build)
        state = apply_build(job, applied)
        left = any(each.id == applied.id for each in job.store.builds.of_job(job.name))
        if left:
            sys.stderr.write(
                f"no checkpoint shows plan {applied.id} ({state}): taut apply {applied.id} goes on with it\n"
            )
        elif state is RunState.FAILED:
            sys.stderr.write(f"a checkpoint shows plan {applied.id}, and something else failed ({state})\n")
        return 1 if left or state is RunState.FAILED else 0
