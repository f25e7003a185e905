"""Helpers for Catalyst trees over Py4J: classes, sequences, traversal, transformation.

Catalyst's `transform…` methods get Python functions as Scala partial functions. Java packages and classes are
looked up by name once for each JVM: Py4J asks the JVM at every dot of `jvm.org.apache.iceberg.…`, and again
for every static method. Each lookup is a round trip between two processes; without the cache a refresh would
make thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass, JavaObject, JavaPackage
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import Column, SparkSession

from tautochrone.algebra.nodes import ColumnId
from tautochrone.spark.jvm.deferred import can_wait, new, sequence
from tautochrone.spark.jvm.driver_calls import KIND, driver_calls, objects_of

__all__ = [
    "SCALAR_SUBQUERY",
    "CachedPackage",
    "Catalyst",
    "cached_packages",
    "children_of",
    "contains_pattern",
    "decimal_digits",
    "items",
    "kind",
    "known_row_count",
    "name_of",
    "plan_and_subqueries",
    "start_callback_server",
    "transformed",
    "walk",
    "walk_with_subqueries",
]


SCALAR_SUBQUERY = "ScalarSubquery"
"""Catalyst's expression for a subquery that gives one value."""

_NOT_STREAMING = False
_NAME = "_tautochrone_name"
"""The attribute in which a column of the JVM keeps its name."""


_TREES = "org.apache.spark.sql.catalyst."


class CachedPackage:
    """A Py4J package or class that caches every name below it.

    Static fields are cached too, so only constant ones may be read through it.
    """

    def __init__(self, target: Any) -> None:
        self.__dict__["_target"] = target

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._target, name)
        if isinstance(member, JavaPackage | JavaClass):
            member = CachedPackage(member)
        self.__dict__[name] = member
        return member

    def __call__(self, *arguments: Any) -> Any:
        name = getattr(self._target, "_fqn", "")
        if name.startswith(_TREES) and all(map(can_wait, arguments)):
            return new(name, *arguments)
        return self._target(*arguments)


_BY_JVM: WeakKeyDictionary[Any, CachedPackage] = WeakKeyDictionary()


def cached_packages(jvm: Any) -> CachedPackage:
    """The caching form of a gateway's `jvm`."""
    if jvm not in _BY_JVM:
        _BY_JVM[jvm] = CachedPackage(jvm)
    return _BY_JVM[jvm]


_starting = Lock()


def start_callback_server(session: SparkSession) -> None:
    """Start the server by which the JVM calls Python. Needed before a `TransformRule` is passed to the JVM,
    and before `foreachBatch`.

    PySpark's own function is not for several threads: a second one may go on before the JVM knows the port.
    And the server's thread begins to listen a moment after the function returns; until then the JVM's
    connections are refused.
    """
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001
    with _starting:
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        # The backlog takes connections until the server's thread accepts them. A second call changes nothing.
        gateway._callback_server.server_socket.listen()  # noqa: SLF001


def transformed(
    transform: Callable[[Any], JavaObject], rule: Callable[[JavaObject], JavaObject]
) -> JavaObject:
    """A tree as one of Catalyst's `transform…` methods makes it.

    Args:
        transform: the method, such as `plan.transformUp`.
        rule: gets each node of the tree, returns it or its replacement.
    """
    function = _PartialFunction(rule)
    try:
        return transform(function)
    finally:
        function.answers.clear()


class _PartialFunction:
    """A function of Python for Scala.

    Py4J answers with the number of an object. Without `answers` the object could be dropped, and its number
    be unknown, before Java reads the answer.
    """

    def __init__(self, rule: Callable[[JavaObject], JavaObject]) -> None:
        self.answers: list[JavaObject] = []
        self._rule = rule

    def isDefinedAt(self, _node: JavaObject) -> bool:  # noqa: N802
        return True

    def apply(self, node: JavaObject) -> JavaObject:
        answer = self._rule(node)
        self.answers.append(answer)
        return answer

    def applyOrElse(self, node: JavaObject, _default: object) -> JavaObject:  # noqa: N802
        return self.apply(node)

    class Java:
        implements = ("scala.PartialFunction",)


def items(collection: JavaObject) -> Iterator[Any]:
    """The elements of a Scala collection."""
    return objects_of(str(driver_calls().elements(collection)))


def children_of(node: JavaObject) -> Iterator[Any]:
    """The children of a plan or an expression."""
    return objects_of(str(driver_calls().children(node)))


def kind(node: JavaObject) -> str:
    """The simple class name of a plan or expression, such as `Filter`."""
    name = vars(node).get(KIND)
    if name is None:
        name = vars(node)[KIND] = str(driver_calls().kind(node)).removesuffix("$")
    return str(name)


