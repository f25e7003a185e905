"""Plans over few rows, optimized by Spark once and run again with other rows.

The changes of a view's inputs differ in their rows; the plans over them have one of few shapes. To build such
a plan by messages to the JVM, to analyse, optimize and plan it takes many times as long as to run it. So its
physical plan is kept by its shape: by all that it was built of, except the rows of its leaves and the ids of
columns that the rules of a refresh create.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.algebra.nodes import (
    WEIGHT,
    ColumnId,
    Expression,
    KeySemiJoin,
    Materialized,
    MergeGroups,
    MultiKeySemiJoin,
    Node,
    OrderedFrom,
    ScanAtCut,
    StateScan,
)
from tautochrone.model import limits
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.execute.driver_scan import DRIVER_SCAN
from tautochrone.spark.jvm.catalyst import contains_pattern
from tautochrone.spark.jvm.driver_calls import joined_texts, singleton

__all__ = [
    "RepeatedPlans",
    "Shape",
    "is_repeatable",
    "leaf_of_rows",
    "repeated_plan",
    "rows_of_run",
    "run_again",
    "shape_of",
    "side_of_change",
]

_SOURCE = Path(__file__).with_name("DriverPlans.java")

_LEAVES = (Materialized, StateScan, ScanAtCut, KeySemiJoin, MultiKeySemiJoin, OrderedFrom)
"""Nodes whose rows are gathered before a plan runs. What they read depends on the rows of the change."""

_MAX_PLANS = 64
"""Of one view."""
_MAX_MISSES = 48
"""A view of which so many plans were never met again has none that repeat."""
_MAX_TIMES_GATHERED = 3
"""In a row. Then the rows of a shape are not gathered any more: rows that are too many are read again."""


class _NoShapeError(Exception):
    """A plan has a part of which it is not known whether it is the same in another refresh."""


class _Same:
    """An object that is only equal to itself, and is kept, so that no other one gets its `id`."""

    __slots__ = ("_object",)

    def __init__(self, of: object) -> None:
        self._object = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._object is self._object

    def __hash__(self) -> int:
        return id(self._object)


@dataclass(frozen=True, slots=True)
class Shape:
    """What two plans have in common that differ only in rows.

    Attributes:
        key: equal for them.
        leaves: the nodes that stand for rows, in an order that the key determines.
    """

    key: Hashable
    leaves: tuple[Node, ...]


def shape_of(plan: Node, of_query: Collection[int], columns: Collection[ColumnId]) -> Shape | None:
    """The shape of a plan; None if it has a part that may differ in a way that is not seen.

    Args:
        plan: as the rules made it.
        of_query: ids (`id`) of the nodes of the view's query, which are the same in each refresh.
        columns: of the view's query; all other columns are of this refresh.
    """
    shaper = _Shaper(of_query, columns)
    try:
        key = shaper.part(plan)
    except _NoShapeError:
        return None
    return Shape(key, tuple(shaper.leaves))


class _Shaper:
    def __init__(self, of_query: Collection[int], columns: Collection[ColumnId]) -> None:
        self._of_query = of_query
        self._columns = columns
        self._numbers: dict[str, int] = {}
        self._leaf_numbers: dict[int, int] = {}
        self.leaves: list[Node] = []

    def part(self, part: Any) -> Hashable:
        match part:
            case Node():
                return self._node(part)
            case Expression():
                return _Same(part)
            case Enum() | bool() | int() | None:
                return type(part), part
            case str():
                return self._column(part)
            case tuple() | list():
                return tuple(map(self.part, part))
        if is_dataclass(part) and not isinstance(part, type):
            return self._fields(part)
        return _Same(part)

    def _node(self, node: Node) -> Hashable:
        if isinstance(node, _LEAVES):
            if id(node) not in self._leaf_numbers:
                self._leaf_numbers[id(node)] = len(self.leaves)
                self.leaves.append(node)
            return "rows", self._leaf_numbers[id(node)], self.part(node.columns)
        if id(node) in self._of_query:
            return _Same(node)
        return self._fields(node)

    def _fields(self, of: Any) -> Hashable:
        names = [field.name for field in fields(of)]
        parts = []
        for name in names:
            value = getattr(of, name)
            if isinstance(of, MergeGroups) and name == "partial_aggregate":
                # Only what its columns are; its rows are those of another child.
                value = (value.columns, value.aggregate, value.removed)
            parts.append(self.part(value))
        return (type(of), *parts)

    def _column(self, text: str) -> Hashable:
        """A column of the query by its id, which its expressions have; others by their order."""
        if text == WEIGHT or text in self._columns:
            return text
        if not (text.startswith("c") and text[1:].isdigit()):
            raise _NoShapeError
        return self._numbers.setdefault(text, len(self._numbers))


_NOT_REPEATABLE = ("CURRENT_LIKE", "PLAN_EXPRESSION", "PYTHON_UDF", "SCALA_UDF")
"""Patterns of plans that give other rows each time, or run what Spark cannot see into."""


def is_repeatable(frame: DataFrame) -> bool:
    """Whether a plan made of a DataFrame gives the same rows each time it runs."""
    plan = analyzed_plan(frame)
    return bool(plan.deterministic()) and not any(
        contains_pattern(plan, pattern) for pattern in _NOT_REPEATABLE
    )


class RepeatedPlans:
    """The physical plans of one view by shape. For one refresh at a time."""

    def __init__(self) -> None:
        self._plans: OrderedDict[Hashable, JavaObject | None] = OrderedDict()
        self._too_many: OrderedDict[Hashable, int] = OrderedDict()
        self._misses = 0
        self._hits = 0

    @property
    def are_met_again(self) -> bool:
        """Whether it is worth to look for shapes."""
        return self._hits > 0 or self._misses < _MAX_MISSES

    def cannot_be_made(self, key: Hashable) -> bool:
        """Whether the plan of a shape was tried and cannot be repeated."""
        return key in self._plans and self._plans[key] is None

    def of(self, key: Hashable, make: Callable[[], JavaObject | None]) -> JavaObject | None:
        """The plan of a shape, made now if it is the first time; None if it cannot be repeated."""
        if key in self._plans:
            self._hits += 1
        else:
            self._misses += 1
            self._plans[key] = make()
            while len(self._plans) > _MAX_PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return self._plans[key]

    def note_gathered(self, key: Hashable, *, are_few: bool) -> None:
        """The rows of a shape were gathered, and were few or too many for a plan of it."""
        if are_few:
            self._too_many.pop(key, None)
            return
        times = self._too_many.pop(key, 0) + 1
        if times == _MAX_TIMES_GATHERED:
            self.refuse(key)
            return
        self._misses += times == 1
        self._too_many[key] = times
        while len(self._too_many) > _MAX_PLANS:
            self._too_many.popitem(last=False)

    def refuse(self, key: Hashable) -> None:
        """No plan of a shape can be repeated."""
        self._plans[key] = None

    def drop(self, key: Hashable) -> None:
        """The plan did not fit the rows: another one is made the next time."""
        self._plans.pop(key, None)


# -- rows of the driver -----------------------------------------------------------------------------


def _driver_plans() -> Any:
    return singleton(_SOURCE, DRIVER_SCAN)


def side_of_change(
    session: SparkSession, change: JavaObject, weight: int, columns: Sequence[str]
) -> DataFrame:
    """The rows of a change, a local relation, with one weight, and without it.

    Args:
        session: of the result.
        change: its last column is the weight.
        weight: 1 or -1.
        columns: names of the others.
    """
    java_session = session._jsparkSession  # noqa: SLF001
    return DataFrame(_driver_plans().side(java_session, change, weight, joined_texts(columns)), session)


def rows_of_run(
    session: SparkSession, update: JavaObject, columns: Sequence[str], run: int, count: int = -1
) -> DataFrame:
    """The rows of a local relation with the number of a run as a last column.

    Args:
        session: of the result.
        update: the rows.
        columns: names of all columns.
        run: the number.
        count: the column in which NULL becomes 0.
    """
    java_session = session._jsparkSession  # noqa: SLF001
    rows = _driver_plans().ofRun(java_session, update, count, joined_texts(columns), run)
    return DataFrame(rows, session)


def leaf_of_rows(session: SparkSession, rows: JavaObject) -> JavaObject:
    """A leaf of a plan that `repeated_plan` takes, in the place of a local relation."""
    return _driver_plans().leaf(session._jsparkSession, rows)  # noqa: SLF001


def repeated_plan(
    frame: DataFrame, leaves: Sequence[JavaObject], are_of_tables: Sequence[bool]
) -> JavaObject | None:
    """The physical plan of a DataFrame over leaves of `leaf_of_rows`, for `run_again`.

    None: it is not one task of plain operators; `job_reasons` has the reason.

    Args:
        frame: see `is_repeatable`.
        leaves: all that it reads.
        are_of_tables: for each leaf whether the names of its columns are those of a table, by which the
            DataFrame takes them; the columns of other leaves are taken by their order.
    """
    session, query = frame.sparkSession._jsparkSession, frame._jdf.queryExecution()  # noqa: SLF001
    return _driver_plans().repeated(
        session, query, _names(leaves), "".join("+" if is_table else "-" for is_table in are_of_tables)
    )


def run_again(
    session: SparkSession, plan: JavaObject, rows: Sequence[JavaObject], columns: Sequence[str]
) -> JavaObject | None:
    """The result of a plan as a local relation; None if it could not be computed here.

    Args:
        session: with the settings that the plan was made with.
        plan: of `repeated_plan`.
        rows: local relations, one for each leaf.
        columns: numbers of the result's columns.
    """
    java_session = session._jsparkSession  # noqa: SLF001
    names, ids = _names(rows), ",".join(columns)
    return _driver_plans().run(java_session, plan, names, ids, limits.MAX_DRIVER_BYTES)


def _names(objects: Sequence[JavaObject]) -> str:
    return ",".join(str(each._get_object_id()) for each in objects)  # noqa: SLF001
