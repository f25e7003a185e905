"""Running unit tests: the rows of each are made, its model is evaluated over them and compared.

All tests share one session and the analysis of the project. An error in one test ends only that test.
"""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tautochrone.algebra.nodes import CutSide
from tautochrone.errors import DefinitionError, TautochroneError
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import TableName, label_of, quoted
from tautochrone.model.near_names import near_names_hint
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.definitions import is_view
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.project.unit_test_files import InputChange, InputName, Rows, UnitTest
from tautochrone.runtime.unit_tests.differences import Difference, RowValues, difference, surplus
from tautochrone.runtime.unit_tests.evaluation import Evaluation, StandIns, schema_of, unsupported_error
from tautochrone.runtime.unit_tests.following import FollowedView
from tautochrone.runtime.unit_tests.typed_rows import columns_of, microseconds, typed_rows
from tautochrone.spark.analysis.session_context import (
    dataframe_of_plan,
    session_settings,
    tuned_session,
    use_session,
)
from tautochrone.spark.execute.materialize import local_relation, local_rows_at
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.jvm_liveness import require_live_jvm
from tautochrone.spark.sources.registry import sources_of
from tautochrone.traces import defect_error, trace_of

__all__ = ["Check", "CheckedRows", "Outcome", "TestResult", "UnitTests"]

_SOURCE = "source"
"""The name of an input that stands for a stream from outside the lake."""


