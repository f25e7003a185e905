"""Sets of keys as conditions that reach the statistics of files: each value while they are few, else the
ranges in which they lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaObject

from tautochrone.algebra.plan import ColumnId, Kept
from tautochrone.spark.catalyst import kind
from tautochrone.spark.evaluate import dataframe_of_plan
from tautochrone.spark.literals import LITERALS, literals, suits

if TYPE_CHECKING:
    from tautochrone.spark.lowering import Lowering

__all__ = ["KeyConditions"]

_ASKED_FOR = 500_000
"""Keys that are not held on the driver are fetched when there are at most so many."""

_RANGES = 8
_WORTH_A_SPLIT = 100
"""A gap between keys that is at least this part of all that they span parts two ranges."""

_NO_ORDER = "timestamp"
"""Their values are texts here."""


class KeyConditions:
    """Conditions of one refresh; values of a key are fetched once."""

    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering
        # With the keys themselves, whose number Python would else give to others.
        self._values: dict[tuple[int, ColumnId], tuple[Kept, set[Any]]] = {}

    def condition(
        self, column: ColumnId, keys: Kept, source: ColumnId, *, null_safe: bool, fetch: bool = False
    ) -> tuple[JavaObject | None, bool]:
        """What is true of `column` where its value occurs among those of `source`, and whether it is true
        of no other rows. None: there is no such condition.

        Args:
            fetch: ask by a Spark job for keys that are not on the driver.
        """
        catalyst = self._lowering.catalyst
        attribute = self._lowering.columns.attribute(column)
        type_name = str(attribute.dataType().catalogString())
        held = kind(keys.handle) == "LocalRelation"
        if not suits(type_name) or not (held or (fetch and keys.rows <= _ASKED_FOR)):
            return None, False
        values = self._values_of(keys, source, type_name)
        known = [value for value in values if value is not None]
        exact = len(values) <= LITERALS
        if not exact and type_name.startswith(_NO_ORDER):
            return None, False
        among = self._among if exact else self._within
        parts = among(attribute, known, type_name)
        if null_safe and None in values:
            parts.append(catalyst.expression("IsNull")(attribute))
        whole: JavaObject | None = None
        for part in parts:
            whole = part if whole is None else catalyst.expression("Or")(whole, part)
        return (catalyst.literal(False) if whole is None else whole), exact

    # -- inside -----------------------------------------------------------------------------------

    def _among(self, attribute: JavaObject, values: Sequence[Any], type_name: str) -> list[JavaObject]:
        """`column IN (…)`; nothing for no value."""
        make = self._lowering.catalyst.expression
        return [make("In")(attribute, self._parsed(values, type_name))] if values else []

    def _within(self, attribute: JavaObject, values: Sequence[Any], type_name: str) -> list[JavaObject]:
        """`column BETWEEN … AND …` for each range."""
        make = self._lowering.catalyst.expression
        found: list[JavaObject] = []
        for bounds in _ranges(sorted(values)):
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

    def _values_of(self, keys: Kept, source: ColumnId, type_name: str) -> set[Any]:
        """Distinct values of one column, as `literals` takes them; of local rows without a Spark job."""
        at = id(keys), source
        if at not in self._values:
            catalyst = self._lowering.catalyst
            value = keys.handle.output().apply(keys.columns.index(source))
            if type_name.startswith(_NO_ORDER):
                value = catalyst.cast(value, catalyst.find("types.StringType$"), catalyst.some("UTC"))
            frame = dataframe_of_plan(catalyst.session, keys.handle)
            frame = frame.select(self._lowering.of(value).alias("value"))
            if kind(keys.handle) != "LocalRelation":
                frame = frame.distinct()
            self._values[at] = keys, {row[0] for row in frame.collect()}
        return self._values[at][1]


def _ranges(values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The fewest ranges that leave out the widest gaps between sorted values. Texts have no distance."""
    if isinstance(values[0], str):
        return [(values[0], values[-1])]
    span = values[-1] - values[0]
    gaps = [(high - low, place) for place, (low, high) in enumerate(pairwise(values), 1)]
    wide = sorted((gap for gap in gaps if gap[0] * _WORTH_A_SPLIT >= span), reverse=True)[: _RANGES - 1]
    starts = [0, *sorted(place for _, place in wide)]
    return [(values[a], values[b - 1]) for a, b in zip(starts, [*starts[1:], len(values)], strict=True)]
