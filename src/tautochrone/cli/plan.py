"""`taut plan`: what the next run will do, as text, as JSON, and as Markdown for a pull request."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tautochrone.cli.options import names_of, options_of, say_sinks_are_off
from tautochrone.cli.output import answer, json_line, report, table
from tautochrone.errors import SettingsError, TautochroneError
from tautochrone.model.counts import counted
from tautochrone.model.moments import iso_timestamp
from tautochrone.model.project_plan import ColumnChangeKind, DefinitionChange, SinkAction, Treatment
from tautochrone.redaction import redacted, redacted_fields

if TYPE_CHECKING:
    from tautochrone.model.project_plan import DatasetPlan, ProjectPlan

__all__ = ["plan", "write_refusals"]

_EXIT_CHANGED, _EXIT_ERROR, _EXIT_REFUSED = 1, 2, 3


def plan(arguments: argparse.Namespace) -> int:
    """Show what the next run will do; nothing is written.

    With `--exit-code` 0: nothing changes, 1: something does, 2: there is no plan, 3: the run will refuse
    something.

    Raises:
        SettingsError: `CONFLICTING_OPTIONS`.
    """
    if not arguments.build and (arguments.rows is not None or arguments.key is not None):
        raise SettingsError("CONFLICTING_OPTIONS", "--rows and --key need --build: they compare built rows")
    if arguments.build or arguments.list or arguments.drop is not None:
        return _of_build(arguments)
    from tautochrone.app.locate import locate
    from tautochrone.app.plan import plan as plan_of

    try:
        planned = plan_of(
            options_of(arguments),
            names_of(arguments.full_refresh),
            everything=arguments.full_refresh_all,
        )
    except TautochroneError as error:
        if not arguments.exit_code:
            raise
        report(error)
        return _EXIT_ERROR
    say_sinks_are_off(locate(options_of(arguments))[1])
    if arguments.json:
        json_line(redacted_fields(planned.as_json()))
    elif arguments.markdown:
        answer().write(redacted("\n".join(_markdown(planned))) + "\n")
    else:
        _text(planned)
    if not arguments.exit_code:
        return 0
    if any(refusal.is_certain for refusal in planned.refusals):
        return _EXIT_REFUSED
    return _EXIT_CHANGED if planned.has_changes else 0


def _of_build(arguments: argparse.Namespace) -> int:
    from tautochrone.cli import builds

    if arguments.markdown or arguments.full_refresh or arguments.full_refresh_all:
        raise SettingsError(
            "CONFLICTING_OPTIONS",
            "--build, --list and --drop exclude --markdown, --full-refresh and --full-refresh-all",
        )
    if arguments.exit_code and not arguments.build:
        raise SettingsError("CONFLICTING_OPTIONS", "--list and --drop exclude --exit-code")
    if arguments.list:
        return builds.list_builds(arguments)
    return builds.build(arguments) if arguments.build else builds.drop(arguments)


def write_refusals(plans: Iterable[ProjectPlan]) -> bool:
    """Write what the next runs will refuse in any case on standard error; whether there is anything."""
    certain = [refusal for planned in plans for refusal in planned.refusals if refusal.is_certain]
    for refusal in certain:
        location = "" if refusal.location is None else f"; {refusal.location}"
        hint = "" if refusal.hint is None else f"  hint: {refusal.hint}\n"
        sys.stderr.write(redacted(f"[{refusal.error_class}] {refusal.text}{location}\n{hint}"))
    return bool(certain)


# -- text ---------------------------------------------------------------------------------------------


def _text(planned: ProjectPlan) -> None:
    for danger in planned.dangers:
        answer().write(redacted(f"! {danger.kind}: {danger.subject}: {danger.text}\n"))
        if danger.hint:
            answer().write(redacted(f"    hint: {danger.hint}\n"))
    if planned.dangers:
        answer().write("\n")
    if not planned.has_changes:
        since = "" if planned.checkpoint is None else f" since checkpoint {planned.checkpoint}"
        answer().write(f"no change{since}: {counted(len(planned.datasets), 'dataset')}\n")
        if not planned.is_compared:
            sys.stderr.write("the files, settings and environment are those of the last run\n")
        return
    header, rows = _dataset_rows(planned)
    table(header, rows)
    for part in planned.datasets:
        for line in _details(part):
            answer().write(redacted(line) + "\n")
    for title, lines in _other_parts(planned):
        answer().write(f"\n{title}\n")
        answer().writelines(redacted(f"  {line}\n") for line in lines)
    left = sum(not part.is_changed for part in planned.datasets)
    if left:
        stay = "1 more dataset stays as it is" if left == 1 else f"{left} more datasets stay as they are"
        answer().write(f"\n{stay}\n")


def _dataset_rows(planned: ProjectPlan) -> tuple[Sequence[str], list[Sequence[str]]]:
    rows: list[Sequence[str]] = [
        (
            part.dataset.without_catalog,
            str(part.change),
            _treatment(part),
            "" if part.rows is None else str(part.rows),
            "" if part.duration_ms is None else f"{part.duration_ms / 1000:.1f} s",
            redacted(_why(part)),
        )
        for part in planned.datasets
        if part.is_changed
    ]
    return ("dataset", "definition", "next run", "rows", "last took", "why"), rows


_WITHOUT_MODE = (Treatment.LEAVE, Treatment.CREATE, Treatment.CLEAR)


def _treatment(part: DatasetPlan) -> str:
    text = str(part.treatment)
    if part.mode is not None and part.treatment not in _WITHOUT_MODE:
        text += f" ({part.mode})"
    return f"{text}?" if part.is_conditional else text


def _why(part: DatasetPlan) -> str:
    text = str(part.reason)
    if part.causes:
        names = ", ".join(name.without_catalog for name in part.causes)
        verb = "change" if len(part.causes) > 1 else "changes"
        text += f"; {names} {'may change' if part.is_conditional else verb}"
    if part.renamed_from is not None:
        text += f"; it has the definition of {part.renamed_from.without_catalog}"
    return text


def _details(part: DatasetPlan) -> list[str]:
    if not part.is_changed:
        return []
    is_known = part.change not in (DefinitionChange.NEW, DefinitionChange.REMOVED)
    lines = [f"  {line}" for line in _columns(part)] if is_known else []
    lines += [f"  {line}" for line in part.difference or ()]
    if part.difference is None:
        lines.append("  the text of the definition that computed its rows is not known")
    elif part.change is DefinitionChange.CHANGED and not part.difference:
        lines.append(f"  its text is the same: {part.same_text_cause}")
    if part.states:
        lines.append(f"  states built anew: {', '.join(state.table for state in part.states)}")
    if part.renamed_from is not None:
        lines.append(
            f"  `taut rename {part.renamed_from.table} {part.dataset.table}` before the run keeps its rows"
        )
    if part.sinks:
        lines.append(f"  goes to: {', '.join(part.sinks)}")
    return ["", f"{part.dataset.without_catalog}  {part.location or ''}".rstrip(), *lines] if lines else []


_SIGNS = {
    ColumnChangeKind.ADDED: "+",
    ColumnChangeKind.REMOVED: "-",
    ColumnChangeKind.KEPT: "=",
    ColumnChangeKind.RETYPED: "~",
}


def _columns(part: DatasetPlan) -> list[str]:
    lines = []
    for column in part.columns:
        types = " → ".join(kind for kind in (column.before, column.after) if kind is not None)
        kept = "  stays in the table, NULL in new rows" if column.kind is ColumnChangeKind.KEPT else ""
        lines.append(f"column {_SIGNS[column.kind]}{column.name} {types}{kept}")
    return lines


def _other_parts(planned: ProjectPlan) -> Iterable[tuple[str, list[str]]]:
    parts = {
        "flows": [f"{flow.flow}: {flow.start}: {flow.reason}" for flow in planned.flows],
        "sinks and publications": [
            f"{sink.sink} ({sink.format}): {sink.action}: {sink.reason}"
            for sink in planned.sinks
            if sink.action is not SinkAction.LEAVE
        ],
        "invariants": [f"{invariant.invariant}: {invariant.change}" for invariant in planned.invariants],
        "readers that keep old versions": [
            f"{pin.owner} until {iso_timestamp(pin.expires_at_ms)}: "
            + ", ".join(name.without_catalog for name in pin.datasets)
            for pin in planned.pins
        ],
    }
    return [(title, lines) for title, lines in parts.items() if lines]


# -- Markdown -----------------------------------------------------------------------------------------


def _markdown(planned: ProjectPlan) -> list[str]:
    lines = [f"### Plan of {planned.job}", ""]
    for danger in planned.dangers:
        hint = f" _{danger.hint}_" if danger.hint else ""
        lines.append(f"- :warning: **{danger.kind}** `{danger.subject}`: {_cell(danger.text)}{_cell(hint)}")
    if planned.dangers:
        lines.append("")
    if not planned.has_changes:
        return [*lines, "No change."]
    header, rows = _dataset_rows(planned)
    lines += [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(map(_cell, (f'`{row[0]}`', *row[1:])))} |" for row in rows]
    for part in planned.datasets:
        details = _details(part)
        if details:
            # A fence is longer than any in a definition.
            lines += ["", f"<details><summary>{part.dataset.without_catalog}</summary>", "", "````diff"]
            lines += [line.removeprefix("  ") for line in details[2:]]
            lines += ["````", "</details>"]
    for title, entries in _other_parts(planned):
        lines += ["", f"**{title}**", "", *(f"- {_cell(entry)}" for entry in entries)]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
