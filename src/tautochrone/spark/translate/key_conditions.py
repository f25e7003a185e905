"""Sets of keys as conditions that reach the statistics of files: each value while they are few, else the
ranges in which they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import ColumnId, Materialized
from tautochrone.model import limits
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import kind
from tautochrone.spark.translate.literals import UNORDERED_TYPE, has_literals, key_ranges, literals

if TYPE_CHECKING:
    from tautochrone.spark.translate.to_catalyst import Lowering

__all__ = ["KeyConditions"]


class KeyConditions:
    """Conditions of one refresh; values of a key are fetched once."""

    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering
        # With the keys themselves, whose number Python would else give to others.
        self._values: dict[tuple[int, ColumnId], tuple[Materialized, frozenset[Any] | None]] = {}

    def condition(
        self, column: ColumnId, keys: Materialized, source: ColumnId, *, null_safe: bool, fetch: bool = False
    ) -> tuple[JavaObject | None, bool]:
        """What is true of `column` where its value occurs among those of `source`, and whether it is true
        of no other rows. None: there is no such condition.

        Args:
            fetch: ask by a Spark job for keys that are not on the driver.
        """
        catalyst = self._lowering.catalyst
        attribute = self._lowering.columns.attribute(column)
        type_name = self._type_of(column)
        values = self.values(column, keys, source, fetch=fetch)
        if values is None:
            return None, False
        known = [value for value in values if value is not None]
        exact = len(values) <= limits.MAX_IN_LIST_VALUES
        if not exact and type_name.startswith(UNORDERED_TYPE):
            return None, False
        among = self._among if exact else self._within
        parts = among(attribute, known, type_name)
        if null_safe and None in values:
            parts.append(catalyst.expression("IsNull")(attribute))
        whole: JavaObject | None = None
        for part in parts:
            whole = part if whole is None else catalyst.expression("Or")(whole, part)
        return (catalyst.literal(False) if whole is None else whole), exact

    def values(
        self, column: ColumnId, keys: Materialized, source: ColumnId, *, fetch: bool = False
    ) -> frozenset[Any] | None:
        """Distinct values of `source`, as `literals` takes them; None where they cannot be written out, or
        are not here. Of few rows on the driver without a Spark job."""
        type_name = self._type_of(column)
        held = kind(keys.handle) == "LocalRelation"
        if not has_literals(type_name) or not (held or (fetch and keys.rows <= limits.MAX_COLLECTED_KEYS)):
            return None
        at = id(keys), source
        if at not in self._values:
            try:
                values = self._values_of(keys, source, type_name)
            except (OverflowError, ValueError):
                # A date that Python has not.
                values = None
            self._values[at] = keys, values
        return self._values[at][1]

    # -- inside -----------------------------------------------------------------------------------

    def _type_of(self, column: ColumnId) -> str:
        return str(self._lowering.columns.attribute(column).dataType().catalogString())

    def _among(self, attribute: JavaObject, values: Sequence[Any], type_name: str) -> list[JavaObject]:
        """`column IN (…)`; nothing for no value."""
        make = self._lowering.catalyst.expression
        return [make("In")(attribute, self._parsed(values, type_name))] if values else []

    def _within(self, attribute: JavaObject, values: Sequence[Any], type_name: str) -> list[JavaObject]:
        """`column BETWEEN … AND …` for each range."""
        make = self._lowering.catalyst.expression
        found: list[JavaObject] = []
        for bounds in key_ranges(sorted(values)):
            low, high = (self._parsed([bound], type_name).apply(0) for bound in bounds)
            above, below = (
                make("GreaterThanOrEqual")(attribute, low),
                make("LessThanOrEqual")(attribute, high),
            )
            found.append(make("And")(above, below))
        return found

    def _parsed(self, values: Sequence[Any], type_name: str) -> JavaObject:
        """A Scala sequence of literals."""
        session_state = self._lowering.catalyst.session._jsparkSession.sessionState()  # noqa: SLF001
        return session_state.sqlParser().parseExpression(f"x IN ({literals(values, type_name)})").list()

    def _values_of(self, keys: Materialized, source: ColumnId, type_name: str) -> frozenset[Any]:
        catalyst = self._lowering.catalyst
        value = keys.handle.output().apply(keys.columns.index(source))
        if type_name.startswith(UNORDERED_TYPE):
            value = catalyst.cast(value, catalyst.java_object("types.StringType$"), catalyst.some("UTC"))
        frame = dataframe_of_plan(catalyst.session, keys.handle)
        frame = frame.select(self._lowering.pyspark_column(value).alias("value"))
        if kind(keys.handle) == "LocalRelation" and keys.rows <= limits.MAX_ROWS_WITHOUT_ARROW:
            return frozenset(row[0] for row in frame.collect())
        return frozenset(frame.toArrow().column(0).unique().to_pylist())
