"""`taut query` and `taut verify`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tautochrone.cli.options import options_of
from tautochrone.cli.output import answer, csv_rows, json_line, table
from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.reason import reason_fields
from tautochrone.redaction import redacted

if TYPE_CHECKING:
    from tautochrone.runtime.delivery.audit import SinkVerdict

__all__ = ["query", "verify_views"]

_EXIT_DIFFERENT, _EXIT_NOT_COMPARED = 1, 3
_RESULTS = {True: "equal", False: "DIFFERENT", None: "not comparable"}


def query(arguments: argparse.Namespace) -> int:
    """Answer one query at one checkpoint."""
    from pyspark.errors import PySparkException

    from tautochrone.app.connect import open_connection
    from tautochrone.reader import query_error

    with open_connection(options_of(arguments), short_lived=True) as connection:
        frame = connection.sql(
            arguments.sql,
            consistency=arguments.consistency,
            checkpoint=arguments.checkpoint,
            only_named=arguments.only_named,
            after=arguments.after,
            wait_ms=arguments.wait,
        )
        header = frame.columns
        try:
            rows = frame.collect()
        except PySparkException as error:
            # Some errors appear only while the query runs: a division by zero, a missing file.
            raise query_error(error, arguments.sql) from error
        for reason in sorted({*connection.behind.values()}):
            sys.stderr.write(f"older than the newest data: {redacted(reason)}\n")
    if arguments.format == "json":
        for row in rows:
            json_line(dict(zip(header, _plain(list(row)), strict=True)))
    elif arguments.format == "csv":
        csv_rows(header, [list(row) for row in rows])
    else:
        table(header, [list(row) for row in rows])
    return 0


def verify_views(arguments: argparse.Namespace) -> int:
    """Recompute and compare: 1 when a view differs, 3 when what was asked for could not be compared."""
    if arguments.sink:
        return _verify_sink(arguments)
    from tautochrone.app.launch import locate_and_launch

    options = options_of(arguments)
    located = locate_and_launch(options)
    from tautochrone.app.open import Project, log_event
    from tautochrone.runtime.job.topology import find_all
    from tautochrone.runtime.views.verify import verify

    answers: dict[TableName, bool | None] = {}
    with Project(options, log_event, short_lived=True, located=located) as project:
        definitions, graph = project.analysed()
        store = project.store()
        named = find_all(definitions, arguments.names)
        views = named or list(graph.order)
        read_points = project.open_read_point_server(store)
        for verdict in verify(
            project.base, store, read_points, definitions, graph, views, arguments.checkpoint
        ):
            answers[verdict.dataset] = verdict.equal
            if arguments.json:
                line = {**asdict(verdict), "dataset": str(verdict.dataset)}
                json_line({key: value for key, value in line.items() if key != "reason" or value})
            else:
                result = _RESULTS[verdict.equal]
                detail = verdict.reason or f"{verdict.missing} missing, {verdict.unexpected} unexpected"
                answer().write(f"{verdict.dataset}  checkpoint {verdict.checkpoint}  {result}  ({detail})\n")
    return _exit_status(answers, named, "it is not a view: nothing recomputes it")


def _verify_sink(arguments: argparse.Namespace) -> int:
    """Compare a sink with the lake; exit statuses as those of `verify_views`."""
    from tautochrone.app.launch import locate_and_launch

    options = options_of(arguments)
    located = locate_and_launch(options)
    from tautochrone.app.open import Project, log_event
    from tautochrone.project.sinks import sink_declarations
    from tautochrone.runtime.delivery.audit import verify_sink
    from tautochrone.runtime.job.topology import find_all
    from tautochrone.sinks import has_adapter

    answers: dict[TableName, bool | None] = {}
    with Project(options, log_event, short_lived=True, located=located) as project:
        definitions, graph = project.analysed()
        declared = sink_declarations(definitions, graph, project.settings.sinks, has_adapter)
        by_name = {declaration.name: declaration for declaration in declared}
        if arguments.sink not in by_name:
            raise SinkError(
                "SINK_NOT_FOUND",
                f"No sink with an adapter is called {arguments.sink}",
                hint="known sinks: " + (", ".join(by_name) or "none"),
                sqlstate="42704",
            )
        tables = find_all(definitions, arguments.names)
        for verdict in verify_sink(
            project.base,
            project.store(),
            project.lake,
            by_name[arguments.sink],
            tables,
            arguments.checkpoint,
        ):
            is_other = arguments.checkpoint not in (None, verdict.checkpoint)
            # Equal at another checkpoint than the one that was asked for is no answer about that one.
            answers[verdict.dataset] = None if is_other and verdict.equal else verdict.equal
            _show_sink_verdict(verdict, as_json=arguments.json)
    named = tables or (list(answers) if arguments.checkpoint is not None else [])
    return _exit_status(answers, named, "the sink does not show it")


def _show_sink_verdict(verdict: SinkVerdict, *, as_json: bool) -> None:
    if as_json:
        line = {**asdict(verdict), "dataset": str(verdict.dataset), "equal": verdict.equal}
        del line["reason"]
        json_line({**line, **reason_fields("reason", verdict.reason)})
        return
    result = _RESULTS[verdict.equal]
    counts = f"{verdict.lake_rows} rows in the lake, {verdict.sink_rows} in the sink"
    answer().write(f"{verdict.dataset}  checkpoint {verdict.checkpoint}  {result}  ({counts})\n")
    if verdict.reason is not None:
        answer().write(f"  {verdict.reason}\n")
    if any(verdict.parts):
        answer().write(f"  in the parts {', '.join(verdict.parts)}\n")
    for difference in verdict.differences:
        copies = f"lake {difference.in_lake}, sink {difference.in_sink}"
        answer().write(f"  {copies}  {difference.row}\n")


def _exit_status(
    answers: Mapping[TableName, bool | None], named: Sequence[TableName], why_absent: str
) -> int:
    """The status for a script: 0 only if something was compared, and everything that was named.

    Args:
        answers: of each dataset whether it is equal; None: it could not be compared.
        named: the datasets that the command names; none: all.
        why_absent: why one of them has no answer, for people.
    """
    for name in named:
        if name not in answers:
            sys.stderr.write(f"{name} was not compared: {why_absent}\n")
    if False in answers.values():
        return _EXIT_DIFFERENT
    if named:
        return 0 if all(answers.get(name) for name in named) else _EXIT_NOT_COMPARED
    if not answers:
        sys.stderr.write("nothing was compared: there is nothing to compare\n")
    return 0 if any(answers.values()) else _EXIT_NOT_COMPARED


def _plain(value: Any) -> Any:
    """Rows inside rows as objects."""
    if hasattr(value, "asDict"):
        return {key: _plain(inner) for key, inner in value.asDict().items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return value
