"""How views are refreshed: what a user may ask for, what a refresh did, why, what it took. Never silent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tautochrone.model.definitions import ExpectationCount
from tautochrone.model.reason import Reason

__all__ = ["NodeRefresh", "Refresh", "RefreshMode", "RefreshPolicy", "worst_mode"]


class RefreshMode(StrEnum):
    """How a dataset reached its version for a checkpoint, cheapest first.

    `WAITING`: it got none, because the bulk of a source is not complete.
    """

    NO_DATA = "no_data"
    APPEND = "append"
    INCREMENTAL = "incremental"
    DIFF = "diff"
    FULL = "full"
    WAITING = "waiting"


class RefreshPolicy(StrEnum):
    """What the user allows for a view. Whatever it is, a first build and a changed definition are full.

    `AUTO` takes what is expected to be cheapest. `INCREMENTAL` follows the change even where computing
    everything would be cheaper; what has no rule is compared (`diff`). `INCREMENTAL_STRICT` fails
    instead of comparing. `FULL` computes everything whenever an input changed.
    """

    AUTO = "auto"
    INCREMENTAL = "incremental"
    INCREMENTAL_STRICT = "incremental_strict"
    FULL = "full"


def worst_mode(modes: list[RefreshMode]) -> RefreshMode:
    """The most expensive of several modes; `NO_DATA` for none."""
    order = list(RefreshMode)
    return max(modes, key=order.index, default=RefreshMode.NO_DATA)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefresh:
    """The mode of one node of a view's plan."""

    node: str
    mode: RefreshMode
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """The outcome of one refresh of one dataset. Rows are counts, duration is wall time in ms.

    `estimate_ms` is what the refresh was expected to take when its mode was chosen, None when there was
    nothing to choose from. `delta_rows` is the upper bound of rows that changed in its inputs, as the
    choice knew it. `cpu_ms` is the CPU time of its Spark tasks on all executors, None where nobody measured.
    `expectations` are the dataset's, with the rows that violate them.
    """

    mode: RefreshMode
    reason: Reason
    rows_inserted: int = 0
    rows_deleted: int = 0
    duration_ms: int = 0
    nodes: tuple[NodeRefresh, ...] = ()
    estimate_ms: int | None = None
    delta_rows: int = 0
    cpu_ms: int | None = None
    expectations: tuple[ExpectationCount, ...] = ()
