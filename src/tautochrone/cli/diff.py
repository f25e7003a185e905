"""`taut diff`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tautochrone.cli.options import options_of
from tautochrone.cli.output import answer, json_line, table
from tautochrone.cli.reading import rows_of
from tautochrone.errors import QueryError
from tautochrone.model.counts import counted
from tautochrone.model.reason import reason_fields
from tautochrone.redaction import redacted

if TYPE_CHECKING:
    from tautochrone.runtime.delivery.differences import TableDifference

__all__ = ["diff", "difference_line", "show_differences"]

_EXIT_DIFFERENT, _EXIT_NOT_COMPARED = 1, 3


def diff(arguments: argparse.Namespace) -> int:
    """The rows that differ between two checkpoints, or a checkpoint and a built plan."""
    from tautochrone.app.launch import locate_and_launch

    options = options_of(arguments)
    located = locate_and_launch(options, reads_store=True)
    from tautochrone.app.open import Project, log_event
    from tautochrone.runtime.delivery.differences import differences

    key = [name.strip() for name in arguments.key.split(",")] if arguments.key else []
    folder = None if arguments.parquet is None else _folder(arguments.parquet)
    with Project(options, log_event, short_lived=True, located=located) as project:
        all_compared = differences(
            project.store(), project.lake, project.base, arguments.old, arguments.new, arguments.names
        )
        # Rows are read while the checkpoints are pinned.
        lines = [
            difference_line(
                compared,
                key,
                arguments.rows,
                folder,
                must_have_key=bool(arguments.names),
                as_json=arguments.json,
            )
            for compared in all_compared
        ]
    if not arguments.json:
        sides = (arguments.old, arguments.new)
        show_differences(lines, key, of_build=any(isinstance(side, str) for side in sides))
    if any(line["problem"] for line in lines):
        return _EXIT_NOT_COMPARED
    differs = any(not line["same"] for line in lines)
    return _EXIT_DIFFERENT if differs and arguments.exit_code else 0


def _folder(text: str) -> Path:
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise QueryError(
            "OUTPUT_NOT_WRITABLE", f"The folder {folder} cannot be made: {error.strerror}"
        ) from error
    return folder


def difference_line(
    compared: TableDifference,
    key: list[str],
    sample: int,
    folder: Path | None = None,
    *,
    must_have_key: bool = False,
    as_json: bool,
) -> dict[str, Any]:
    """What is known of one table, for people and as a line of JSON; the latter is written at once.

    Args:
        key: columns by which rows of both sides belong together; empty: none.
        sample: so many rows of each sign are shown.
        folder: into which all rows are written.
        must_have_key: a table without these columns is an error.
    """
    from tautochrone.runtime.delivery.differences import first_rows

    problem = compared.problem
    # Of all tables, some may not have the columns; of those that are named each must.
    has_key = bool(key) and not problem and (must_have_key or {*key} <= compared.columns)
    line: dict[str, Any] = {
        "table": str(compared.table),
        "same": None if problem else compared.is_same,
        "added": None if problem else compared.rows_added,
        "removed": None if problem else compared.rows_removed,
        "changed": compared.changed_keys(key) if has_key else None,
        "changed_values": compared.changed_values(key) if has_key else None,
        "columns_added": compared.columns_added,
        "columns_removed": compared.columns_removed,
        "problem": None if problem is None else redacted(str(problem)),
    }
    sides = [("+", compared.added, compared.rows_added), ("-", compared.removed, compared.rows_removed)]
    samples = {sign: first_rows(rows, sample) for sign, rows, count in sides if count and sample}
    if folder is not None:
        import pyarrow.parquet as pq

        for (_, rows, count), name in zip(sides, ("added", "removed"), strict=True):
            if count:
                # A name may have a slash.
                file = folder / f"{quote(str(compared.table), safe='')}.{name}.parquet"
                pq.write_table(first_rows(rows, count), file)
    if as_json:
        named = {
            ("rows_added" if sign == "+" else "rows_removed"): [
                dict(zip(rows.column_names, values, strict=True)) for values in rows_of(rows)
            ]
            for sign, rows in samples.items()
        }
        json_line({**line, **reason_fields("reason", compared.reason), **named})
    return {**line, "reason": compared.reason, "samples": samples}


def show_differences(lines: Sequence[dict[str, Any]], key: list[str], *, of_build: bool) -> None:
    """Write the lines of tables that differ, for people.

    Args:
        of_build: one side is a built plan: rows with other columns are no change of the deployed ones, so
            that it is said once for all such tables why all rows were compared.
    """
    if not lines:
        answer().write("no table differs\n")
        return
    header = ("table", "added", "removed", *(("changed",) if key else ()))
    table(header, [["–" if line[name] is None else line[name] for name in header] for line in lines])
    for line in lines:
        columns = [f"+{name}" for name in line["columns_added"]]
        columns += [f"-{name}" for name in line["columns_removed"]]
        if columns:
            answer().write(f"{line['table']}: columns {', '.join(columns)}\n")
        values = [f"{name} ({count})" for name, count in (line["changed_values"] or {}).items()]
        if values:
            answer().write(f"{line['table']}: changed values: {', '.join(values)}\n")
        if line["problem"]:
            answer().write(f"{line['table']}: not compared: {line['problem']}\n")
        elif line["reason"] is not None and not (of_build and columns):
            answer().write(f"{line['table']}: all rows were compared: {redacted(str(line['reason']))}\n")
    built_anew = [
        line
        for line in lines
        if line["reason"] is not None
        and not line["problem"]
        and (line["columns_added"] or line["columns_removed"])
    ]
    if of_build and built_anew:
        names = counted(len(built_anew), "table")
        answer().write(
            f"all rows of {names} were compared: what is built with other columns has no history\n"
        )
    for line in lines:
        for sign, rows in line["samples"].items():
            answer().write(f"{sign} {line['table']}\n")
            table(rows.column_names, rows_of(rows))
