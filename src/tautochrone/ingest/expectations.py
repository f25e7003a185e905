"""Writing rows under expectations: count the violations while the rows are written, and refuse what fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from tautochrone.errors import ExpectationError
from tautochrone.model.definitions import Expectation, ExpectationCount, ViolationAction
from tautochrone.model.lake import Fork, LakeTable, Staged
from tautochrone.model.names import TableName
from tautochrone.spark.execute.expectations import ObservedRows, sample_violations

__all__ = ["counts", "require_met", "stage_expected"]


def stage_expected(
    table: LakeTable,
    fork: Fork,
    flagged: DataFrame,
    expectations: Sequence[Expectation],
) -> tuple[Staged, Mapping[str, int]]:
    """Stage rows of `with_flags` without those that are dropped; answers the violations of each expectation.

    Raises:
        ExpectationError: a row violates an expectation that fails; nothing is left staged.
    """
    observed = ObservedRows(flagged, expectations)
    staged = table.stage(fork, observed.rows)
    try:
        violations = observed.violations(was_read=staged.rows > 0)
        require_met(table.name, flagged, expectations, violations)
    except Exception:
        table.discard(staged)
        raise
    return staged, violations


def require_met(
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


def counts(
    expectations: Sequence[Expectation], before: Mapping[str, int], after: Mapping[str, int]
) -> tuple[ExpectationCount, ...]:
    """The violations of each expectation, and how they changed."""
    return tuple(
        ExpectationCount(
            name=expectation.name,
            action=expectation.action,
            violations=after.get(expectation.name, 0),
            change=after.get(expectation.name, 0) - before.get(expectation.name, 0),
        )
        for expectation in expectations
    )
