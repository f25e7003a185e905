"""The delta rules, one per kind of node. A new operator is a node in `algebra.nodes.query` and a rule here.

In the formulas A and B are the rows of a node's children, ΔA is the Z-set of what changed, and
A_after = A_before + ΔA. σ filters, π projects, ⋈ joins; ⋉ keeps left rows with a partner, ▷ those without.
In the examples a row ends with its weight; `tests/algebra/rules` has each with its delta plan.
"""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.algebra.delta import Rule
from tautochrone.algebra.nodes import Node
from tautochrone.algebra.rules.aggregates import AggregateRule
from tautochrone.algebra.rules.joins import JoinRule, ScalarFilterRule
from tautochrone.algebra.rules.row_wise import (
    ExpandRule,
    FilterRule,
    FlatMapRule,
    ProjectRule,
    RenameRule,
    SelectRule,
    UnionRule,
)
from tautochrone.algebra.rules.windows import TopKRule, WindowRule

__all__ = ["RULES"]

_RULES: tuple[Rule, ...] = (
    FilterRule(),
    ProjectRule(),
    SelectRule(),
    RenameRule(),
    FlatMapRule(),
    ExpandRule(),
    UnionRule(),
    JoinRule(),
    AggregateRule(),
    WindowRule(),
    TopKRule(),
    ScalarFilterRule(),
)

RULES: Mapping[type[Node], Rule] = {rule.node_type: rule for rule in _RULES}
"""Every node of a query except the leaves and `Unsupported`."""
