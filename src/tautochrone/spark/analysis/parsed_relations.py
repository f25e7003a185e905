"""Table names in a parsed, unresolved query."""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.spark.jvm.catalyst import items, kind, walk_with_subqueries

__all__ = ["relations_of"]


def relations_of(plan: JavaObject) -> list[tuple[str, ...]]:
    """The name parts of each relation that a parsed query reads, in order and without duplicates.

    An unqualified name that is also the name of one of the query's CTEs is left out everywhere, even outside
    the scope of the CTE.
    """
    names: dict[tuple[str, ...], None] = {}
    ctes: set[str] = set()
    _collect(plan, names, ctes)
    return [parts for parts in names if len(parts) > 1 or parts[0].lower() not in ctes]


def _collect(plan: JavaObject, names: dict[tuple[str, ...], None], ctes: set[str]) -> None:
    for node in walk_with_subqueries(plan):
        match kind(node):
            case "UnresolvedRelation":
                names[tuple(str(part) for part in items(node.multipartIdentifier()))] = None
            case "UnresolvedWith":
                for pair in items(node.cteRelations()):
                    ctes.add(str(pair._1()).lower())  # noqa: SLF001
                    _collect(pair._2(), names, ctes)  # noqa: SLF001
