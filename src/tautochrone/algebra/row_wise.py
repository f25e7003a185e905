"""Plans that look at one row at a time, taken apart: what an engine can compute without moving rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tautochrone.algebra.plan import (
    Altered,
    Filter,
    Finish,
    Kept,
    Node,
    Pad,
    Project,
    Rename,
    Select,
    Union,
    Weigh,
    Where,
)

__all__ = ["pieces"]


def pieces(plan: Node) -> Sequence[Node] | None:
    """Plans without a `Union` whose rows together are those of `plan`, when all that it does to rows that
    are held already is done to each by itself; else None."""
    match plan:
        case Kept():
            return (plan,)
        case Union(inputs=inputs):
            found = [pieces(child) for child in inputs]
            return None if None in found else tuple(piece for each in found for piece in each or ())
        case Finish(of=of) if not of.keys:
            # It gives a row where there is none.
            return None
        case Altered() | Filter() | Finish() | Pad() | Project() | Rename() | Select() | Weigh() | Where():
            below = pieces(plan.child)
            return None if below is None else tuple(replace(plan, child=piece) for piece in below)
        case _:
            return None
