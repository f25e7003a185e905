"""The names of tables in a parsed query, before anything is resolved."""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.spark.jvm.catalyst import items, kind, walk_with_subqueries

__all__ = ["relations_of"]


def relations_of(plan: JavaObject) -> list[tuple[str, ...]]:
    """The parts of each name that a parsed query reads, in order and once each; names of its own CTEs
    are left out, where they mean the CTE and elsewhere."""
    found: dict[tuple[str, ...], None] = {}
    own: set[str] = set()
    _collect(plan, found, own)
    return [parts for parts in found if len(parts) > 1 or parts[0].lower() not in own]


def _collect(plan: JavaObject, found: dict[tuple[str, ...], None], own: set[str]) -> None:
    for node in walk_with_subqueries(plan):
        match kind(node):
            case "UnresolvedRelation":
                found[tuple(str(part) for part in items(node.multipartIdentifier()))] = None
            case "UnresolvedWith":
                for pair in items(node.cteRelations()):
                    own.add(str(pair._1()).lower())  # noqa: SLF001
                    _collect(pair._2(), found, own)  # noqa: SLF001
