"""A unit test made of rows of a checkpoint: inputs that meet conditions, and the view's over them.

The test is run before it is handed out, so it passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import QueryError
from tautochrone.model.names import FILE_PATH, FILE_STAMP, NOW, TableName, Version, is_clock, label_of
from tautochrone.project.graph import Graph
from tautochrone.project.unit_test_files import parse_unit_tests
from tautochrone.runtime.unit_tests.differences import RowValues, difference
from tautochrone.runtime.unit_tests.evaluation import Evaluation
from tautochrone.runtime.unit_tests.runner import Outcome, UnitTests
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.execute.materialize import local_relation
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["Condition", "record"]

_OF_INPUT = re.compile(r"(?P<input>[\w.]+):(?!:)(?P<condition>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """Which rows of an input are taken.

    Attributes:
        sql: a condition over its columns.
        input: its name; None: it is for every input that has the columns.
    """

    sql: str
    input: str | None = None

    @classmethod
    def parse(cls, text: str) -> Condition:
        """A condition, perhaps with the name of an input before it.

        Example:
            >>> Condition.parse("orders: id < 3")
            Condition(sql='id < 3', input='orders')
        """
        matched = _OF_INPUT.fullmatch(text.strip())
        if matched is None:
            return cls(text.strip())
        return cls(matched["condition"].strip(), matched["input"].lower())


@dataclass(frozen=True, slots=True)
class RecordedCheckpoint:
    """Where the rows come from.

    Attributes:
        versions: of its tables and clocks.
        cut_at_ms: when its cut was taken, in epoch milliseconds.
    """

    number: int
    versions: Mapping[TableName, Version]
    cut_at_ms: int

    @property
    def now(self) -> int:
        """Its time, in microseconds since 1970."""
        return int(self.versions[NOW]) if NOW in self.versions else self.cut_at_ms * 1000


def record(
    graph: Graph,
    base: SparkSession,
    session: SparkSession,
    model: TableName,
    checkpoint: RecordedCheckpoint,
    conditions: Sequence[Condition],
    *,
    limit: int,
) -> str:
    """The test as the text of a YAML file.

    Args:
        graph: of the project, with its analysis session.
        base: the session that it was analysed with.
        session: shows the lake at the checkpoint.
        checkpoint: the one; a test of a query that asks for the time has its time.
        conditions: which rows of the inputs are taken; of an input without one, all are.
        limit: so many rows of an input at most.

    Raises:
        QueryError: `UNIT_TEST_TOO_MANY_ROWS`; `UNIT_TEST_INPUT_NOT_FOUND` for a condition of no input;
            `UNIT_TEST_CONDITION_UNUSED` for one whose columns no input has; `UNIT_TEST_NOT_RECORDED`, the
            test does not pass.
        DefinitionError: `UNIT_TEST_NOT_SUPPORTED`.
    """
    inputs = sorted(table for table in graph.inputs(model).tables if not is_clock(table))
    names = {table: label_of(table) or table.table for table in inputs}
    _check_inputs(model, names, conditions)
    rows = _that_meet(session, model, names, conditions)
    given = {table: _few(session, rows[table], names[table], limit) for table in inputs}
    tests = UnitTests(graph, base, model.catalog)
    local = {table: _in_session(tests.session, rows) for table, rows in given.items()}

    def computed() -> RowValues:
        evaluation = Evaluation(graph, model.catalog, tests.stand_ins, local, None, checkpoint.now)
        return _values(evaluation.result(model))

    test: dict[str, Any] = {"name": f"{model.table} at checkpoint {checkpoint.number}", "model": model.table}
    if graph.inputs(model).clocks:
        test["now"] = _at(tests.session, checkpoint.now)
    test["given"] = [
        {"input": f"ref('{names[table]}')", "rows": _listed(_values(_shown(rows)), is_whole=False)}
        for table, rows in local.items()
    ]
    expected = computed()
    test["expect"] = {"rows": _listed(expected, is_whole=True)}
    text = yaml.dump({"unit_tests": [test]}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    _check_passes(tests, text, model, lambda: not difference(expected, computed()))
    return text


def _check_inputs(
    model: TableName,
    names: Mapping[TableName, str],
    conditions: Sequence[Condition],
) -> None:
    known = {name.lower() for name in names.values()}
    unknown = [condition.input for condition in conditions if condition.input not in {None, *known}]
    if unknown:
        raise QueryError(
            "UNIT_TEST_INPUT_NOT_FOUND",
            f"{model.without_catalog} does not read {unknown[0]}",
            hint=f"it reads {', '.join(sorted(known)) or 'no table'}",
            sqlstate="42P01",
        )


def _check_passes(tests: UnitTests, text: str, model: TableName, is_stable: Callable[[], bool]) -> None:
    """Run the test.

    Args:
        is_stable: whether the view gives the same rows when it is computed over the same rows again.
    """
    (ended,) = tests.run(parse_unit_tests(text, Path("recorded.yml")))
    if ended.outcome is Outcome.PASSED:
        return
    if ended.error is not None:
        why, hint = f"the test ends in an error: {ended.error.message}", ended.error.hint
    elif is_stable():
        differ = [name for check in ended.checks for row in check.difference.rows for name in row.columns]
        columns = ", ".join(dict.fromkeys(differ)) or "all columns"
        why = f"a value is another one after it was written as YAML, and {columns} of the result differ"
        hint = "Give conditions that leave such rows out, or write the test by hand."
    else:
        why = "it gives other rows when it is computed again"
        hint = "A query that is not deterministic has no test."
    raise QueryError(
        "UNIT_TEST_NOT_RECORDED",
        f"No test of {model.without_catalog} is recorded: {why}",
        hint=hint,
        sqlstate="55000",
    )


def _that_meet(
    session: SparkSession, model: TableName, names: Mapping[TableName, str], conditions: Sequence[Condition]
) -> Mapping[TableName, DataFrame]:
    """The rows of the inputs that meet the conditions; nothing is read yet."""
    rows = {table: session.table(table.sql) for table in names}
    for condition in conditions:
        is_used = False
        for table, name in names.items():
            met = _where(rows[table], condition) if condition.input in (None, name.lower()) else None
            if met is not None:
                rows[table], is_used = met, True
        if not is_used:
            known = "; ".join(
                f"{name} has {', '.join(_shown(rows[table]).columns)}" for table, name in names.items()
            )
            raise QueryError(
                "UNIT_TEST_CONDITION_UNUSED",
                f"No input of {model.without_catalog} has the columns of the condition {condition.sql}",
                hint=known or "it reads no table",
                sqlstate="42703",
            )
    return rows


def _where(rows: DataFrame, condition: Condition) -> DataFrame | None:
    """The rows that meet a condition; None: it is about another input."""
    try:
        return rows.where(condition.sql)
    except PySparkException as error:
        problem = problem_of(error)
        if condition.input is None and problem.error_class.startswith("UNRESOLVED_COLUMN"):
            return None
        raise QueryError(problem.error_class, f"{condition.sql}: {problem.message}") from error


def _shown(rows: DataFrame) -> DataFrame:
    """The rows without the columns that tell from which file each is."""
    return rows.drop(FILE_PATH, FILE_STAMP)


def _few(session: SparkSession, rows: DataFrame, name: str, limit: int) -> DataFrame:
    local = _in_session(session, rows.limit(limit + 1))
    count = local.count()
    if count > limit:
        raise QueryError(
            "UNIT_TEST_TOO_MANY_ROWS",
            f"More than {limit} rows of {name} would be in the test",
            hint=f"Give a condition for it: --where '{name}: …'; or a larger number: --rows.",
            sqlstate="54000",
        )
    return local


def _in_session(session: SparkSession, rows: DataFrame) -> DataFrame:
    return dataframe_of_plan(session, local_relation(rows)[0])


def _values(rows: DataFrame) -> RowValues:
    return RowValues.of(rows.toArrow())


def _at(session: SparkSession, micros: int) -> str:
    row = session.sql(f"SELECT timestamp_micros({micros}) AS at").toArrow().to_pylist()[0]
    return _plain_text(row["at"])


# -- YAML --------------------------------------------------------------------------------------------------


class _FlowRow(dict[str, Any]):
    """A row, on one line."""


def _listed(rows: RowValues, *, is_whole: bool) -> list[_FlowRow]:
    """Rows by the names of their columns.

    Args:
        is_whole: with NULLs: the columns that expected rows name are compared.
    """
    return [
        _FlowRow(
            (name, _value(value))
            for name, value in zip(rows.columns, row, strict=True)
            if is_whole or value is not None
        )
        for row in rows.rows
    ]


def _value(value: Any) -> Any:
    match value:
        case datetime() | date() | time():
            return _plain_text(value)
        case dict():
            return {name: _value(inner) for name, inner in value.items()}
        case list() if value and all(isinstance(entry, tuple) for entry in value):
            return {_key(key): _value(inner) for key, inner in value}
        case list():
            return [_value(inner) for inner in value]
        case _:
            return value


def _key(value: Any) -> str:
    return value if isinstance(value, str) else _plain_text(value)


def _plain_text(value: Any) -> str:
    # With its offset, so that an hour that a clock shows twice is told apart.
    return value.isoformat(sep=" ") if isinstance(value, datetime) else str(value)


class _Dumper(yaml.SafeDumper):
    """Writes decimals with all their digits, and each row on one line."""


def _decimal(dumper: yaml.SafeDumper, value: Decimal) -> yaml.Node:
    text = format(value, "f")
    return dumper.represent_scalar(
        "tag:yaml.org,2002:float" if "." in text else "tag:yaml.org,2002:int", text
    )


def _row(dumper: yaml.SafeDumper, row: _FlowRow) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", row, flow_style=True)


_Dumper.add_representer(Decimal, _decimal)
_Dumper.add_representer(_FlowRow, _row)
