"""Python values and sets of keys as conditions that Spark can compare with file statistics.

Few keys are compared one by one, many keys as ranges.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import ColumnId, Materialized
from tautochrone.model import limits
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import Catalyst, kind
from tautochrone.spark.translate.columns import Columns

__all__ = [
    "UNORDERED_TYPE",
    "KeyConditions",
    "has_literals",
    "in_list",
    "in_ranges",
    "key_ranges",
    "literals",
]


UNORDERED_TYPE = "timestamp"
"""The prefix of types whose values are texts here. Texts sort in another order than timestamps."""

_MIN_GAP_FRACTION = 100
"""A gap between two values separates ranges if it is at least one hundredth of the span of all values."""

_SUFFIXES = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}

_TIMESTAMPS = {"timestamp": "TIMESTAMP_LTZ '{} UTC'", "timestamp_ntz": "TIMESTAMP_NTZ '{}'"}


def has_literals(kind: str) -> bool:
    """Whether a type, given as its catalog string, has exact literals. Floats do not."""
    return kind in (*_SUFFIXES, *_TIMESTAMPS, "string", "date") or kind.startswith("decimal")


def literals(values: Collection[Any], kind: str) -> str:
    """`a, b, c` for `IN (…)`, without NULLs; empty when there is no other value.

    The text has no function calls: a condition with one is unresolved until Spark's analyzer has looked the
    function up, and renewed column ids are not passed on above an unresolved condition.

    Args:
        values: values as PySpark returns them; those of a `timestamp` as text in UTC, because offsets of old
            times have seconds, which Python's offsets have not.
        kind: the type's catalog string.

    >>> literals([1, None, 2], "bigint"), literals(["it's"], "string")
    ('1L, 2L', "'it\\\\'s'")
    """
    return ", ".join(_literal(value, kind) for value in values if value is not None)


def in_list(name: str, values: Collection[Any], kind: str) -> str:
    """`name IN (…)` as SQL, without NULLs."""
    texts = literals(values, kind)
    return f"{name} IN ({texts})" if texts else "false"


def in_ranges(name: str, values: Collection[Any], kind: str) -> str:
    """The ranges that contain all values, as an SQL condition that is also true of other values."""
    not_null = [value for value in values if value is not None]
    if kind.startswith(UNORDERED_TYPE) or not not_null:
        return f"{name} IS NOT NULL"
    bounds = (
        literals([low], kind) + f" AND {literals([high], kind)}" for low, high in key_ranges(sorted(not_null))
    )
    return " OR ".join(f"{name} BETWEEN {pair}" for pair in bounds)


def key_ranges(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Ranges that contain all sorted values and leave out the widest gaps between them. Texts have no
    distance, so they are one range.

    >>> key_ranges([1, 2, 3, 900, 901])
    [(1, 3), (900, 901)]
    """
    if isinstance(values[0], str):
        return [(values[0], values[-1])]
    span = values[-1] - values[0]
    gaps = [(high - low, index) for index, (low, high) in enumerate(pairwise(values), 1)]
    wide = sorted((gap for gap in gaps if gap[0] * _MIN_GAP_FRACTION >= span), reverse=True)
    starts = [0, *sorted(index for _, index in wide[: limits.MAX_KEY_RANGES - 1])]
    return [(values[a], values[b - 1]) for a, b in zip(starts, [*starts[1:], len(values)], strict=True)]


def _literal(value: Any, kind: str) -> str:
    if kind in _TIMESTAMPS:
        return _TIMESTAMPS[kind].format(value)
    match value:
        case str():
            # Spark's parser replaces ${name} by the value of a setting.
            escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("${", "$\\{")
            return f"'{escaped}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
        case decimal.Decimal():
            return f"CAST({value:f}BD AS {kind})"
        case _:
            return f"{value}{_SUFFIXES[kind]}"


