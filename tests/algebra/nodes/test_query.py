"""What nodes of a query say of themselves: bounds of rows, origins of keys, parts that work row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.algebra.query_builders import (
    call,
    columns_of,
    expression,
    first,
    group,
    join,
    row_number,
    scan,
    where,
)

from tautochrone.algebra.nodes import (
    AggregateFunction,
    JoinKind,
    Materialized,
    Node,
    Project,
    Rename,
    Select,
    Union,
    inner_join_of,
    row_wise_parts,
    stateful_nodes,
)

A = scan("A", "k v")
B = scan("B", "j w")
COUNT = call(AggregateFunction.COUNT, "v")


def test_whether_a_changed_row_may_meet_many() -> None:
    def multiplies(plan: Node) -> bool:
        return plan.may_multiply(lambda leaf: leaf is A)

    joined = join(A, B, "k=j")
    assert not multiplies(where(A, "k", bool))
    assert not multiplies(join(A, A, "k=k"))
    assert multiplies(joined)
    assert not multiplies(join(A, B, "k=j", JoinKind.SEMI))
    assert multiplies(join(B, A, "j=k", JoinKind.SEMI))
    assert multiplies(group(joined, "k", COUNT))
    assert not multiplies(group(joined, "", COUNT))
    assert not multiplies(first(joined, "k", 3))


def materialized(rows: int) -> Materialized:
    return Materialized(columns=A.columns, handle=None, rows=rows)


def test_row_wise_parts_are_below_the_union() -> None:
    left, right = materialized(1), materialized(2)
    query = where(Union(columns=A.columns, inputs=(left, right)), "v", bool)
    parts = row_wise_parts(query)
    assert parts is not None
    assert [part.children for part in parts] == [(left,), (right,)]


def test_groups_have_no_row_wise_parts() -> None:
    assert row_wise_parts(group(materialized(1), "k", COUNT)) is None
    assert row_wise_parts(Union(columns=A.columns, inputs=(materialized(1), A))) is None


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (where(materialized(3), "v", bool), 3),
        (group(materialized(3), "k", COUNT), 3),
        (group(A, "", COUNT), 1),
        (first(A, "v", 2), 2),
        (A, None),
    ],
)
def test_bound_of_rows(query: Node, rows: int | None) -> None:
    assert query.max_rows(lambda leaf: leaf.rows if isinstance(leaf, Materialized) else None) == rows


def test_keys_come_from_the_child_where_groups_or_partitions_have_them() -> None:
    k, v = columns_of("k v")
    assert where(A, "v", bool).key_origin == {k: k, v: v}
    assert group(A, "k", COUNT).key_origin == {k: k}
    assert row_number(A, "k", "v").key_origin == {k: k}


def test_references_are_the_columns_that_a_node_reads() -> None:
    k, v, j = columns_of("k v j")
    passed = Project(columns=(k, j), child=A, expressions=(None, expression("v", lambda row: row[v])))
    assert passed.references == {k, v}
    assert where(A, "v", bool).references == {v}
    assert Rename(columns=(j,), child=A, sources=(k,)).references == {k}
    assert join(A, B, "k=j").references == {k, j}
    assert row_number(A, "k", "v").references == {k, v}
    assert A.references == frozenset()


def test_inner_joins_are_differentiated_as_one() -> None:
    third = scan("C", "c")
    below = Select(columns=columns_of("k j"), child=join(A, B, "k=j"))
    assert list(join(below, third, "j=c").differentiated) == [A, B, third]
    assert list(join(below, third, "j=c", JoinKind.LEFT).differentiated) == [below, third]


def test_inner_join_of_sees_through_selected_columns() -> None:
    inner, left = join(A, B, "k=j"), join(A, B, "k=j", JoinKind.LEFT)
    assert inner_join_of(Select(columns=columns_of("k"), child=inner)) is inner
    assert inner_join_of(left) is None


def test_stateful_nodes_come_parents_first() -> None:
    groups = group(A, "k", COUNT)
    median = replace(groups, calls=(call(AggregateFunction.OTHER, "v"),))
    top = first(groups, "k", 1)
    assert stateful_nodes(top) == [top, groups]
    assert stateful_nodes(median) == []


def test_state_of_groups_has_keys_and_a_buffer_has_none() -> None:
    groups, top = group(A, "k", COUNT), first(A, "v", 1)
    assert (groups.is_buffer, groups.state_keys) == (False, columns_of("k"))
    assert groups.state_columns[:2] == (*columns_of("k"), groups.count)
    assert (top.is_buffer, top.state_keys) == (True, ())
    assert top.state_columns == (*columns_of("k v"), top.complete)
