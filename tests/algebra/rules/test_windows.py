"""Plan → delta plan → change: the examples in the docstrings of the rules of windows and limits."""

from __future__ import annotations

from tests.algebra.golden import check_delta_plan, top
from tests.algebra.query_builders import continued_row_number, row_number, scan

A = scan("A", "k v")


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


def test_window_without_partitions() -> None:
    check_delta_plan(
        continued_row_number(A, "v"),
        tables={"A": "a 5\n b 6\n c 8"},
        changes={"A": "d 7 +1"},
        plan="""
            step1 =
            Rename fresh1
              TopK 1
                Select v
                  ΔA
            step2 =
            Totals
              OrderedFrom v before fresh1
                ScanAtCut A before
                step1
            Union
              WithWeight +1
                Project k, v, row_number
                  Join scalar (0 keys)
                    Window
                      OrderedFrom v from fresh1
                        ScanAtCut A after
                        step1
                    step2
              WithWeight -1
                Project k, v, row_number
                  Join scalar (0 keys)
                    Window
                      OrderedFrom v from fresh1
                        ScanAtCut A before
                        step1
                    step2
            """,
        result="c 8 3 -1\n d 7 3 +1\n c 8 4 +1",
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
