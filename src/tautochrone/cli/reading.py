"""`taut query` and `taut verify`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tautochrone.cli.options import options_of
from tautochrone.cli.output import answer, csv_rows, json_line, table
from tautochrone.errors import SinkError
from tautochrone.model.counts import counted
from tautochrone.model.names import TableName
from tautochrone.model.near_names import near_names_hint
from tautochrone.model.query import Query, QueryAnswer
from tautochrone.model.reason import reason_fields
from tautochrone.model.verdict import Verdict, Verification
from tautochrone.redaction import redacted

if TYPE_CHECKING:
    import pyarrow as pa

    from tautochrone.model.sink import SinkDeclaration
    from tautochrone.runtime.delivery.audit import SinkVerdict

__all__ = ["query", "rows_of", "verify_views"]

_EXIT_DIFFERENT, _EXIT_NOT_COMPARED = 1, 3
_NOTHING_SHOWN = "SINK_SHOWS_NOTHING"
_RESULTS = {True: "equal", False: "DIFFERENT", None: "not comparable"}


def query(arguments: argparse.Namespace) -> int:
    """Answer one query at one checkpoint."""
    from tautochrone.model.checkpoint import Consistency

    request = Query(
        sql=arguments.sql,
        consistency=Consistency(arguments.consistency),
        checkpoint=arguments.checkpoint,
        only_named=arguments.only_named,
        after=arguments.after,
        wait_ms=arguments.wait,
    )
    answered = _answer(arguments, request)
    for reason in sorted({*answered.behind.values()}):
        sys.stderr.write(f"older than the newest data: {redacted(reason)}\n")
    header, rows = answered.rows.column_names, rows_of(answered.rows)
    if arguments.format == "json":
        for row in rows:
            json_line(dict(zip(header, row, strict=True)))
    elif arguments.format == "csv":
        csv_rows(header, rows)
    else:
        table(header, rows)
    return 0


def _answer(arguments: argparse.Namespace, request: Query) -> QueryAnswer:
    """The answer of what runs, or of a Spark of this process."""
    from tautochrone.app.queries import answer_of_service, answer_of_spark

    options = options_of(arguments)
    # Who gives settings for Spark means a Spark that has them.
    if not (arguments.own_spark or options.conf or options.master):
        answered = answer_of_service(options, request)
        if isinstance(answered, QueryAnswer):
            return answered
        if answered is not None:
            sys.stderr.write(f"Spark starts for this query: {redacted(str(answered))}\n")
    return answer_of_spark(options, request)


def rows_of(rows: pa.Table) -> list[list[Any]]:
    """The rows of a query as values of Python: timestamps in the session's time zone, bytes as hexadecimal
    digits."""
    columns = [[_plain(value, column.type) for value in column.to_pylist()] for column in rows.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def verify_views(arguments: argparse.Namespace) -> int:
    """Recompute and compare: 1 when a view differs, 3 when what was asked for could not be compared."""
    if arguments.sink:
        return _verify_sink(arguments)
    answers: dict[TableName, bool | None] = {}
    with _verification(arguments) as verification:
        for verdict in verification.verdicts:
            answers[verdict.dataset] = verdict.equal
            _show_verdict(verdict, as_json=arguments.json)
    return _exit_status(answers, verification.named, "it is not a view: nothing recomputes it")


@contextmanager
def _verification(arguments: argparse.Namespace) -> Iterator[Verification]:
    """By the run that goes on, or a Spark of this process."""
    from tautochrone.app.verifications import verification_by_run, verification_by_spark

    options = options_of(arguments)
    # Who gives settings for Spark means a Spark that has them.
    if not (arguments.own_spark or options.conf or options.master):
        with verification_by_run(options, arguments.names, arguments.checkpoint) as begun:
            if isinstance(begun, Verification):
                yield begun
                return
        if begun is not None:
            sys.stderr.write(f"Spark starts for this verification: {redacted(str(begun))}\n")
    with verification_by_spark(options, arguments.names, arguments.checkpoint) as verification:
        yield verification


def _show_verdict(verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        line = {**asdict(verdict), "dataset": str(verdict.dataset)}
        json_line({key: value for key, value in line.items() if key != "reason" or value})
        return
    result = _RESULTS[verdict.equal]
    detail = verdict.reason or f"{verdict.missing} missing, {verdict.unexpected} unexpected"
    at = "no checkpoint" if verdict.checkpoint is None else f"checkpoint {verdict.checkpoint}"
    answer().write(f"{verdict.dataset}  {at}  {result}  ({detail})\n")


def _verify_sink(arguments: argparse.Namespace) -> int:
    """Compare a sink with the lake; exit statuses as those of `verify_views`."""
    from tautochrone.app.launch import locate_and_launch

    options = options_of(arguments)
    located = locate_and_launch(options, reads_store=True)
    from tautochrone.app.open import Project, log_event
    from tautochrone.project.sinks import sink_declarations
    from tautochrone.runtime.delivery.audit import verify_sink
    from tautochrone.runtime.job.topology import find_all
    from tautochrone.sinks import has_adapter

    answers: dict[TableName, bool | None] = {}
    with Project(options, log_event, short_lived=True, located=located) as project:
        definitions, graph = project.analysed()
        declared = sink_declarations(definitions, graph, project.settings.sinks, has_adapter)
        declaration = _named_sink(declared, arguments.sink)
        tables = find_all(definitions, arguments.names)
        verdicts = verify_sink(
            project.base, project.store(), project.lake, declaration, tables, arguments.checkpoint
        )
        try:
            for verdict in verdicts:
                is_other = arguments.checkpoint not in (None, verdict.checkpoint)
                # Equal at another checkpoint than the one that was asked for is no answer about that one.
                answers[verdict.dataset] = None if is_other and verdict.equal else verdict.equal
                _show_sink_verdict(verdict, as_json=arguments.json)
        except SinkError as error:
            if error.error_class != _NOTHING_SHOWN:
                raise
            sys.stderr.write(f"nothing was compared: {error.message}. {error.hint}\n")
            return _EXIT_NOT_COMPARED
    named = tables or (list(answers) if arguments.checkpoint is not None else [])
    return _exit_status(answers, named, "the sink does not show it")


def _named_sink(declared: Sequence[SinkDeclaration], name: str) -> SinkDeclaration:
    by_name = {declaration.name: declaration for declaration in declared}
    if name not in by_name:
        raise SinkError(
            "SINK_NOT_FOUND",
            f"No sink with an adapter is called {name}",
            hint=near_names_hint(name, by_name, "known sinks:"),
            sqlstate="42704",
        )
    return by_name[name]


def _show_sink_verdict(verdict: SinkVerdict, *, as_json: bool) -> None:
    if as_json:
        line = {**asdict(verdict), "dataset": str(verdict.dataset), "equal": verdict.equal}
        del line["reason"]
        json_line({**line, **reason_fields("reason", verdict.reason)})
        return
    result = _RESULTS[verdict.equal]
    counts = f"{counted(verdict.lake_rows, 'row')} in the lake, {verdict.sink_rows} in the sink"
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


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, dict):
        return {name: _plain(inner, kind.field(name).type) for name, inner in value.items()}
    if not isinstance(value, list):
        return value
    if hasattr(kind, "key_type"):
        return {str(_plain(key, kind.key_type)): _plain(inner, kind.item_type) for key, inner in value}
    return [_plain(inner, kind.value_type) for inner in value]
