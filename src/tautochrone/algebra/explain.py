"""A plan as people read it: which rule keeps which node up to date, how, and what it remembers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tautochrone.algebra.delta import Rule
from tautochrone.algebra.nodes import (
    Aggregate,
    Constant,
    Filter,
    Join,
    Node,
    ScalarFilter,
    Scan,
    TopK,
    Unsupported,
)
from tautochrone.model.refresh import NodeRefresh, RefreshMode

__all__ = ["Explained", "explain", "explained"]

_INDENT = "  "
_LONGEST = 72
_NUMBER = re.compile(r"#\d+L?\b")
"""What the engine appends to the names of columns in a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One node: its depth in the tree, what it does, how it follows a change, columns of its state (0: it
    keeps none). Leaves have no mode."""

    depth: int
    node: str
    what: str
    mode: RefreshMode | None
    reason: str
    state: int

    @property
    def text(self) -> str:
        """The node on one line."""
        line = _INDENT * self.depth + self.node + (f" {self.what}" if self.what else "")
        if self.mode is not None:
            line += f" - {self.mode}: {self.reason}"
        if self.state:
            line += f"; state: {self.state} column{'s' if self.state > 1 else ''}"
        return line

    @property
    def refresh(self) -> NodeRefresh | None:
        """The same as what a refresh would record; None for leaves."""
        if self.mode is None:
            return None
        return NodeRefresh(node=self.node, mode=self.mode, reason=self.reason)


def explain(plan: Node, rules: Mapping[type[Node], Rule]) -> list[str]:
    """The indented tree, one node a line, children below their parents."""
    return [part.text for part in explained(plan, rules)]


def explained(plan: Node, rules: Mapping[type[Node], Rule], depth: int = 0) -> list[Explained]:
    """The nodes in the order in which `explain` prints them."""
    mode, reason = _mode(plan, rules)
    found = [
        Explained(
            depth=depth,
            node=plan.label,
            what=_what(plan),
            mode=mode,
            reason=reason,
            state=_state(plan),
        )
    ]
    for child in plan.children:
        found += explained(child, rules, depth + 1)
    return found


def _mode(node: Node, rules: Mapping[type[Node], Rule]) -> tuple[RefreshMode | None, str]:
    if isinstance(node, (Scan, Constant)):
        return None, ""
    if isinstance(node, Unsupported):
        return RefreshMode.DIFF, node.reason
    return rules[type(node)].mode(node)


def _state(node: Node) -> int:
    if isinstance(node, Aggregate):
        return len(node.state_columns) if node.merges else 0
    return len(node.state_columns) if isinstance(node, TopK) else 0


def _what(node: Node) -> str:
    match node:
        case Scan():
            return str(node.table)
        case Join():
            parts = [f"{len(node.keys)} key{'s' if len(node.keys) != 1 else ''}"]
            parts += [_short(condition.text) for condition in node.condition]
            return f"{node.kind} ({', '.join(parts)})"
        case Aggregate():
            calls = ", ".join(call.text or str(call.kind) for call in node.calls)
            by = f" by {len(node.keys)} key{'s' if len(node.keys) != 1 else ''}" if node.keys else ""
            return _short(calls or "distinct") + by
        case Filter() | ScalarFilter():
            return _short(node.condition.text)
        case TopK():
            return f"{node.limit}" + (f" after {node.offset}" if node.offset else "")
    return ""


def _short(text: str) -> str:
    text = " ".join(_NUMBER.sub("", text).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
