"""Plan → delta plan → change: the examples in the docstrings of the rules, as they are computed."""

from __future__ import annotations

from statistics import median

from tautochrone.algebra.nodes import (
    AggregateFunction,
    ColumnId,
    Expand,
    Expression,
    FlatMap,
    JoinKind,
    ScalarFilter,
    Select,
    Union,
)

from .golden import aggregate, call, check_delta_plan, top
from .query_builders import columns_of, expression, join, row_number, scan, where

A = scan("A", "k v")


def test_filter() -> None:
    query = where(A, "v", lambda row: row["v"] > 1)
    check_delta_plan(
        query,
        tables={"A": "a 1\n b 2"},
        changes={"A": "a 1 -1\n b 2 -1\n b 3 +1"},
        plan="""
            Filter v
              ΔA
            """,
        result="b 2 -1\n b 3 +1",
    )


def test_project() -> None:
    check_delta_plan(
        Select(columns=columns_of("k"), child=A),
        tables={"A": "a 1"},
        changes={"A": "a 1 -1\n a 2 +1\n b 3 +1"},
        plan="""
            Select k
              ΔA
            """,
        result="b +1",
    )


def test_flat_map() -> None:
    item = ColumnId("item")
    lists = scan("A", "k list")
    query = FlatMap(
        columns=columns_of("k item"),
        child=lists,
        handle=lambda row: [{item: value} for value in row["list"]],
        passed=columns_of("k"),
        generated=(item,),
    )
    check_delta_plan(
        query,
        tables={"A": "a [1,2]"},
        changes={"A": "a [1,2] -1\n a [2] +1\n b [] +1"},
        plan="""
            FlatMap k, item
              ΔA
            """,
        result="a 1 -1",
    )


def test_expand() -> None:
    null = Expression(lambda row: None, frozenset(), "NULL")
    query = Expand(columns=columns_of("k v"), child=A, projections=((None, None), (null, None)))
    check_delta_plan(
        query,
        tables={"A": "a 1"},
        changes={"A": "a 1 -1\n b 2 +1\n b 3 +1"},
        plan="""
            Expand k, v
              ΔA
            """,
        result="a 1 -1\n NULL 1 -1\n b 2 +1\n NULL 2 +1\n b 3 +1\n NULL 3 +1",
    )


def test_union() -> None:
    query = Union(columns=columns_of("k"), inputs=(scan("A", "k"), scan("B", "k")))
    check_delta_plan(
        query,
        tables={"A": "a", "B": ""},
        changes={"A": "a -1\n b +1", "B": "a +1"},
        plan="""
            Union
              ΔA
              ΔB
            """,
        result="b +1",
    )


def test_inner_join() -> None:
    check_delta_plan(
        join(A, scan("B", "j w"), "k=j"),
        tables={"A": "a 1", "B": "a x"},
        changes={"A": "a 2 +1\n b 3 +1", "B": "a x -1\n b y +1"},
        plan="""
            Union
              Select k, v, j, w
                Join inner (1 key)
                  ΔA
                  KeySemiJoin j = k
                    ScanAtCut B before
                    ΔA
              Select k, v, j, w
                Join inner (1 key)
                  ΔB
                  KeySemiJoin k = j
                    ScanAtCut A after
                    ΔB
            """,
        result="a 1 a x -1\n b 3 b y +1",
    )


def test_multiway_join() -> None:
    """Fact and dimensions as in `multiway_join`."""
    fact = scan("F", "id p q")
    query = join(join(fact, scan("P", "pk pv"), "p=pk"), scan("Q", "qk qv"), "q=qk")
    check_delta_plan(
        query,
        tables={"F": "1 a x\n 2 b x", "P": "a 7", "Q": "x 5"},
        changes={"F": "2 b x -1", "P": "a 7 -1\n a 8 +1", "Q": "y 6 +1"},
        plan="""
            step1 =
            MultiKeySemiJoin q = qk or p = pk
              ScanAtCut F after
              ΔQ
              ΔP
            step2 =
            Union
              Select id, p, q
                ΔF
              WithWeight -1
                step1
            step3 =
            Join inner (1 key)
              step2
              KeySemiJoin pk = p
                ScanAtCut P before
                step2
            step4 =
            WithWeight +1
              step1
            step5 =
            Join inner (1 key)
              step4
              KeySemiJoin pk = p
                ScanAtCut P after
                step4
            Consolidate
              Union
                Select id, p, q, pk, pv, qk, qv
                  Join inner (1 key)
                    step3
                    KeySemiJoin qk = q
                      ScanAtCut Q before
                      step3
                Select id, p, q, pk, pv, qk, qv
                  Join inner (1 key)
                    step5
                    KeySemiJoin qk = q
                      ScanAtCut Q after
                      step5
            """,
        result="1 a x a 7 x 5 -1\n 1 a x a 8 x 5 +1",
    )


