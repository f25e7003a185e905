"""Catalyst's joins in the algebra: conditions split into keys and the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import ColumnId, Join, JoinKey, JoinKind, Node, Select
from tautochrone.spark.jvm.catalyst import kind

if TYPE_CHECKING:
    from tautochrone.spark.translate.from_catalyst import Translator

__all__ = ["join"]

_KINDS = {
    "Inner": JoinKind.INNER,
    "Cross": JoinKind.INNER,
    "LeftOuter": JoinKind.LEFT,
    "RightOuter": JoinKind.LEFT,
    "FullOuter": JoinKind.FULL,
    "LeftSemi": JoinKind.SEMI,
    "LeftAnti": JoinKind.ANTI,
    "ExistenceJoin": JoinKind.EXISTENCE,
    "LeftSingle": JoinKind.SCALAR,
}


def join(translator: Translator, plan: JavaObject) -> Node:
    """The node of a Catalyst join. A right outer join is a left one from the other side."""
    name = kind(plan.joinType())
    if name not in _KINDS:
        return translator.other(plan, f"{name} join has no rule")
    condition = plan.condition()
    parts = translator.catalyst.conjuncts(condition.get()) if condition.isDefined() else []
    left, right = translator.node(plan.left()), translator.node(plan.right())
    wanted = _columns(translator, plan, name, left, right)
    if name == "RightOuter":
        left, right = right, left
    equal, rest = _equalities(translator, parts, left, right)
    whole_left, left_keys = translator.with_computed_columns(left, [pair[0] for pair in equal])
    whole_right, right_keys = translator.with_computed_columns(right, [pair[1] for pair in equal])
    keys = tuple(
        JoinKey(left=a, right=b, null_safe=pair[2])
        for a, b, pair in zip(left_keys, right_keys, equal, strict=True)
    )
    exists = wanted[-1] if name == "ExistenceJoin" else None
    node = Join(
        columns=_given(_KINDS[name], whole_left, whole_right, exists),
        left=whole_left,
        right=whole_right,
        kind=_KINDS[name],
        keys=keys,
        conditions=tuple(translator.expression(part) for part in rest),
        exists=exists,
    )
    return node if node.columns == wanted else Select(columns=wanted, child=node)


def _columns(
    translator: Translator, plan: JavaObject, name: str, left: Node, right: Node
) -> tuple[ColumnId, ...]:
    if name == "ExistenceJoin":
        return (*left.columns, translator.register(plan.joinType().exists()))
    if name in ("LeftSemi", "LeftAnti"):
        return left.columns
    return (*left.columns, *right.columns)


def _given(how: JoinKind, left: Node, right: Node, exists: ColumnId | None) -> tuple[ColumnId, ...]:
    if how in (JoinKind.SEMI, JoinKind.ANTI):
        return left.columns
    if exists is not None:
        return (*left.columns, exists)
    return (*left.columns, *right.columns)


def _equalities(
    translator: Translator, parts: list[JavaObject], left: Node, right: Node
) -> tuple[list[tuple[JavaObject, JavaObject, bool]], list[JavaObject]]:
    """Conjuncts `f(left) = g(right)` as (left, right, null-safe), and the other ones."""
    catalyst = translator.catalyst
    have, other = set(left.columns), set(right.columns)
    equal, rest = [], []
    for part in parts:
        if kind(part) in ("EqualTo", "EqualNullSafe"):
            a, b = part.left(), part.right()
            reads_a, reads_b = catalyst.references(a), catalyst.references(b)
            null_safe = kind(part) == "EqualNullSafe"
            if reads_a and reads_b and reads_a <= have and reads_b <= other:
                equal.append((a, b, null_safe))
                continue
            if reads_a and reads_b and reads_a <= other and reads_b <= have:
                equal.append((b, a, null_safe))
                continue
        rest.append(part)
    return equal, rest
