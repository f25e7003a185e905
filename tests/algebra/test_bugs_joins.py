"""Bug classes of other systems, 1, 2, 7, 14, 15, 20, 21: joins and inputs. `README.md` has all."""

from __future__ import annotations

import pytest
from tests.support.plan_evaluator import PlanEvaluator

from tautochrone.algebra.delta import Change, Differentiator
from tautochrone.algebra.nodes import (
    AggregateFunction,
    ColumnId,
    Join,
    JoinKind,
    Materialized,
    Node,
    Project,
    ScalarFilter,
    Select,
    Union,
    walk,
)
from tautochrone.algebra.rules import RULES
from tautochrone.algebra.rules.row_wise import sum_changes
from tautochrone.errors import RefreshError

from .incremental_view import View, with_changes
from .query_builders import bag, call, columns_of, expression, first, group, join, row_number, scan, where

COUNT, SUM, MAX = AggregateFunction.COUNT, AggregateFunction.SUM, AggregateFunction.MAX
L, R = scan("l", "k a"), scan("r", "j b")


class DoubleCounting:
    """The classic mistake: ΔL ⋈ R_after + L_after ⋈ ΔR."""

    evaluate = RULES[Join].evaluate
    mode = RULES[Join].mode

    def change(self, node: Join, context: Differentiator) -> Change:
        changes = []
        for left, right in (
            (context.change(node.left).plan, context.rows_after(node.right)),
            (context.rows_after(node.left), context.change(node.right).plan),
        ):
            if left is not None and right is not None:
                columns = (*left.columns, *right.columns)
                plan = Join(columns=columns, left=left, right=right, kind=node.kind, keys=node.keys)
                changes.append(Change(plan, insert_only=False))
        return sum_changes(node.columns, changes)


BOTH_SIDES = {"l": [((1, "new"), 1), ((1, "old"), -1)], "r": [((1, "R2"), 1), ((1, "R1"), -1)]}


def test_01_both_sides_of_a_join_change() -> None:
    view = View(join(L, R, "k=j"), {"l": [(1, "old"), (1, "same")], "r": [(1, "R1")]})
    view.refresh(BOTH_SIDES)
    assert view.rows == bag((1, "new", 1, "R2"), (1, "same", 1, "R2"))


def test_01_check_detects_double_counting() -> None:
    wrong = {**RULES, Join: DoubleCounting()}
    view = View(join(L, R, "k=j"), {"l": [(1, "old"), (1, "same")], "r": [(1, "R1")]}, wrong)
    with pytest.raises(AssertionError):
        view.refresh(BOTH_SIDES)


@pytest.mark.parametrize("without", [(), "all"])
def test_01_nested_joins_of_aggregates_with_all_inputs_changing(without: tuple[int, ...] | str) -> None:
    """Rows before and after of a join below a join are not mixed, whether read from a state or not."""
    sums = group(scan("r", "j b"), "j", call(SUM, "b"))
    inner = join(join(scan("l", "k a"), sums, "k=j"), scan("l", "k2 a2"), "k=k2")
    outer = join(inner, where(scan("r", "j3 b3"), "b3", lambda row: row["b3"] > 1), "k=j3")
    view = View(outer, {"l": [(1, 1), (1, 2), (2, 1)], "r": [(1, 1), (1, 2), (2, 2)]})
    for step in (
        {"l": [((1, 2), -1), ((2, 5), 1)], "r": [((1, 2), -1), ((1, 4), 1), ((2, 2), -1)]},
        {"l": [((1, 1), -1), ((1, 1), 1)], "r": [((2, 3), 1), ((2, 3), 1)]},
    ):
        view.refresh(step, without=[sums.number] if without else [])
    assert view.rows[(2, 5, 2, 6, 2, 1, 2, 3)] == 2


