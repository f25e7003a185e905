"""Bug classes of other systems, 1, 2, 7, 14, 15, 20, 21: joins and inputs. All of them: `README.md`."""

from __future__ import annotations

import pytest

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
from tautochrone.algebra.rules.union import sum_changes
from tautochrone.errors import RefreshError
from tautochrone.testing.plan_evaluator import PlanEvaluator

from .small import bag, call, cols, expression, first, group, join, row_number, scan, where
from .world import View, applied

COUNT, SUM, MAX = AggregateFunction.COUNT, AggregateFunction.SUM, AggregateFunction.MAX
L, R = scan("l", "k a"), scan("r", "j b")


class DoubleCounting:
    """The classic mistake: ΔL⋈R₁ + L₁⋈ΔR."""

    evaluate = RULES[Join].evaluate
    mode = RULES[Join].mode

    def change(self, node: Join, at: Differentiator) -> Change:
        changes = []
        for left, right in (
            (at.change(node.left).plan, at.rows_after(node.right)),
            (at.rows_after(node.left), at.change(node.right).plan),
        ):
            if left is not None and right is not None:
                columns = (*left.columns, *right.columns)
                plan = Join(columns=columns, left=left, right=right, kind=node.kind, keys=node.keys)
                changes.append(Change(plan, insert_only=False))
        return sum_changes(node.columns, changes)


BOTH_SIDES = {"l": [((1, "new"), 1), ((1, "old"), -1)], "r": [((1, "R2"), 1), ((1, "R1"), -1)]}


def test_01_both_sides_of_a_join_change_at_once() -> None:
    view = View(join(L, R, "k=j"), {"l": [(1, "old"), (1, "same")], "r": [(1, "R1")]})
    view.refresh(BOTH_SIDES)
    assert view.rows == bag((1, "new", 1, "R2"), (1, "same", 1, "R2"))


def test_01_the_check_sees_double_counting() -> None:
    wrong = {**RULES, Join: DoubleCounting()}
    view = View(join(L, R, "k=j"), {"l": [(1, "old"), (1, "same")], "r": [(1, "R1")]}, wrong)
    with pytest.raises(AssertionError):
        view.refresh(BOTH_SIDES)


@pytest.mark.parametrize("without", [(), "all"])
def test_01_nested_joins_of_aggregates_with_every_input_changing(without: tuple[int, ...] | str) -> None:
    """Old and new rows of a join below a join must not be mixed, whether read from a state or not."""
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
def test_02_the_last_partner_goes_while_left_rows_change_too(kind: JoinKind) -> None:
    """A left row that had partners only at the old cut must be taken back, one that is new must not."""
    view = View(join(L, R, "k=j", kind), {"l": [(1, "a"), (1, "a"), (2, "b")], "r": [(1, "x"), (1, "y")]})
    view.refresh({"r": [((1, "x"), -1)]})
    view.refresh({"l": [((1, "a"), -1), ((1, "c"), 1)], "r": [((1, "y"), -1), ((2, "z"), 1)]})
    alone, partnered = [(1, "a"), (1, "c")], [(2, "b")]
    expected = {
        JoinKind.SEMI: partnered,
        JoinKind.ANTI: alone,
        JoinKind.EXISTENCE: [*((*row, False) for row in alone), (2, "b", True)],
    }.get(kind, [*((*row, None, None) for row in alone), (2, "b", 2, "z")])
    assert view.rows == bag(*expected)
    view.refresh({"l": [((1, "c"), -1), ((2, "b"), -1)], "r": [((1, "x"), 1)]})


def test_02_a_full_join_pads_both_sides_when_partners_part() -> None:
    view = View(join(L, R, "k=j", JoinKind.FULL), {"l": [(1, "a")], "r": [(1, "x")]})
    view.refresh({"l": [((1, "a"), -1), ((2, "a"), 1)]})
    assert view.rows == bag((2, "a", None, None), (None, None, 1, "x"))


def test_02_what_else_the_condition_asks_counts_as_partnership() -> None:
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


def test_07_not_in_with_nulls_that_come_and_go() -> None:
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


