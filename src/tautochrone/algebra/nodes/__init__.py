"""Queries as trees of small nodes, and the same nodes again as the queries that compute a change.

Columns are ids, unique in a plan: a node that passes a column on keeps its id, so an expression of the
engine means the same wherever its columns are there. Both sides of a join have disjoint ids. Scalar
expressions are the engine's own and stay opaque here; only what they read is known.

A *bag* is a relation with duplicates. A *signed* bag has one more column, `WEIGHT`: +1 for a row that is
there, -1 for one that is not. Nothing in this package knows Spark.
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
    PartialAggregate,
    PredicateChange,
    StateScan,
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
    ScalarFilter,
    Select,
    TopK,
    Union,
    Unsupported,
    Window,
    inner_join_of,
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
    "PartialAggregate",
    "PredicateChange",
    "Project",
    "Rename",
    "ScalarFilter",
    "Scan",
    "ScanAtCut",
    "Select",
    "StateScan",
    "TopK",
    "Unary",
    "Union",
    "Unsupported",
    "Window",
    "WithWeight",
    "inner_join_of",
    "walk",
]
