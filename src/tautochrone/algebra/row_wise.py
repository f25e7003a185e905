"""Plans that look at one row at a time, taken apart: what an engine can compute without moving rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tautochrone.algebra.nodes import (
    ChangedGroups,
    Filter,
    FinalAggregate,
    FlagFilter,
    Materialized,
    Node,
    NullExtend,
    Project,
    Rename,
    Select,
    Union,
    WithWeight,
)

__all__ = ["row_wise_parts"]


def row_wise_parts(plan: Node) -> Sequence[Node] | None:
    """Plans without a `Union` whose rows together are those of `plan`, when all that it does to rows that
    are held already is done to each by itself; else None."""
    match plan:
        case Materialized():
            return (plan,)
        case Union(inputs=inputs):
            found = [row_wise_parts(child) for child in inputs]
            return None if None in found else tuple(piece for each in found for piece in each or ())
        case FinalAggregate(of=of) if not of.keys:
            # It gives a row where there is none.
            return None
        case (
            ChangedGroups()
            | Filter()
            | FinalAggregate()
            | NullExtend()
            | Project()
            | Rename()
            | Select()
            | WithWeight()
            | FlagFilter()
        ):
            below = row_wise_parts(plan.child)
            return None if below is None else tuple(replace(plan, child=piece) for piece in below)
        case _:
            return None