def test_left_join() -> None:
    check_delta_plan(
        join(scan("A", "k"), scan("B", "j w"), "k=j", JoinKind.LEFT),
        tables={"A": "a", "B": ""},
        changes={"A": "b +1", "B": "a x +1"},
        plan="""
            step1 =
            KeySemiJoin k = j
              ScanAtCut A before
              ΔB
            Union
              Union
                Select k, j, w
                  Join inner (1 key)
                    ΔA
                    KeySemiJoin j = k
                      ScanAtCut B before
                      ΔA
                Select k, j, w
                  Join inner (1 key)
                    ΔB
                    KeySemiJoin k = j
                      ScanAtCut A after
                      ΔB
              NullExtend j, w
                Union
                  Join anti (1 key)
                    ΔA
                    KeySemiJoin j = k
                      ScanAtCut B after
                      ΔA
                  WithWeight +1
                    Join anti (1 key)
                      step1
                      KeySemiJoin j
                        ScanAtCut B after
                        ΔB
                  WithWeight -1
                    Join anti (1 key)
                      step1
                      KeySemiJoin j
                        ScanAtCut B before
                        ΔB
            """,
        result="a a x +1\n a NULL NULL -1\n b NULL NULL +1",
    )


def test_anti_join() -> None:
    check_delta_plan(
        join(scan("A", "k"), scan("B", "j"), "k=j", JoinKind.ANTI),
        tables={"A": "a\n b", "B": "a"},
        changes={"A": "c +1", "B": "a -1\n b +1"},
        plan="""
            step1 =
            KeySemiJoin k = j
              ScanAtCut A before
              ΔB
            Union
              Join anti (1 key)
                ΔA
                KeySemiJoin j = k
                  ScanAtCut B after
                  ΔA
              WithWeight +1
                Join anti (1 key)
                  step1
                  KeySemiJoin j
                    ScanAtCut B after
                    ΔB
              WithWeight -1
                Join anti (1 key)
                  step1
                  KeySemiJoin j
                    ScanAtCut B before
                    ΔB
            """,
        result="c +1\n a +1\n b -1",
    )


def test_aggregate_with_linear_functions() -> None:
    query = aggregate(A, "k", call(AggregateFunction.SUM, "v", "total values"))
    check_delta_plan(
        query,
        tables={"A": "a 1\n a 2\n b 5"},
        changes={"A": "a 2 -1\n a 3 +1\n b 5 -1"},
        plan="""
            step1 =
            PartialAggregate
              ΔA
            step2 =
            MergeGroups
              KeySemiJoin k
                StateScan of aggregate sum(v) by 1 key
                step1
              step1
            Union
              WithWeight -1
                FinalAggregate sum(v) by 1 key from fresh2, fresh3, fresh4
                  ChangedGroups
                    step2
              WithWeight +1
                FinalAggregate sum(v) by 1 key from n, total, values
                  ChangedGroups
                    step2
            """,
        result="a 3 -1\n a 4 +1\n b 5 -1",
    )


