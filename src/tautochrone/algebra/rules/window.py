"""Window functions: by partitions that changed."""

from __future__ import annotations

from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator
from tautochrone.algebra.nodes import ColumnId, Window
from tautochrone.algebra.rules.changed_groups import recompute_changed_groups
from tautochrone.model.refresh import RefreshMode

__all__ = ["WindowRule"]


class WindowRule:
    """The order in a partition is total (the engine breaks ties by all columns), so that the same rows
    always give the same answer."""

    def evaluate(self, node: Window, rows: Bag) -> list[dict[ColumnId, Any]]:
        partitions: dict[tuple[Any, ...], list[Any]] = {}
        for row in rows:
            partitions.setdefault(tuple(row[column] for column in node.partition), []).append(row)
        return [made for partition in partitions.values() for made in node.handle(partition)]

    def change(self, node: Window, at: Differentiator) -> Change:
        return recompute_changed_groups(node, node.partition, at)

    def mode(self, node: Window) -> tuple[RefreshMode, str]:
        if not node.partition:
            return RefreshMode.DIFF, "window without PARTITION BY: every row may change"
        return RefreshMode.INCREMENTAL, "partitions that changed"
