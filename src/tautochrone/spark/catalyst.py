"""Small things that are done to Catalyst trees over Py4J: names of classes, sequences, rebuilding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from tautochrone.algebra.plan import ColumnId
from tautochrone.spark.packages import packages_of

__all__ = ["Catalyst", "items", "kind"]


def items(seq: JavaObject) -> Iterator[JavaObject]:
    """The elements of a Scala sequence."""
    for index in range(seq.size()):
        yield seq.apply(index)


def kind(node: JavaObject) -> str:
    """The simple name of a node's class."""
    return str(node.getClass().getSimpleName()).removesuffix("$")


class Catalyst:
    """Constructors of Catalyst trees for one session.

    A column id is `c` and the number of Catalyst's `ExprId`, so an expression of the optimised plan stays
    valid over any plan that gives attributes with the same numbers.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.jvm: Any = packages_of(session._jvm)  # noqa: SLF001

    # -- classes ----------------------------------------------------------------------------------

    def find(self, path: str) -> Any:
        """A class below `org.apache.spark.sql`, or a Scala `object` when the path ends with `$`."""
        found: Any = self.jvm.org.apache.spark.sql
        for part in path.split("."):
            found = getattr(found, part)
        return getattr(found, "MODULE$") if path.endswith("$") else found

    def logical(self, name: str) -> Any:
        return self.find(f"catalyst.plans.logical.{name}")

    def expression(self, name: str) -> Any:
        return self.find(f"catalyst.expressions.{name}")

    # -- Scala ------------------------------------------------------------------------------------

    def seq(self, values: Iterable[JavaObject] = ()) -> JavaObject:
        found = list(values)
        if not found:
            return self._empty
        return self._python.toSeq(found)

    @property
    def _python(self) -> Any:
        return self.jvm.org.apache.spark.api.python.PythonUtils

    @cached_property
    def _empty(self) -> JavaObject:
        return self._python.toSeq([])

    @cached_property
    def none(self) -> JavaObject:
        return self.jvm.scala.Option.empty()

    def some(self, value: Any) -> JavaObject:
        return self.jvm.scala.Option.apply(value)

    @cached_property
    def no_hint(self) -> JavaObject:
        return self.logical("JoinHint").NONE()

    @cached_property
    def hash_hint(self) -> JavaObject:
        """Of a join whose right side is built into a hash table where it is, without a broadcast."""
        strategy = self.some(self.logical("SHUFFLE_HASH$"))
        right = self.some(self.logical("HintInfo")(strategy))
        return self.logical("JoinHint")(self.none, right)

    # -- columns ----------------------------------------------------------------------------------

    def id_of(self, attribute: JavaObject) -> ColumnId:
        return ColumnId(f"c{attribute.exprId().id()}")

    def new_id(self) -> tuple[ColumnId, JavaObject]:
        """A column id that nobody has, and its `ExprId`."""
        expr_id = self.expression("NamedExpression").newExprId()
        return ColumnId(f"c{expr_id.id()}"), expr_id

    def alias(self, expression: JavaObject, name: str, expr_id: JavaObject) -> JavaObject:
        """`expression AS name` with a given `ExprId`."""
        empty = self._empty
        return self.expression("Alias")(expression, name, expr_id, empty, self.none, empty)

    def ascending(self, attribute: JavaObject) -> JavaObject:
        """`attribute ASC NULLS FIRST`."""
        ascending, first = self.expression("Ascending$"), self.expression("NullsFirst$")
        return self.expression("SortOrder")(attribute, ascending, first, self._empty)

    def literal(self, value: Any) -> JavaObject:
        """A literal of the type that the value has in Java."""
        return self.expression("Literal$").apply(value)

    def null(self, data_type: JavaObject) -> JavaObject:
        return self.expression("Literal$").create(None, data_type)

    # -- trees ------------------------------------------------------------------------------------

    def rebuilt(
        self, expression: JavaObject, replace: Callable[[JavaObject], JavaObject | None]
    ) -> JavaObject:
        """A copy of an expression in which `replace` answered for some nodes, topmost first."""
        answer = replace(expression)
        if answer is not None:
            return answer
        children = list(items(expression.children()))
        if not children:
            return expression
        copies = [self.rebuilt(child, replace) for child in children]
        if all(copy is child for copy, child in zip(copies, children, strict=True)):
            return expression
        return expression.withNewChildren(self.seq(copies))

    def conjuncts(self, condition: JavaObject) -> list[JavaObject]:
        """`a AND b AND c` as a list."""
        if kind(condition) != "And":
            return [condition]
        return self.conjuncts(condition.left()) + self.conjuncts(condition.right())

    def references(self, expression: JavaObject) -> frozenset[ColumnId]:
        return frozenset(self.id_of(attribute) for attribute in items(expression.references().toSeq()))
