"""Rows are made ready for a table and staged: they get its columns, and its expectations are checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StringType, StructType

from tautochrone.errors import DefinitionError, ExpectationError
from tautochrone.model.auto_cdc import EVENTS_SET_ASIDE
from tautochrone.model.definitions import Expectation, ExpectationCount, ViolationAction
from tautochrone.model.lake import Fork, LakeTable, Staged
from tautochrone.model.names import TableName, quoted
from tautochrone.model.source import MALFORMED_DROPPED, MALFORMED_WRITTEN
from tautochrone.spark.execute.expectations import ObservedRows, sample_violations

__all__ = ["align", "aligned_columns", "expectation_counts", "require_expectations_met", "stage_expected"]

_COUNTED = {
    MALFORMED_WRITTEN: ViolationAction.WARN,
    MALFORMED_DROPPED: ViolationAction.DROP,
    EVENTS_SET_ASIDE: ViolationAction.DROP,
}
"""What is counted besides expectations, and what becomes of it."""


def align(rows: DataFrame, schema: StructType, flow: str, dropped: Collection[str] = ()) -> DataFrame:
    """`rows` with the columns of the target in its order; missing nullable ones become NULL.

    Args:
        dropped: columns that the target need not have.

    Raises:
        DefinitionError: `FLOW_SCHEMA_MISMATCH` for a column that the target does not have.
    """
    return rows.select(*aligned_columns(rows, schema, flow, dropped))


def aligned_columns(
    rows: DataFrame, schema: StructType, flow: str, dropped: Collection[str] = ()
) -> list[Column]:
    """The columns that `align` selects.

    Raises:
        DefinitionError: `FLOW_SCHEMA_MISMATCH`.
    """
    columns = {column.name.lower(): column for column in schema.fields}
    expected = columns.keys() | {name.lower() for name in dropped}
    extra = [name for name in rows.columns if name.lower() not in expected]
    if extra:
        raise DefinitionError(
            "FLOW_SCHEMA_MISMATCH",
            f"Flow {flow} yields columns that its table does not have: {', '.join(extra)}",
            hint="add them to the table's schema, or drop them in the flow's query",
        )
    present = {column.name.lower(): column.dataType for column in rows.schema.fields}
    return [
        _without_collation(rows[quoted(column.name)], column.name, present[column.name.lower()])
        if column.name.lower() in present
        else sf.lit(None).cast(column.dataType).alias(column.name)
        for column in schema.fields
    ]


def _without_collation(value: Column, name: str, data_type: DataType) -> Column:
    """Lake tables have no collations: what comes back is plain text."""
    collated = isinstance(data_type, StringType) and "collate" in data_type.simpleString()
    return value.cast(StringType()).alias(name) if collated else value


def stage_expected(
    table: LakeTable,
    fork: Fork,
    flagged: DataFrame,
    expectations: Sequence[Expectation],
    *,
    is_observed: bool = False,
) -> tuple[Staged, Mapping[str, int]]:
    """Stage rows of `with_flags` without those that are dropped; answers the violations of each expectation.

    Args:
        is_observed: something else is counted while the rows are computed; see `LakeTable.stage`.

    Raises:
        ExpectationError: a row violates an expectation that fails; nothing is left staged.
    """
    observed = ObservedRows(flagged, expectations)
    staged = table.stage(fork, observed.rows, is_observed=is_observed or bool(expectations))
    try:
        violations = observed.violations(was_read=staged.rows > 0)
        require_expectations_met(table.name, flagged, expectations, violations)
    except Exception:
        table.discard(staged)
        raise
    return staged, violations


def require_expectations_met(
    dataset: TableName,
    flagged: DataFrame,
    expectations: Sequence[Expectation],
    violations: Mapping[str, int],
) -> None:
    """Refuse rows that violate an expectation that fails.

    Args:
        dataset: their target.
        flagged: the rows, as `with_flags` gives them, for the sample in the error.
        violations: how many rows violate each expectation, by its name.

    Raises:
        ExpectationError: there is such a row.
    """
    for expectation in expectations:
        count = violations.get(expectation.name, 0)
        if expectation.action is ViolationAction.FAIL and count > 0:
            raise ExpectationError(
                "EXPECTATION_FAILED",
                f"{count} row{'s' if count > 1 else ''} of {dataset} violate{'' if count > 1 else 's'} the "
                f"expectation {expectation.name!r}, {expectation.condition}: "
                f"{sample_violations(flagged, expectations, expectation)}",
                hint="Nothing is written. Correct the input or the condition, or let the expectation drop "
                "such rows.",
                parameters={"dataset": str(dataset), "expectation": expectation.name, "rows": str(count)},
            )


def expectation_counts(
    expectations: Sequence[Expectation], before: Mapping[str, int], after: Mapping[str, int]
) -> tuple[ExpectationCount, ...]:
    """The violations of each expectation, and how they changed; so also of records that did not parse and of
    events that were set aside, where there were some."""
    actions = {expectation.name: expectation.action for expectation in expectations}
    actions |= {name: action for name, action in _COUNTED.items() if name in after}
    return tuple(
        ExpectationCount(
            name=name,
            action=action,
            violations=after.get(name, 0),
            change=after.get(name, 0) - before.get(name, 0),
        )
        for name, action in actions.items()
    )