def test_07_counts_of_nothing_are_zero_after_decorrelation() -> None:
    """`(SELECT count(*) FROM r WHERE j = k)` is a left join with groups; without rows it is 0, not NULL."""
    counts = group(R, "j", call(COUNT))
    joined = join(L, counts, "k=j", JoinKind.LEFT)
    number = counts.columns[1]
    zero = expression(number, lambda row: row[number] or 0)
    query = Project(columns=cols("k n"), child=joined, expressions=(None, zero))
    view = View(query, {"l": [(1, 0), (2, 0)], "r": [(1, 0), (1, 0)]})
    assert view.rows == bag((1, 2), (2, 0))
    view.refresh({"r": [((1, 0), -1), ((1, 0), -1), ((2, 0), 1)]})
    assert view.rows == bag((1, 0), (2, 1))


def test_07_a_scalar_subquery_that_comes_to_two_rows_is_an_error() -> None:
    tables = {"l": [(1, 1)], "r": [(1, 0)]}
    query = ScalarFilter(
        columns=L.columns, child=L, scalars=(R,), condition=expression("a b", lambda row: row["a"] > row["b"])
    )
    with pytest.raises(RefreshError, match="More than one row"):
        View(query, tables).refresh({"r": [((2, 0), 1)]})
    with pytest.raises((RefreshError, ValueError), match="ore than one row"):
        View(join(L, R, kind=JoinKind.SCALAR), tables).refresh({"r": [((2, 0), 1)]})


def test_14_a_feed_of_whole_files_is_no_change() -> None:
    """Copy-on-write gives each row of a file with both signs: nothing may come of it, above anything."""
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


def test_15_two_ways_from_one_input_meet_at_one_cut() -> None:
    """The diamond: an input, its sum and its rows are joined; each side must see the same old and new cut."""
    rows = scan("l", "k a")
    sums = group(scan("l", "k2 a2"), "k2", call(SUM, "a2"))
    most = group(scan("l", "k3 a3"), "k3", call(MAX, "a3"))
    share = join(join(rows, sums, "k=k2"), most, "k=k3")
    view = View(share, {"l": [(1, 1), (1, 2)]})
    view.refresh({"l": [((1, 2), -1), ((1, 5), 1)]})
    assert view.rows == bag((1, 1, 1, 6, 1, 5), (1, 5, 1, 6, 1, 5))
    twice = Union(columns=cols("k"), inputs=(Select(columns=cols("k"), child=scan("l", "k a")),) * 2)
    view = View(twice, {"l": [(1, 1)]})
    view.refresh({"l": [((1, 1), -1), ((2, 1), 1)]})
    assert view.rows == bag((2,), (2,))


@pytest.mark.parametrize("kind", [JoinKind.LEFT, JoinKind.FULL, JoinKind.INNER])
def test_20_nested_joins_do_not_blow_up(kind: JoinKind) -> None:
    """Three times the joins: nine to thirty times the plans that are run. Doubling with each would be 256."""

    class Measuring(PlanEvaluator):
        size = 0

        def materialize(self, plan: Node, *, may_be_large: bool = False) -> Materialized:
            type(self).size += len(walk(plan))
            return super().materialize(plan, may_be_large=may_be_large)

    def size(number: int) -> int:
        query: Node = scan("t0", "a0 b0")
        for place in range(1, number + 1):
            query = join(query, scan(f"t{place}", f"a{place} b{place}"), f"a{place - 1}=a{place}", kind)
        old = {f"t{place}": [(0, 0), (1, place)] for place in range(number + 1)}
        step = {table: [((2, 9), 1), ((0, 0), -1)] for table in old}
        Measuring.size = 0
        engine = Measuring(before=old, after=applied(old, step), changes=step, rules=RULES)
        assert Differentiator(engine, RULES).materialized_change(query, consolidated=True)
        return Measuring.size

    assert size(12) <= 40 * size(4)


def test_21_columns_that_nobody_reads_and_that_were_not_there() -> None:
    """A column added, or changed, beside those that a query reads is no change; one NULL more on the right
    side of an outer join is."""
    pruned = join(scan("l", "k", [0]), scan("r", "b j", [1, 0]), "k=j", JoinKind.LEFT)
    view = View(pruned, {"l": [(1, "x", 0)], "r": [(1, 0)]})
    at = view.refresh({"l": [((1, "x", 0), -1), ((1, "y", 1), 1)]})
    assert not view.changes[-1]
    assert all(ColumnId("a") not in node.columns for node in walk(at.rows_after(pruned)))
    view.refresh({"r": [((1, 0), -1), ((1, None), 1)]})
    assert view.rows == bag((1, None, 1))