def test_aggregate_that_loses_its_extremum() -> None:
    """Only group `a` is read again: its minimum was deleted."""
    query = aggregate(A, "k", call(AggregateFunction.MIN, "v", "least"))
    check_delta_plan(
        query,
        tables={"A": "a 1\n a 2\n b 5"},
        changes={"A": "a 1 -1\n b 4 +1"},
        plan="""
            step1 =
            PartialAggregate
              ΔA
            step2 =
            MergeGroups
              KeySemiJoin k
                StateScan of aggregate min(v) by 1 key
                step1
              step1
            step3 =
            FlagFilter fresh4
              step2
            step4 =
            Union
              Select k, fresh2, fresh3, n, least
                FlagFilter not fresh4
                  step2
              Select k, fresh2, fresh3, n, least
                Join left (1 key)
                  Select k, fresh2, fresh3
                    step3
                  Rename fresh6, n, least
                    Select k, n, least
                      PartialAggregate
                        WithWeight +1
                          KeySemiJoin k
                            ScanAtCut A after
                            step3
            Union
              WithWeight -1
                FinalAggregate min(v) by 1 key from fresh2, fresh3
                  ChangedGroups
                    step4
              WithWeight +1
                FinalAggregate min(v) by 1 key from n, least
                  ChangedGroups
                    step4
            """,
        result="a 1 -1\n a 2 +1\n b 5 -1\n b 4 +1",
    )


def test_aggregate_that_cannot_be_merged() -> None:
    query = aggregate(
        A, "k", call(AggregateFunction.OTHER, "v", handle=lambda rows: median(row["v"] for row in rows))
    )
    check_delta_plan(
        query,
        tables={"A": "a 1\n a 5\n b 6"},
        changes={"A": "a 9 +1"},
        plan="""
            Union
              WithWeight +1
                Aggregate other(v) by 1 key
                  KeySemiJoin k
                    ScanAtCut A after
                    ΔA
              WithWeight -1
                Aggregate other(v) by 1 key
                  KeySemiJoin k
                    ScanAtCut A before
                    ΔA
            """,
        result="a 3 -1\n a 5 +1",
    )


def test_window() -> None:
    check_delta_plan(
        row_number(A, "k", "v"),
        tables={"A": "a 5\n b 6"},
        changes={"A": "a 1 +1"},
        plan="""
            Union
              WithWeight +1
                Window
                  KeySemiJoin k
                    ScanAtCut A after
                    ΔA
              WithWeight -1
                Window
                  KeySemiJoin k
                    ScanAtCut A before
                    ΔA
            """,
        result="a 5 1 -1\n a 1 1 +1\n a 5 2 +1",
    )


def test_top_k() -> None:
    check_delta_plan(
        top(A, "v", limit=2),
        tables={"A": "a 1\n b 3\n c 5"},
        changes={"A": "a 1 -1\n d 4 +1"},
        plan="""
            step1 =
            StateScan of top 2
            step2 =
            MergeTopK
              step1
              ΔA
            Union
              WithWeight -1
                TopK 2
                  Select k, v
                    step1
              WithWeight +1
                TopK 2
                  Select k, v
                    step2
            """,
        result="a 1 -1\n d 4 +1",
    )


def test_scalar_filter() -> None:
    average = aggregate(scan("B", "w"), "", call(AggregateFunction.AVERAGE, "w", "total values"))
    query = ScalarFilter(
        columns=A.columns,
        child=A,
        scalars=(average,),
        condition=expression("v avg", lambda row: row["v"] > row["avg"]),
    )
    check_delta_plan(
        query,
        tables={"A": "a 1\n b 3\n c 5", "B": "4"},
        changes={"A": "d 9 +1", "B": "0 +1"},
        plan="""
            step1 =
            PartialAggregate
              ΔB
            step2 =
            MergeGroups
              StateScan of aggregate avg(w)
              step1
            step3 =
            Select n, total, values
              step2
            step4 =
            FinalAggregate avg(w) from n, total, values
              step3
            step5 =
            Consolidate
              Union
                WithWeight -1
                  FinalAggregate avg(w) from fresh2, fresh3, fresh4
                    step2
                WithWeight +1
                  FinalAggregate avg(w) from n, total, values
                    step2
            step6 =
            FinalAggregate avg(w) from n, total, values
              StateScan of aggregate avg(w)
            Union
              Select k, v
                Filter v avg
                  Join scalar (0 keys)
                    ΔA
                    step4
              PredicateChange
                ScanAtCut A before
                step6
                step4
            """,
        result="d 9 +1\n b 3 +1",
    )
