"""Floats that the same rows give with other last digits, and the operators that must not use them.

A node without a state computes its old rows again to remove them. Spark adds up floats in the order in which
its tasks deliver them, and the layout of files decides about that: after a compaction a deviation may differ
in its last bits from the one that was computed before. The search for the view's own rows has a tolerance. An
operator that groups by such a float, compares it or makes a text of it would remove a result that it never
gave, so the view is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import ColumnId, Expression, Node
from tautochrone.algebra.nodes.base import UnstableColumns
from tautochrone.spark.jvm.catalyst import Catalyst, children_of, items, kind

__all__ = ["uses_of_unstable_floats"]

_ARITHMETIC = frozenset(
    {"Alias", "Add", "Subtract", "Multiply", "Divide", "UnaryMinus", "UnaryPositive", "Coalesce"}
)
"""Where the operands differ in their last digits, so does the result."""
_NOT_STORED = ("interval", "void")
"""Types of keys that the table of a state cannot have."""


def uses_of_unstable_floats(
    plan: Node, attributes: Mapping[ColumnId, JavaObject], catalyst: Catalyst
) -> list[str]:
    """Why the change of a view cannot be computed, one text for each operator that uses an unstable float.

    Args:
        plan: of the view.
        attributes: Catalyst's attribute of each column.
        catalyst: of the session that planned it.
    """
    uses = _Uses(attributes, catalyst)
    uses.search(plan, {})
    return list(dict.fromkeys(uses.texts))


@dataclass(frozen=True, slots=True)
class _Uses:
    """See `FloatUses`."""

    attributes: Mapping[ColumnId, JavaObject]
    catalyst: Catalyst
    texts: list[str] = field(default_factory=list)

    def search(self, node: Node, known: dict[int, UnstableColumns]) -> UnstableColumns:
        """The unstable columns of a node; `known` are those of nodes that were searched."""
        if id(node) not in known:
            below: dict[ColumnId, str] = {}
            for child in node.children:
                below.update(self.search(child, known))
            known[id(node)] = node.unstable_columns(below, self)
        return known[id(node)]

    def report(self, node: Node, columns: Iterable[ColumnId], unstable: UnstableColumns) -> None:
        for text in dict.fromkeys(unstable[column] for column in columns if column in unstable):
            self.texts.append(
                f"{node.label} uses the result of {text}, whose last digits depend on the order of rows"
            )

    def passes_on(self, expression: Expression, unstable: UnstableColumns) -> bool:
        return self._is_arithmetic(expression.handle, unstable)

    def _is_arithmetic(self, handle: JavaObject, unstable: UnstableColumns) -> bool:
        if not self._reads(handle, unstable) or kind(handle) == "AttributeReference":
            return True
        children = list(children_of(handle))
        if kind(handle) == "If":
            conditions = children[:1]
        elif kind(handle) == "CaseWhen":
            # Conditions and values alternate; ELSE is a value alone.
            conditions = children[: len(children) - len(children) % 2 : 2]
        elif kind(handle) in _ARITHMETIC:
            conditions = []
        else:
            return False
        decided = any(self._reads(condition, unstable) for condition in conditions)
        return not decided and all(self._is_arithmetic(child, unstable) for child in children)

    def _reads(self, handle: JavaObject, unstable: UnstableColumns) -> bool:
        return not self.catalyst.references(handle).isdisjoint(unstable)

    def read_by(self, handle: Any) -> frozenset[ColumnId]:
        match kind(handle):
            case "Generate":
                expressions = [handle.generator()]
            case "Window":
                expressions = [*items(handle.orderSpec()), *items(handle.windowExpressions())]
            case _:
                expressions = list(items(handle.udfs()))
        return frozenset[ColumnId]().union(*map(self.catalyst.references, expressions))

    def can_be_stored(self, columns: Iterable[ColumnId]) -> bool:
        types = [str(self.attributes[column].dataType().catalogString()) for column in columns]
        return not any(word in each for each in types for word in _NOT_STORED)
