"""What a refresh did and why: mode, reason and counts. Never silent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["NodeRefresh", "Refresh", "RefreshMode", "worst_mode"]


class RefreshMode(StrEnum):
    """How a dataset reached its version for a checkpoint, cheapest first."""

    NO_DATA = "no_data"
    APPEND = "append"
    INCREMENTAL = "incremental"
    DIFF = "diff"
    FULL = "full"


def worst_mode(modes: list[RefreshMode]) -> RefreshMode:
    """The dearest of several modes; `NO_DATA` for none."""
    order = list(RefreshMode)
    return max(modes, key=order.index, default=RefreshMode.NO_DATA)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefresh:
    """The mode of one node of a view's plan."""

    node: str
    mode: RefreshMode
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """The outcome of one refresh of one dataset. Rows are counts, duration is wall time in ms."""

    mode: RefreshMode
    reason: str
    rows_inserted: int = 0
    rows_deleted: int = 0
    duration_ms: int = 0
    nodes: tuple[NodeRefresh, ...] = ()