class Outcome(enum.StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"


class Check(enum.StrEnum):
    """What is compared with what is expected."""

    ROWS = "rows"
    ROWS_AFTER = "rows after the change"
    ADDED = "rows that the change adds"
    REMOVED = "rows that the change removes"
    FOLLOWED = "rows of the view that follows the change"


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """One comparison."""

    check: Check
    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """The end of one test.

    Attributes:
        checks: the comparisons, those without a difference too.
        error: why it could not be compared.
        notes: what else to know, such as why a change was not followed.
        duration_ms: how long it took.
    """

    __test__ = False

    test: UnitTest
    outcome: Outcome
    checks: tuple[CheckedRows, ...] = ()
    error: TautochroneError | None = None
    notes: tuple[Reason, ...] = ()
    duration_ms: int = 0


class UnitTests:
    """Runs tests one after the other.

    Attributes:
        session: in which they run.
        stand_ins: tables of that session.

    Args:
        graph: of the project, with its analysis session.
        base: the session that it was analysed with.
        catalog: the lake's.
    """

    def __init__(self, graph: Graph, base: SparkSession, catalog: str) -> None:
        self._graph, self._catalog = graph, catalog
        self.stand_ins = StandIns(graph, base, catalog)
        assert graph.analysis_session is not None
        self.session = graph.analysis_session

    def run(self, tests: Sequence[UnitTest]) -> Iterator[TestResult]:
        """Run tests; each result follows its test."""
        for test in tests:
            start = time.monotonic()
            checks: list[CheckedRows] = []
            notes: list[Reason] = []
            error: TautochroneError | None = None
            try:
                if test.refused is not None:
                    raise test.refused
                _Run(self._graph, self._catalog, self.session, self.stand_ins, test, checks, notes).check()
            except Exception as raised:
                error = _error_of(raised, test)
            failed = any(checked.difference for checked in checks)
            outcome = Outcome.ERROR if error else Outcome.FAILED if failed else Outcome.PASSED
            yield TestResult(
                test=test,
                outcome=outcome,
                checks=tuple(checks),
                error=error,
                notes=tuple(notes),
                duration_ms=round((time.monotonic() - start) * 1000),
            )


def _error_of(raised: Exception, test: UnitTest) -> TautochroneError:
    """What ended one test; the others run.

    Raises:
        SparkDiedError: Spark is gone, and so is the session of all tests.
    """
    require_live_jvm()
    if isinstance(raised, TautochroneError):
        return raised
    location = str(test.location)
    if isinstance(raised, PySparkException | Py4JJavaError):
        problem = problem_of(raised)
        return DefinitionError(
            problem.error_class, problem.message, sqlstate=problem.sqlstate, location=location
        )
    return defect_error(raised, trace_of(raised, f"unit test {test.name}"), location)


@dataclass(slots=True)
class _Run:
    """One test while it runs; `checks` and `notes` are filled."""

    graph: Graph
    catalog: str
    session: SparkSession
    stand_ins: StandIns
    test: UnitTest
    checks: list[CheckedRows]
    notes: list[Reason]
    model: TableName = field(init=False)

    def check(self) -> None:
        """Compare everything that the test expects."""
        # Spark is set up for much data, and a test has little.
        with tuned_session(self.session, delta_rows=0, input_rows=0):
            self._check()

    def _check(self) -> None:
        self.model = self._model()
        now = time.time_ns() // 1000
        if self.test.now is not None:
            with self._zone():
                now = microseconds(self.session, self.test.now)
        before = Evaluation(self.graph, self.catalog, self.stand_ins, *self._rows_before(), now)
        after = self._changed(before) if self.test.changes else None
        # What is written wrong is said before anything is computed.
        expected = self._expected()
        sides = [each.result(self.model) for each in (before, after) if each is not None]
        compared = self._compared(expected, sides)
        followed = None
        is_wrong = any(each.difference for each in compared)
        if self._is_materialized_view and (after is not None or is_wrong):
            followed = FollowedView(self.model, self._flow, before, after or before)
            if followed.breaks_ties:
                # What a refresh would give.
                sides = [followed.rows(side) for side in (CutSide.BEFORE, CutSide.AFTER)][: len(sides)]
                compared = self._compared(expected, sides)
        self.checks += compared
        if followed is not None and after is not None:
            self._check_followed(followed, sides[-1])

    def _zone(self) -> AbstractContextManager[None]:
        """The settings of the model, whose time zone texts of timestamps have."""
        return session_settings(self.session, self._flow.flow.conf)

    @property
    def _is_materialized_view(self) -> bool:
        return self.graph.definitions.datasets[self.model].kind is DatasetKind.MATERIALIZED_VIEW

    @property
    def _flow(self) -> ResolvedFlow:
        return self.graph.flows_of(self.model)[0]

    # -- names -------------------------------------------------------------------------------------------

    def _model(self) -> TableName:
        definitions, written = self.graph.definitions, self.test.model
        name = definitions.dataset_named(written.parts, definitions.scope)
        if name is None or not self.graph.flows_of(name):
            raise DefinitionError(
                "UNIT_TEST_MODEL_NOT_FOUND",
                f"No dataset is called {written}",
                sqlstate="42P01",
                location=str(written.location),
                hint=near_names_hint(
                    str(written), definitions.datasets, "the datasets are", spellings=definitions.spellings
                ),
            )
        return name

    def _inputs(self) -> list[TableName]:
        """All tables and views that the model is computed from, the nearest first."""
        inputs: dict[TableName, None] = {}
        queue = [self.model]
        while queue:
            name = queue.pop(0)
            views = frozenset().union(*(flow.views for flow in self.graph.flows_of(name)))
            below = [each for each in sorted(self.graph.inputs(name).tables | views) if each not in inputs]
            below = [each for each in below if each != self.model]
            inputs |= dict.fromkeys(below)
            queue += below
        return list(inputs)

    def _input(self, written: InputName) -> TableName | None:
        """The table or view that an input means; None: the stream from outside."""
        inputs = self._inputs()
        text, last = str(written).lower(), written.parts[-1]
        names = [name for name in inputs if text in (str(name).lower(), name.without_catalog.lower())]
        # The schema of a source of dbt need not be a database of the pipeline.
        if not names and (len(written.parts) == 1 or written.is_source):
            names = [name for name in inputs if last.lower() in (name.table.lower(), label_of(name))]
            # A temporary view is in no database, so a name without one is its name first.
            datasets = self.graph.definitions.datasets
            views = [name for name in names if name in datasets and is_view(datasets[name])]
            names = views if len(views) == 1 else names
        if not names and text == _SOURCE and self._reads_outside():
            return None
        if len(names) == 1:
            return names[0]
        known = sorted({name.table for name in inputs} | ({_SOURCE} if self._reads_outside() else set()))
        hint = "it reads no table and no view"
        if names:
            hint = f"there are several: write {' or '.join(name.without_catalog for name in names)}"
        elif known:
            hint = near_names_hint(last, known, "it is computed from")
        raise DefinitionError(
            "UNIT_TEST_INPUT_NOT_FOUND",
            f"{self.model.without_catalog} reads {len(names) or 'no'} inputs called {written}",
            sqlstate="42P01",
            location=str(written.location),
            hint=hint,
        )

    def _reads_outside(self) -> bool:
        return self._outside_flow() is not None

    def _outside_flow(self) -> ResolvedFlow | None:
        """The only flow below the model, or of it, that reads a stream from outside; None: there is none, or
        there are several."""
        tables = [self.model, *self._inputs()]
        flows = [flow for table in tables for flow in self.graph.flows_of(table)]
        outside = [flow for flow in flows if flow.inputs.external_streams]
        return outside[0] if len(outside) == 1 else None

    def _schema_of(self, name: TableName | None) -> StructType:
        if name is not None:
            return schema_of(self.graph, name)
        flow = self._outside_flow()
        assert flow is not None
        frame = flow.flow.evaluate(self.session)
        sources = sources_of(frame)
        if len(sources) != 1:
            raise unsupported_error(flow.flow.target, self.graph, "its stream reads several sources")
        schema: StructType = StructType.fromJson(json.loads(str(sources[0].leaf.schema().json())))
        return schema

    # -- rows --------------------------------------------------------------------------------------------

    def _given(self) -> tuple[Mapping[TableName, DataFrame], DataFrame | None]:
        given: dict[TableName | None, DataFrame] = {}
        for entry in self.test.given:
            name = self._input(entry.input)
            if name in given:
                raise DefinitionError(
                    "UNIT_TEST_INPUT_TWICE",
                    f"The unit test {self.test.name} gives rows of {entry.input} twice",
                    sqlstate="42701",
                    location=str(entry.input.location),
                    hint="Give all rows of an input in one entry.",
                )
            given[name] = self._typed(entry.rows, self._schema_of(name), str(entry.input))
        source = given.pop(None, None)
        return {name: rows for name, rows in given.items() if name is not None}, source

    def _rows_before(self) -> tuple[Mapping[TableName, DataFrame], DataFrame | None]:
        """The given rows. An input that only a change names is given without rows: before and after the
        change the same inputs are given.

        Raises:
            DefinitionError: `UNIT_TEST_CHANGE_OF_COMPUTED`.
        """
        given, source = self._given()
        rows = dict(given)
        changed = {self._input(change.input): change.input for change in self.test.changes}
        for name, written in changed.items():
            empty = self._typed(Rows(written.location), self._schema_of(name), "")
            if name is None:
                source = empty if source is None else source
            else:
                rows.setdefault(name, empty)
        inputs = Evaluation(self.graph, self.catalog, self.stand_ins, rows, source, now=0)
        for name, written in changed.items():
            if name is not None and name not in given and inputs.is_over_given(name):
                raise DefinitionError(
                    "UNIT_TEST_CHANGE_OF_COMPUTED",
                    f"The test changes {written}, whose rows are computed from other inputs of the test",
                    sqlstate="42601",
                    location=str(written.location),
                    hint=f"Give the rows of {written} too, or change the inputs that it is computed from.",
                )
        return rows, source

    def _typed(
        self, rows: Rows, schema: StructType, owner: str, columns: Sequence[str] | None = None
    ) -> DataFrame:
        flow = self._flow.flow
        with use_session(self.session, flow.scope.catalog, flow.scope.namespace, flow.conf):
            return typed_rows(self.session, rows, schema, owner, columns)

    def _expected(self) -> dict[Check, DataFrame]:
        sides = {
            Check.ROWS: self.test.expect,
            Check.ROWS_AFTER: self.test.expect_after,
            Check.ADDED: self.test.expect_added,
            Check.REMOVED: self.test.expect_removed,
        }
        expected, schema = {}, self._schema_of(self.model)
        for check, rows in sides.items():
            if rows is not None:
                columns = columns_of(rows, schema, self.session) or None
                expected[check] = self._typed(rows, schema, self.test.model.parts[-1], columns)
        return expected

    def _compared(self, expected: Mapping[Check, DataFrame], sides: Sequence[DataFrame]) -> list[CheckedRows]:
        """Compare what is expected with the rows before the change, and after it where there is one."""
        first, last = sides[0], sides[-1]
        actual = {Check.ROWS: lambda: first, Check.ROWS_AFTER: lambda: last}
        actual |= {
            Check.ADDED: lambda: self._only(last, first),
            Check.REMOVED: lambda: self._only(first, last),
        }
        return [self._comparison(check, rows, actual[check]()) for check, rows in expected.items()]

    def _comparison(self, check: Check, expected: DataFrame, actual: DataFrame) -> CheckedRows:
        """Compare the columns that the expected rows name."""
        rows = actual.select(
            *(actual[quoted(f.name)].cast(f.dataType).alias(f.name) for f in expected.schema.fields)
        )
        return CheckedRows(check, difference(self._values(expected), self._values(rows)))

    def _values(self, rows: DataFrame) -> RowValues:
        with self._zone():
            return RowValues.of(rows.toArrow())

    # -- changes -----------------------------------------------------------------------------------------

    def _only(self, rows: DataFrame, without: DataFrame) -> DataFrame:
        """The rows of one side without those of the other, copy by copy."""
        left, right = self._values(rows), self._values(without)
        unexpected = difference(right, left).rows
        indexes, free = [], [row.actual for row in unexpected if row.actual is not None]
        for number, row in enumerate(left.rows):
            match = next((n for n, other in enumerate(free) if other is row), None)
            if match is not None:
                indexes.append(number)
                del free[match]
        return local_rows_at(rows, indexes)

    def _changed(self, before: Evaluation) -> Evaluation:
        """The rows of the inputs after the change."""
        given, source = dict(before.given), before.source
        for change in self.test.changes:
            name = self._input(change.input)
            schema = self._schema_of(name)
            if name is not None:
                given[name] = self._with_change(given[name], change, schema)
            elif source is not None:
                source = self._with_change(source, change, schema)
        return Evaluation(self.graph, self.catalog, self.stand_ins, given, source, before.now)

    def _with_change(self, rows: DataFrame, change: InputChange, schema: StructType) -> DataFrame:
        owner = str(change.input)
        if change.removed is not None:
            columns = columns_of(change.removed, schema, self.session)
            removed = self._values(self._typed(change.removed, schema, owner, columns))
            rows = local_rows_at(rows, self._remaining(rows, removed, change.removed, owner))
        if change.added is not None:
            added = self._typed(change.added, schema, owner)
            rows = dataframe_of_plan(self.session, local_relation(rows, added)[0])
        return rows

    def _remaining(self, rows: DataFrame, removed: RowValues, written: Rows, owner: str) -> list[int]:
        """The numbers of the rows that stay. Each row to remove takes the first one that has its values.

        Raises:
            DefinitionError: `UNIT_TEST_ROW_NOT_GIVEN`.
        """
        values = self._values(rows.select(*map(quoted, removed.columns)))
        left = list(range(len(values.rows)))
        for number in range(len(removed.rows)):
            match = next((n for n in left if not surplus(removed.only(number), values.only(n))), None)
            if match is None:
                where = written.rows[number].location if written.rows else written.location
                raise DefinitionError(
                    "UNIT_TEST_ROW_NOT_GIVEN",
                    f"The change removes a row of {owner} that is not given",
                    sqlstate="42602",
                    location=str(where),
                    hint="A removed row names values of a row of given; other columns do not matter.",
                )
            left.remove(match)
        return left

    def _check_followed(self, followed: FollowedView, rows_after: DataFrame) -> None:
        """Whether the view's rules give the rows that its query gives after the change."""
        if followed.obstacles:
            self.notes.append(Reason.of(ReasonCode.UNSUPPORTED_QUERY, detail=followed.obstacles[0]))
            return
        change = followed.follow()
        values = self._values
        expected = values(rows_after).plus(values(change.removed))
        actual = values(change.before).plus(values(change.added))
        self.checks.append(CheckedRows(Check.FOLLOWED, difference(expected, actual)))