def name_of(attribute: JavaObject) -> str:
    """The name of a column."""
    name = vars(attribute).get(_NAME)
    if name is None:
        name = vars(attribute)[_NAME] = str(attribute.name())
    return str(name)


def decimal_digits(type_name: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal type, as Spark and Iceberg spell it; None for other types."""
    if not type_name.startswith("decimal("):
        return None
    precision, scale = map(int, type_name[len("decimal(") : -1].split(","))
    return precision, scale


def known_row_count(plan: JavaObject) -> int | None:
    """The number of rows of a leaf that reads no table; None for other plans."""
    match kind(plan):
        case "OneRowRelation":
            return 1
        case "LocalRelation":
            return int(plan.data().size())
        case "Range":
            return int(str(plan.numElements()))
    return None


def walk(tree: JavaObject) -> Iterator[Any]:
    """Every node of a plan or expression, parents first, without the plans of subqueries."""
    return objects_of(str(driver_calls().nodes(tree)))


def plan_and_subqueries(plan: JavaObject) -> Iterator[JavaObject]:
    """The plan, and the plan of every subquery in its expressions at any depth."""
    yield plan
    yield from items(plan.subqueriesAll())


def walk_with_subqueries(plan: JavaObject) -> Iterator[JavaObject]:
    """Every node of a plan and of all its subqueries."""
    for root in plan_and_subqueries(plan):
        yield from walk(root)


def contains_pattern(tree: JavaObject, pattern: str) -> bool:
    """Whether a plan (with its expressions) or an expression contains one of Catalyst's `TreePattern`s.

    Catalyst keeps a bit for each pattern, so the tree is not traversed.
    """
    return bool(driver_calls().containsPattern(tree, _pattern_id(pattern)))


@cache
def _pattern_id(pattern: str) -> int:
    """The id of a `TreePattern` in this Spark version."""
    context = SparkContext._active_spark_context  # noqa: SLF001
    assert context is not None
    patterns = cached_packages(context._jvm).org.apache.spark.sql.catalyst.trees.TreePattern  # noqa: SLF001
    return int(getattr(patterns, pattern)().id())


_NUMBERS = 256
"""Numbers of columns that are taken from Spark's counter at once."""


@dataclass(slots=True)
class _ExprIds:
    """Numbers that are taken from the counter of a JVM, and what its `ExprId`s have in common."""

    gateway: Any
    jvm_id: JavaObject
    lock: Lock = field(default_factory=Lock)
    taken: list[int] = field(default_factory=list)


_expr_ids: list[_ExprIds] = []
"""Of the JVM that runs: at most one."""


def _of_jvm() -> _ExprIds:
    gateway = driver_calls()._gateway_client  # noqa: SLF001
    if not _expr_ids or _expr_ids[0].gateway is not gateway:
        _expr_ids[:] = [_ExprIds(gateway, driver_calls().jvmId())]
    return _expr_ids[0]


def _new_number() -> int:
    """The number of a column that no plan of the JVM has."""
    ids = _of_jvm()
    with ids.lock:
        if not ids.taken:
            ids.taken = [int(number) for number in str(driver_calls().newNumbers(_NUMBERS)).split(",")]
        return ids.taken.pop()


class Catalyst:
    """Constructors of Catalyst trees for one session.

    A column id is `c` and the number of Catalyst's `ExprId`, so an expression of the optimized plan stays
    valid over any plan whose attributes have the same numbers.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.jvm: Any = cached_packages(session._jvm)  # noqa: SLF001

    # -- classes ----------------------------------------------------------------------------------

    def spark_sql_class(self, path: str) -> Any:
        """A class below `org.apache.spark.sql`, or a Scala `object` when the path ends with `$`."""
        member: Any = self.jvm.org.apache.spark.sql
        for part in path.split("."):
            member = getattr(member, part)
        return getattr(member, "MODULE$") if path.endswith("$") else member

    def logical(self, name: str) -> Any:
        return self.spark_sql_class(f"catalyst.plans.logical.{name}")

    def expression(self, name: str) -> Any:
        return self.spark_sql_class(f"catalyst.expressions.{name}")

    # -- Scala ------------------------------------------------------------------------------------

    def seq(self, values: Iterable[JavaObject] = ()) -> JavaObject:
        elements = list(values)
        if not all(map(can_wait, elements)):
            return self._python.toSeq(elements)
        return sequence(elements) if elements else self._empty

    @property
    def _python(self) -> Any:
        return self.jvm.org.apache.spark.api.python.PythonUtils

    @cached_property
    def _empty(self) -> JavaObject:
        return self._python.toSeq([])

    @cached_property
    def none(self) -> JavaObject:
        return self.jvm.scala.Option.empty()

    def option(self, value: Any) -> JavaObject:
        """A Scala `Some` of the value, or `None` for None."""
        return self.jvm.scala.Option.apply(value)

    @cached_property
    def no_hint(self) -> JavaObject:
        return self.logical("JoinHint").NONE()

    @cached_property
    def shuffle_hash_hint(self) -> JavaObject:
        """Hint for a join that builds a hash table of its right side without a broadcast."""
        return self.logical("JoinHint")(self.none, self._hint("SHUFFLE_HASH$"))

    @cached_property
    def broadcast_right_hint(self) -> JavaObject:
        """Hint for a join that broadcasts its right side."""
        return self.logical("JoinHint")(self.none, self._hint("BROADCAST$"))

    @cached_property
    def broadcast_left_hint(self) -> JavaObject:
        """Hint for a join that broadcasts its left side."""
        return self.logical("JoinHint")(self._hint("BROADCAST$"), self.none)

    def _hint(self, strategy: str) -> JavaObject:
        return self.option(self.logical("HintInfo")(self.option(self.logical(strategy))))

    # -- columns ----------------------------------------------------------------------------------

    def column_id(self, attribute: JavaObject) -> ColumnId:
        return ColumnId(f"c{driver_calls().columnNumber(attribute)}")

    def new_expr_id(self) -> tuple[ColumnId, JavaObject]:
        """A new column id and its `ExprId`."""
        number = _new_number()
        return ColumnId(f"c{number}"), self.expr_id(number)

    def expr_id(self, number: int) -> JavaObject:
        """The `ExprId` with a number of this JVM."""
        return new(f"{_TREES}expressions.ExprId", number, _of_jvm().jvm_id)

    def alias(self, expression: JavaObject, name: str, expr_id: JavaObject) -> JavaObject:
        """`expression AS name` with a given `ExprId`."""
        empty = self._empty
        return self.expression("Alias")(expression, name, expr_id, empty, self.none, empty)

    def ascending(self, attribute: JavaObject) -> JavaObject:
        """`attribute ASC NULLS FIRST`."""
        ascending, first = self.expression("Ascending$"), self.expression("NullsFirst$")
        return self.expression("SortOrder")(attribute, ascending, first, self._empty)

    def cast(self, value: JavaObject, data_type: JavaObject, zone: JavaObject | None = None) -> JavaObject:
        """`CAST(value AS data_type)`, for types that can represent every value.

        Args:
            zone: Scala's `Option` of a time zone, for casts that need one.
        """
        mode = self.expression("EvalMode").LEGACY()
        return self.expression("Cast")(value, data_type, self.none if zone is None else zone, mode)

    def literal(self, value: Any) -> JavaObject:
        """A literal with the type that Py4J gives the value in Java."""
        return self.expression("Literal$").apply(value)

    def null(self, data_type: JavaObject) -> JavaObject:
        return self.expression("Literal$").create(None, data_type)

    def pyspark_column(self, expression: JavaObject) -> Column:
        """An expression as PySpark's `Column`."""
        return Column(self.spark_sql_class("classic.ExpressionUtils").column(expression))

    # -- subqueries and rows ----------------------------------------------------------------------

    def scalar_subquery(self, plan: JavaObject, expr_id: JavaObject) -> JavaObject:
        """The value of a plan's only row and column; NULL when it has no row."""
        empty, none = self._empty, self.none
        return self.expression(SCALAR_SUBQUERY)(plan, empty, expr_id, empty, none, none, none)

    def local_relation(self, output: JavaObject, rows: JavaObject) -> JavaObject:
        """A plan of rows that the driver holds: a Scala sequence, with these attributes."""
        return self.logical("LocalRelation")(output, rows, _NOT_STREAMING, self.none)

    # -- trees ------------------------------------------------------------------------------------

    def transform_down(
        self, expression: JavaObject, replace: Callable[[JavaObject], JavaObject | None]
    ) -> JavaObject:
        """A copy of an expression with some nodes replaced.

        Args:
            expression: any.
            replace: called from the top down; None means that the node stays and its children are visited.
        """
        replacement = replace(expression)
        if replacement is not None:
            return replacement
        children = list(children_of(expression))
        if not children:
            return expression
        copies = [self.transform_down(child, replace) for child in children]
        if all(copy is child for copy, child in zip(copies, children, strict=True)):
            return expression
        return expression.withNewChildren(self.seq(copies))

    def conjuncts(self, condition: JavaObject) -> list[JavaObject]:
        """`a AND b AND c` as a list."""
        if kind(condition) != "And":
            return [condition]
        return self.conjuncts(condition.left()) + self.conjuncts(condition.right())

    def references(self, expression: JavaObject) -> frozenset[ColumnId]:
        return frozenset(self.column_id(attribute) for attribute in items(expression.references().toSeq()))
