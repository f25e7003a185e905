"""Plan → delta plan → change: the examples in the docstrings of the rules of joins."""

from __future__ import annotations

from tests.algebra.golden import aggregate, call, check_delta_plan
from tests.algebra.query_builders import expression, join, scan

from tautochrone.algebra.nodes import AggregateFunction, JoinKind, ScalarFilter

A = scan("A", "k v")


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
