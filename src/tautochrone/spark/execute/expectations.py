"""Expectations over DataFrames: rows with a flag for each expectation, counted, without what is dropped.

A flag is an ordinary column of the query's plan, so it follows changes like any other column. Violations are
counted by a job of their own, or while Spark reads the rows for something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as sf

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Expectation, ViolationAction
from tautochrone.model.names import quoted
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import Catalyst, items, kind
from tautochrone.spark.jvm.errors import problem_of

__all__ = [
    "ObservedRows",
    "flag_names",
    "observed_counts",
    "sample_violations",
    "violations",
    "with_flags",
    "without_dropped",
    "without_flags",
]


_WAITS = 100


def observed_counts(observation: Observation, width: int, *, was_read: bool) -> Sequence[int] | None:
    """So many counts of an observation, which Spark says a moment after its rows were read; None where it
    does not.

    Without `was_read` it may be that Spark knew of no rows and read nothing.
    """
    for _ in range(_WAITS if was_read else 1):
        # It waits for 0.1 s itself. `getOrEmpty` fails on a row that is not there yet.
        row = observation._jo.getRowOrEmpty()  # type: ignore[union-attr]  # noqa: SLF001
        if row.isDefined():
            counts = row.get()
            return (
                [int(counts.getLong(number)) for number in range(width)] if counts.length() == width else None
            )
    return None


_SAMPLE_ROWS = 3
_SAMPLE_CHARACTERS = 300


def without_dropped(
    rows: DataFrame, expectations: Sequence[Expectation], unchecked: Column | None = None
) -> DataFrame:
    """`rows` that violate no expectation which drops them.

    Args:
        unchecked: rows that meet this condition violate nothing.

    Raises:
        DefinitionError: Spark's class, with the name of the expectation whose condition does not resolve.
    """
    for expectation in expectations:
        if expectation.action is ViolationAction.DROP:
            try:
                # A row meets a condition only if it is true, as in WHERE.
                is_met = sf.expr(expectation.condition)
                rows = rows.where(is_met if unchecked is None else unchecked | is_met)
            except PySparkException as error:
                raise _unresolved_condition_error(expectation, error) from error
    return rows


def with_flags(
    rows: DataFrame, expectations: Sequence[Expectation], unchecked: Column | None = None
) -> DataFrame:
    """`rows` with a column for each expectation: true if the row violates it, else false.

    Args:
        unchecked: rows that meet this condition violate nothing.

    Raises:
        DefinitionError: as of `without_dropped`.
    """
    for name, expectation in zip(flag_names(expectations), expectations, strict=True):
        is_met = sf.coalesce(sf.expr(expectation.condition).cast("boolean"), sf.lit(False))
        if unchecked is not None:
            is_met = unchecked | is_met
        try:
            rows = rows.withColumn(name, ~is_met)
        except PySparkException as error:
            flagged = None
            if unchecked is None:
                flagged = _with_flag_over_hidden_columns(rows, expectation.condition, name)
            if flagged is None:
                raise _unresolved_condition_error(expectation, error) from error
            rows = flagged
    return rows


def _with_flag_over_hidden_columns(rows: DataFrame, condition: str, name: str) -> DataFrame | None:
    """`rows` with the flag of a condition over columns that the query renamed or dropped last.

    WHERE sees such columns: Spark carries them through the query's last projection. None if this condition
    does not resolve there either, and for streams: conditions are asked of their batches, which lack them.
    """
    if rows.isStreaming:
        return None
    try:
        shown = analyzed_plan(rows.where(condition))
    except PySparkException:
        return None
    if kind(shown) != "Project" or kind(shown.child()) != "Filter":
        return None
    catalyst = Catalyst(rows.sparkSession)
    met = catalyst.expression("Coalesce")(catalyst.seq([shown.child().condition(), catalyst.literal(False)]))
    _, expr_id = catalyst.new_expr_id()
    flag = catalyst.alias(catalyst.expression("Not")(met), name, expr_id)
    columns = catalyst.seq([*items(shown.projectList()), flag])
    plan = catalyst.logical("Project")(columns, shown.child().child())
    return dataframe_of_plan(rows.sparkSession, plan)


def flag_names(expectations: Sequence[Expectation]) -> list[str]:
    """The columns that `with_flags` adds."""
    return [f"__taut_violates_{number}" for number in range(len(expectations))]


def without_flags(rows: DataFrame, expectations: Sequence[Expectation]) -> DataFrame:
    """Rows of `with_flags` as they are written: without the flags, and without rows that are dropped."""
    flags = flag_names(expectations)
    for name, expectation in zip(flags, expectations, strict=True):
        if expectation.action is ViolationAction.DROP:
            rows = rows.where(~sf.col(name))
    return rows.drop(*flags)


def violations(
    flagged: DataFrame, expectations: Sequence[Expectation], weight: Column | None = None
) -> dict[str, int]:
    """How many rows of `with_flags` violate each expectation, by its name; one Spark job.

    `weight` counts a row as more than one, or as a negative number for a row that went away.
    """
    if not expectations:
        return {}
    rows = sf.lit(1) if weight is None else weight
    counts = [
        sf.coalesce(sf.sum(sf.when(sf.col(name), rows)), sf.lit(0)).cast("bigint")
        for name in flag_names(expectations)
    ]
    (row,) = flagged.agg(*counts).collect()
    return {expectation.name: int(row[number]) for number, expectation in enumerate(expectations)}


class ObservedRows:
    """Rows of `with_flags` whose violations are counted while something reads `rows`, once.

    A stage of shuffles that Spark repeats after it lost an executor can be counted twice.
    """

    def __init__(self, flagged: DataFrame, expectations: Sequence[Expectation]) -> None:
        self._flagged = flagged
        self._expectations = expectations
        self._observation = Observation()
        if expectations:
            flagged = flagged.observe(
                self._observation,
                *(sf.count_if(sf.col(name)).alias(name) for name in flag_names(expectations)),
            )
        self.rows = without_flags(flagged, expectations)

    def violations(self, *, was_read: bool) -> Mapping[str, int]:
        """By expectation, after something read `rows`.

        Without `was_read` it may be that Spark knew of no rows and read nothing.
        """
        if not self._expectations:
            return {}
        observed = observed_counts(self._observation, len(self._expectations), was_read=was_read)
        if observed is None:
            return violations(self._flagged, self._expectations)
        return {e.name: count for e, count in zip(self._expectations, observed, strict=True)}


def sample_violations(flagged: DataFrame, expectations: Sequence[Expectation], violated: Expectation) -> str:
    """Some rows of `with_flags` that violate an expectation, as text."""
    flags = flag_names(expectations)
    name = flags[expectations.index(violated)]
    rows = flagged.where(sf.col(name)).drop(*flags).limit(_SAMPLE_ROWS)
    as_json = rows.select(sf.to_json(sf.struct(*map(quoted, rows.columns)))).collect()
    return ", ".join(str(row[0])[:_SAMPLE_CHARACTERS] for row in as_json)


def _unresolved_condition_error(expectation: Expectation, error: PySparkException) -> DefinitionError:
    problem = problem_of(error)
    return DefinitionError(
        problem.error_class,
        f"The expectation {expectation.name!r}, {expectation.condition}: {problem.message}",
        sqlstate=problem.sqlstate,
        hint="A condition is SQL over the columns of the dataset's query, without the names of tables.",
        parameters=problem.parameters,
    )
