"""Queries as trees of small nodes, and the nodes of the plans that compute their changes.

Columns are ids, unique in a plan: a node that passes a column on keeps its id, so an expression of the engine
means the same wherever its columns exist. The sides of a join have disjoint ids. Scalar expressions belong to
the engine and stay opaque here; only the columns that they read are known.

A *bag* is a relation with duplicates. A *Z-set* is a bag with one more column, `WEIGHT`: +1 for a row that is
there (or was inserted), -1 for one that was deleted.

To add an operator: a node in `query`, with the methods of `Node` that apply to it, and a rule in `rules`.
"""

from __future__ import annotations

from tautochrone.algebra.nodes.base import (
    WEIGHT,
    ColumnId,
    Constant,
    CutSide,
    Expression,
    Materialized,
    Node,
    Scan,
    ScanAtCut,
    Unary,
    plural,
    walk,
)
from tautochrone.algebra.nodes.derived import (
    ChangedGroups,
    Consolidate,
    FinalAggregate,
    FlagFilter,
    KeySemiJoin,
    MergeGroups,
    MergeTopK,
    MultiKeySemiJoin,
    NullExtend,
    OrderedFrom,
    PartialAggregate,
    PredicateChange,
    StateScan,
    Totals,
    WithWeight,
)
from tautochrone.algebra.nodes.query import (
    MERGE_FUNCTIONS,
    Aggregate,
    AggregateCall,
    AggregateFunction,
    Expand,
    Filter,
    FlatMap,
    Join,
    JoinKey,
    JoinKind,
    Project,
    Rename,
    RunningTotals,
    ScalarFilter,
    Select,
    TopK,
    Union,
    Unsupported,
    Window,
    inner_join_of,
    stateful_nodes,
)

__all__ = [
    "MERGE_FUNCTIONS",
    "WEIGHT",
    "Aggregate",
    "AggregateCall",
    "AggregateFunction",
    "ChangedGroups",
    "ColumnId",
    "Consolidate",
    "Constant",
    "CutSide",
    "Expand",
    "Expression",
    "Filter",
    "FinalAggregate",
    "FlagFilter",
    "FlatMap",
    "Join",
    "JoinKey",
    "JoinKind",
    "KeySemiJoin",
    "Materialized",
    "MergeGroups",
    "MergeTopK",
    "MultiKeySemiJoin",
    "Node",
    "NullExtend",
    "OrderedFrom",
    "PartialAggregate",
    "PredicateChange",
    "Project",
    "Rename",
    "RunningTotals",
    "ScalarFilter",
    "Scan",
    "ScanAtCut",
    "Select",
    "StateScan",
    "TopK",
    "Totals",
    "Unary",
    "Union",
    "Unsupported",
    "Window",
    "WithWeight",
    "inner_join_of",
    "plural",
    "stateful_nodes",
    "walk",
]