@pytest.mark.parametrize(
    "kind", [JoinKind.SEMI, JoinKind.ANTI, JoinKind.LEFT, JoinKind.FULL, JoinKind.EXISTENCE]
)
def test_02_last_partner_is_deleted_while_left_rows_change(kind: JoinKind) -> None:
    """A left row that had partners only before is retracted, a new left row is not."""
    view = View(join(L, R, "k=j", kind), {"l": [(1, "a"), (1, "a"), (2, "b")], "r": [(1, "x"), (1, "y")]})
    view.refresh({"r": [((1, "x"), -1)]})
    view.refresh({"l": [((1, "a"), -1), ((1, "c"), 1)], "r": [((1, "y"), -1), ((2, "z"), 1)]})
    unmatched, matched = [(1, "a"), (1, "c")], [(2, "b")]
    expected = {
        JoinKind.SEMI: matched,
        JoinKind.ANTI: unmatched,
        JoinKind.EXISTENCE: [*((*row, False) for row in unmatched), (2, "b", True)],
    }.get(kind, [*((*row, None, None) for row in unmatched), (2, "b", 2, "z")])
    assert view.rows == bag(*expected)
    view.refresh({"l": [((1, "c"), -1), ((2, "b"), -1)], "r": [((1, "x"), 1)]})


def test_02_full_join_extends_both_sides_with_nulls() -> None:
    view = View(join(L, R, "k=j", JoinKind.FULL), {"l": [(1, "a")], "r": [(1, "x")]})
    view.refresh({"l": [((1, "a"), -1), ((2, "a"), 1)]})
    assert view.rows == bag((2, "a", None, None), (None, None, 1, "x"))


def test_02_residual_condition_decides_about_partners() -> None:
    less = expression(
        "a b", lambda row: None if row["a"] is None or row["b"] is None else row["a"] < row["b"]
    )
    view = View(join(L, R, "k=j", JoinKind.LEFT, less), {"l": [(1, 5), (1, None)], "r": [(1, 3)]})
    assert view.rows == bag((1, 5, None, None), (1, None, None, None))
    view.refresh({"r": [((1, 3), -1), ((1, 7), 1)]})
    assert view.rows == bag((1, 5, 1, 7), (1, None, None, None))


def not_in() -> Node:
    unknown = expression("a b", lambda row: row["a"] is None or row["b"] is None or row["a"] == row["b"])
    return join(L, R, kind=JoinKind.ANTI, condition=unknown)


def test_07_not_in_with_inserted_and_deleted_nulls() -> None:
    view = View(not_in(), {"l": [(1, 1), (2, 2), (3, None)], "r": []})
    assert view.rows == bag((1, 1), (2, 2), (3, None))
    view.refresh({"r": [((0, 1), 1)]})
    assert view.rows == bag((2, 2))
    view.refresh({"r": [((0, None), 1)], "l": [((4, 4), 1)]})
    assert view.rows == bag()
    view.refresh({"r": [((0, None), -1)]})
    assert view.rows == bag((2, 2), (4, 4))
    view.refresh({"r": [((0, 1), -1)], "l": [((2, 2), -1)]})
    assert view.rows == bag((1, 1), (3, None), (4, 4))


def test_07_decorrelated_count_without_rows_is_zero() -> None:
    """`(SELECT count(*) FROM r WHERE j = k)` becomes a left join with groups; it is 0, not NULL."""
    counts = group(R, "j", call(COUNT))
    joined = join(L, counts, "k=j", JoinKind.LEFT)
    number = counts.columns[1]
    zero = expression(number, lambda row: row[number] or 0)
    query = Project(columns=columns_of("k n"), child=joined, expressions=(None, zero))
    view = View(query, {"l": [(1, 0), (2, 0)], "r": [(1, 0), (1, 0)]})
    assert view.rows == bag((1, 2), (2, 0))
    view.refresh({"r": [((1, 0), -1), ((1, 0), -1), ((2, 0), 1)]})
    assert view.rows == bag((1, 0), (2, 1))


def test_07_scalar_subquery_with_two_rows_fails() -> None:
    tables = {"l": [(1, 1)], "r": [(1, 0)]}
    query = ScalarFilter(
        columns=L.columns, child=L, scalars=(R,), condition=expression("a b", lambda row: row["a"] > row["b"])
    )
    with pytest.raises(RefreshError, match="More than one row"):
        View(query, tables).refresh({"r": [((2, 0), 1)]})
    with pytest.raises((RefreshError, ValueError), match="ore than one row"):
        View(join(L, R, kind=JoinKind.SCALAR), tables).refresh({"r": [((2, 0), 1)]})


