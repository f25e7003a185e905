"""Plans as people read them: how each node will be refreshed, how large its state is, what is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tautochrone.algebra.delta import Rule
from tautochrone.algebra.nodes import (
    WEIGHT,
    Aggregate,
    Constant,
    Expand,
    FlatMap,
    Node,
    Project,
    Rename,
    Scan,
    Select,
    TopK,
    Unsupported,
    plural,
)
from tautochrone.model.checkpoint import NodeRefresh, RefreshMode
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["ExplainedNode", "explain", "explained_nodes", "plan_text"]

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
            line += f"; state: {plural(self.state_columns, 'column')}"
        return line

    @property
    def refresh(self) -> NodeRefresh | None:
        """The same as a refresh records it; None for leaves."""
        if self.mode is None:
            return None
        reason = Reason.of(ReasonCode.NODE_RULE, rule=self.reason)
        return NodeRefresh(node=self.node, mode=self.mode, reason=reason)


def explain(plan: Node, rules: Mapping[type[Node], Rule]) -> list[str]:
    """The indented tree, one node a line, children below their parents."""
    return [node.text for node in explained_nodes(plan, rules)]


def explained_nodes(plan: Node, rules: Mapping[type[Node], Rule], depth: int = 0) -> list[ExplainedNode]:
    """The nodes in the order in which `explain` prints them."""
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
    if isinstance(node, TopK) or (isinstance(node, Aggregate) and node.is_mergeable):
        return len(node.state_columns)
    return 0


def plan_text(plan: Node, names: Mapping[int, str] | None = None) -> str:
    """Any plan, delta plans included, as an indented tree: class, description, children.

    Args:
        plan: of any nodes.
        names: shorthand by `id` of a node; what is below such a node is left out.
    """
    return "\n".join(_plan_lines(plan, names or {}, 0))


def _plan_lines(plan: Node, names: Mapping[int, str], depth: int) -> list[str]:
    if id(plan) in names:
        return [_INDENT * depth + names[id(plan)]]
    description = plan.describe() or _columns_text(plan)
    lines = [_INDENT * depth + type(plan).__name__ + (f" {description}" if description else "")]
    for child in plan.children:
        lines += _plan_lines(child, names, depth + 1)
    return lines


def _columns_text(plan: Node) -> str:
    """The output columns of a node that selects or computes columns."""
    if not isinstance(plan, Expand | FlatMap | Project | Rename | Select):
        return ""
    return ", ".join(column for column in plan.columns if column != WEIGHT)