class KeyConditions:
    """The conditions of one refresh. Each set of keys is fetched once."""

    def __init__(self, catalyst: Catalyst, columns: Columns) -> None:
        self._catalyst = catalyst
        self._columns = columns
        # The keys are stored with the values: Python may reuse the id of a node that is freed.
        self._values: dict[tuple[int, ColumnId], tuple[Materialized, frozenset[Any] | None]] = {}

    def condition(
        self, column: ColumnId, keys: Materialized, source: ColumnId, *, null_safe: bool, fetch: bool = False
    ) -> tuple[JavaObject | None, bool]:
        """A condition on `column` that is true where its value is one of those of `source`, and whether it is
        true of no other rows. None: there is no such condition.

        Args:
            column: the column of the rows.
            keys: the keys.
            source: the column of the keys.
            null_safe: whether NULL equals NULL.
            fetch: whether a Spark job may collect keys that are not on the driver.
        """
        catalyst = self._catalyst
        attribute = self._columns.attribute(column)
        type_name = self._type_of(column)
        values = self.values(column, keys, source, fetch=fetch)
        if values is None:
            return None, False
        not_null = [value for value in values if value is not None]
        exact = len(values) <= limits.MAX_IN_LIST_VALUES
        if not exact and type_name.startswith(UNORDERED_TYPE):
            return None, False
        conditions = self._in_list if exact else self._in_ranges
        parts = conditions(attribute, not_null, type_name)
        if null_safe and None in values:
            parts.append(catalyst.expression("IsNull")(attribute))
        disjunction: JavaObject | None = None
        for part in parts:
            disjunction = part if disjunction is None else catalyst.expression("Or")(disjunction, part)
        return (catalyst.literal(False) if disjunction is None else disjunction), exact

    def values(
        self, column: ColumnId, keys: Materialized, source: ColumnId, *, fetch: bool = False
    ) -> frozenset[Any] | None:
        """Distinct values of `source`, as `literals` takes them. None: the type has no literals, or the keys
        are not on the driver and are not to be fetched. Few keys on the driver need no Spark job."""
        type_name = self._type_of(column)
        on_driver = kind(keys.handle) == "LocalRelation"
        if not has_literals(type_name) or not (
            on_driver or (fetch and keys.rows <= limits.MAX_COLLECTED_KEYS)
        ):
            return None
        cache_key = id(keys), source
        if cache_key not in self._values:
            try:
                values = self._values_of(keys, source, type_name)
            except (OverflowError, ValueError):
                # Python has no such date.
                values = None
            self._values[cache_key] = keys, values
        return self._values[cache_key][1]

    # -- inside -----------------------------------------------------------------------------------

    def _type_of(self, column: ColumnId) -> str:
        return str(self._columns.attribute(column).dataType().catalogString())

    def _in_list(self, attribute: JavaObject, values: Sequence[Any], type_name: str) -> list[JavaObject]:
        """`column IN (…)`; no condition without values."""
        expression = self._catalyst.expression
        return [expression("In")(attribute, self._parsed(values, type_name))] if values else []

    def _in_ranges(self, attribute: JavaObject, values: Sequence[Any], type_name: str) -> list[JavaObject]:
        """`column BETWEEN … AND …` for each range."""
        expression = self._catalyst.expression
        conditions: list[JavaObject] = []
        for bounds in key_ranges(sorted(values)):
            low, high = (self._parsed([bound], type_name).apply(0) for bound in bounds)
            above, below = (
                expression("GreaterThanOrEqual")(attribute, low),
                expression("LessThanOrEqual")(attribute, high),
            )
            conditions.append(expression("And")(above, below))
        return conditions

    def _parsed(self, values: Sequence[Any], type_name: str) -> JavaObject:
        """A Scala sequence of literals."""
        session_state = self._catalyst.session._jsparkSession.sessionState()  # noqa: SLF001
        return session_state.sqlParser().parseExpression(f"x IN ({literals(values, type_name)})").list()

    def _values_of(self, keys: Materialized, source: ColumnId, type_name: str) -> frozenset[Any]:
        catalyst = self._catalyst
        value = keys.handle.output().apply(keys.columns.index(source))
        if type_name.startswith(UNORDERED_TYPE):
            value = catalyst.cast(
                value, catalyst.spark_sql_class("types.StringType$"), catalyst.option("UTC")
            )
        frame = dataframe_of_plan(catalyst.session, keys.handle)
        frame = frame.select(self._catalyst.pyspark_column(value).alias("value"))
        if kind(keys.handle) == "LocalRelation" and keys.rows <= limits.MAX_ROWS_WITHOUT_ARROW:
            return frozenset(row[0] for row in frame.collect())
        return frozenset(frame.toArrow().column(0).unique().to_pylist())
