"""From Catalyst's joins to the algebra: conditions are split into key equalities and others."""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import ColumnId, Join, JoinKey, JoinKind, Node, Select
from tautochrone.spark.jvm.catalyst import kind
from tautochrone.spark.translate.translation_context import TranslationContext

__all__ = ["translate_join"]

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


def translate_join(translator: TranslationContext, plan: JavaObject) -> Node:
    """The node of a Catalyst join. A right outer join becomes a left outer join with swapped sides."""
    name = kind(plan.joinType())
    if name not in _KINDS:
        return translator.unsupported(plan, f"{name} join has no rule")
    condition = plan.condition()
    conjuncts = translator.catalyst.conjuncts(condition.get()) if condition.isDefined() else []
    left, right = translator.node(plan.left()), translator.node(plan.right())
    columns = _output_columns(translator, plan, name, left, right)
    if name == "RightOuter":
        left, right = right, left
    equal, rest = _equalities(translator, conjuncts, left, right)
    left, left_keys = translator.with_computed_columns(left, [pair[0] for pair in equal])
    right, right_keys = translator.with_computed_columns(right, [pair[1] for pair in equal])
    keys = tuple(
        JoinKey(left=a, right=b, null_safe=pair[2])
        for a, b, pair in zip(left_keys, right_keys, equal, strict=True)
    )
    exists = columns[-1] if name == "ExistenceJoin" else None
    node = Join(
        columns=_join_columns(_KINDS[name], left, right, exists),
        left=left,
        right=right,
        kind=_KINDS[name],
        keys=keys,
        conditions=tuple(translator.expression(part) for part in rest),
        exists=exists,
    )
    return node if node.columns == columns else Select(columns=columns, child=node)


def _output_columns(
    translator: TranslationContext, plan: JavaObject, name: str, left: Node, right: Node
) -> tuple[ColumnId, ...]:
    if name == "ExistenceJoin":
        return (*left.columns, translator.register(plan.joinType().exists()))
    if name in ("LeftSemi", "LeftAnti"):
        return left.columns
    return (*left.columns, *right.columns)


def _join_columns(
    join_kind: JoinKind, left: Node, right: Node, exists: ColumnId | None
) -> tuple[ColumnId, ...]:
    if join_kind in (JoinKind.SEMI, JoinKind.ANTI):
        return left.columns
    if exists is not None:
        return (*left.columns, exists)
    return (*left.columns, *right.columns)


def _equalities(
    translator: TranslationContext, conjuncts: list[JavaObject], left: Node, right: Node
) -> tuple[list[tuple[JavaObject, JavaObject, bool]], list[JavaObject]]:
    """Conjuncts `f(left) = g(right)` as (left, right, null-safe), and the other conjuncts."""
    catalyst = translator.catalyst
    left_columns, right_columns = set(left.columns), set(right.columns)
    equal, rest = [], []
    for conjunct in conjuncts:
        if kind(conjunct) in ("EqualTo", "EqualNullSafe"):
            a, b = conjunct.left(), conjunct.right()
            reads_a, reads_b = catalyst.references(a), catalyst.references(b)
            null_safe = kind(conjunct) == "EqualNullSafe"
            if reads_a and reads_b and reads_a <= left_columns and reads_b <= right_columns:
                equal.append((a, b, null_safe))
                continue
            if reads_a and reads_b and reads_a <= right_columns and reads_b <= left_columns:
                equal.append((b, a, null_safe))
                continue
        rest.append(conjunct)
    return equal, rest
