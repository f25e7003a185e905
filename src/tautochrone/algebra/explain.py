"""Plans as people read them: how each node will be refreshed, and how large its state is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tautochrone.algebra.delta import Rule
from tautochrone.algebra.nodes import Constant, Node, Scan, Stateful, Unsupported
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.counts import counted

__all__ = ["ExplainedNode", "explained_nodes"]

_INDENT = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedNode:
    """One node of a plan.

    Attributes:
        depth: in the tree; the root has 0.
        node: its label.
        description: what it does.
        mode: how it is refreshed; None for leaves.
        reason: why, in a few words.
        state_columns: how many columns its state has; 0 when it has no state.
    """

    depth: int
    node: str
    description: str
    mode: RefreshMode | None
    reason: str
    state_columns: int

    @property
    def text(self) -> str:
        """The node on one line."""
        line = _INDENT * self.depth + self.node + (f" {self.description}" if self.description else "")
        if self.mode is not None:
            line += f" - {self.mode}: {self.reason}"
        if self.state_columns:
            line += f"; state: {counted(self.state_columns, 'column')}"
        return line


def explained_nodes(plan: Node, rules: Mapping[type[Node], Rule], depth: int = 0) -> list[ExplainedNode]:
    """The nodes in reading order, children below their parents."""
    mode, reason = _mode(plan, rules)
    nodes = [
        ExplainedNode(
            depth=depth,
            node=plan.label,
            description=plan.describe(),
            mode=mode,
            reason=reason,
            state_columns=_state_columns(plan),
        )
    ]
    for child in plan.children:
        nodes += explained_nodes(child, rules, depth + 1)
    return nodes


def _mode(node: Node, rules: Mapping[type[Node], Rule]) -> tuple[RefreshMode | None, str]:
    if isinstance(node, Scan | Constant):
        return None, ""
    if isinstance(node, Unsupported):
        return RefreshMode.DIFF, node.reason
    return rules[type(node)].mode(node)


def _state_columns(node: Node) -> int:
    return len(node.state_columns) if isinstance(node, Stateful) and node.has_state else 0
