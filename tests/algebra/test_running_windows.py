"""The delta plan of a window without partitions that goes on from earlier rows."""

from __future__ import annotations

from .golden import check_delta_plan
from .query_builders import continued_row_number, scan

A = scan("A", "k v")


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
