"""Plan → delta plan → change: the examples in the docstrings of the rules of row-wise operators."""

from __future__ import annotations

from tests.algebra.golden import check_delta_plan
from tests.algebra.query_builders import columns_of, scan, where

from tautochrone.algebra.nodes import ColumnId, Expand, Expression, FlatMap, Select, Union

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