def test_14_rewritten_files_are_no_change() -> None:
    """Copy-on-write gives each row of a file with both weights. No query may see a change in it."""
    tables = {"l": [(1, 1), (2, 2)], "r": [(1, 1), (1, 1)]}
    rewritten = {name: [(row, sign) for row in rows for sign in (1, -1)] for name, rows in tables.items()}
    queries = [
        join(L, R, "k=j", JoinKind.FULL),
        group(L, "k", call(MAX, "a")),
        row_number(L, "k", "a"),
        first(L, "a", 1),
        join(group(L, "k", call(SUM, "a")), R, "k=j", JoinKind.ANTI),
    ]
    for query in queries:
        view = View(query, tables)
        view.refresh(rewritten)
        assert not view.changes[-1]


def test_15_diamond_reads_one_cut() -> None:
    """An input, its sum and its maximum are joined: all sides must see the same two cuts."""
    rows = scan("l", "k a")
    sums = group(scan("l", "k2 a2"), "k2", call(SUM, "a2"))
    largest = group(scan("l", "k3 a3"), "k3", call(MAX, "a3"))
    share = join(join(rows, sums, "k=k2"), largest, "k=k3")
    view = View(share, {"l": [(1, 1), (1, 2)]})
    view.refresh({"l": [((1, 2), -1), ((1, 5), 1)]})
    assert view.rows == bag((1, 1, 1, 6, 1, 5), (1, 5, 1, 6, 1, 5))
    union = Union(
        columns=columns_of("k"), inputs=(Select(columns=columns_of("k"), child=scan("l", "k a")),) * 2
    )
    view = View(union, {"l": [(1, 1)]})
    view.refresh({"l": [((1, 1), -1), ((2, 1), 1)]})
    assert view.rows == bag((2,), (2,))


@pytest.mark.parametrize("kind", [JoinKind.LEFT, JoinKind.FULL, JoinKind.INNER])
def test_20_plans_of_nested_joins_grow_slowly(kind: JoinKind) -> None:
    """Three times the joins make nine to thirty times the plan nodes. Doubling with each would make 256."""

    class NodeCounter(PlanEvaluator):
        size = 0

        def materialize(self, plan: Node, *, may_be_large: bool = False) -> Materialized:
            type(self).size += len(walk(plan))
            return super().materialize(plan, may_be_large=may_be_large)

    def size(number: int) -> int:
        query: Node = scan("t0", "a0 b0")
        for i in range(1, number + 1):
            query = join(query, scan(f"t{i}", f"a{i} b{i}"), f"a{i - 1}=a{i}", kind)
        before = {f"t{i}": [(0, 0), (1, i)] for i in range(number + 1)}
        step = {table: [((2, 9), 1), ((0, 0), -1)] for table in before}
        NodeCounter.size = 0
        engine = NodeCounter(before=before, after=with_changes(before, step), changes=step, rules=RULES)
        assert Differentiator(engine, RULES).materialized_change(query, consolidated=True)
        return NodeCounter.size

    assert size(12) <= 40 * size(4)


def test_21_change_of_unread_columns_is_no_change() -> None:
    """A new or changed column that the query does not read is no change; a further NULL on the right side of
    an outer join is one."""
    pruned = join(scan("l", "k", [0]), scan("r", "b j", [1, 0]), "k=j", JoinKind.LEFT)
    view = View(pruned, {"l": [(1, "x", 0)], "r": [(1, 0)]})
    context = view.refresh({"l": [((1, "x", 0), -1), ((1, "y", 1), 1)]})
    assert not view.changes[-1]
    assert all(ColumnId("a") not in node.columns for node in walk(context.rows_after(pruned)))
    view.refresh({"r": [((1, 0), -1), ((1, None), 1)]})
    assert view.rows == bag((1, None, 1))
