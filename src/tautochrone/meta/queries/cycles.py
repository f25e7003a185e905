"""Refusing a topology with a cycle. It must never know jobs or the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tautochrone.errors import MetaError

__all__ = ["require_acyclic"]


def require_acyclic(edges: Mapping[str, frozenset[str]], tables: Iterable[str]) -> None:
    """Refuse a topology in which one of `tables` is computed from itself, directly or through others.

    Args:
        edges: for each table the tables that it reads.
        tables: those that are new or changed.

    Raises:
        MetaError: `TOPOLOGY_CYCLE`, with the cycle from input to output.
    """
    for table in sorted(tables):
        cycle = _cycle_through(edges, table)
        if cycle:
            raise MetaError(
                "TOPOLOGY_CYCLE",
                f"{table} would be made from itself: {' → '.join(cycle)}",
                hint="A checkpoint passes from inputs to outputs; in a cycle it would never end.",
                parameters={"cycle": " → ".join(cycle)},
            )


def _cycle_through(edges: Mapping[str, frozenset[str]], start: str) -> list[str]:
    """The shortest cycle through `start`, from input to output; empty when there is none."""
    reader_of: dict[str, str] = {}
    frontier = [start]
    while frontier:
        following: list[str] = []
        for name in frontier:
            for source in sorted(edges.get(name, ())):
                if source == start:
                    path = [start]
                    table = name
                    while table != start:
                        path.append(table)
                        table = reader_of[table]
                    return [*path, start]
                if source not in reader_of:
                    reader_of[source] = name
                    following.append(source)
        frontier = following
    return []
