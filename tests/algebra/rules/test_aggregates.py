"""Plan → delta plan → change: the examples in the docstrings of the rules of aggregates."""

from __future__ import annotations

from statistics import median

from tests.algebra.golden import aggregate, call, check_delta_plan
from tests.algebra.query_builders import scan

from tautochrone.algebra.nodes import AggregateFunction

A = scan("A", "k v")


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
