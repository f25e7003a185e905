"""Which input is joined next, which one is joined with all others, and where rows are selected by key."""

from __future__ import annotations

from dataclasses import dataclass

from tests.algebra.query_builders import group, join, scan, where

from tautochrone.algebra.join_graph import join_graph_of
from tautochrone.algebra.nodes import ColumnId, KeySemiJoin, Materialized, Node, Scan, walk
from tautochrone.algebra.strategy import Strategy


@dataclass(frozen=True)
class ByTable:
    """Sizes of tables by their names."""

    few: str = ""
    many: str = ""

    def reads_few_rows(self, node: Node) -> bool:
        return all(leaf.table in self.few for leaf in walk(node) if isinstance(leaf, Scan))

    def reads_many_rows(self, node: Node) -> bool:
        return any(leaf.table in self.many for leaf in walk(node) if isinstance(leaf, Scan))


F, D, E, G = (scan(table, f"{table}1 {table}2") for table in "fdeg")
STAR = join_graph_of(join(join(F, D, "f1=d1"), E, "f2=e1"))


def test_small_inputs_are_joined_before_large_ones() -> None:
    assert Strategy(ByTable()).next_input(STAR, F, [1, 2]) == 1
    assert Strategy(ByTable(many="d")).next_input(STAR, F, [1, 2]) == 2


def test_inputs_that_no_key_leads_to_are_joined_last() -> None:
    crossed = join_graph_of(join(join(F, G), D, "f1=d1"))
    assert Strategy(ByTable(many="d")).next_input(crossed, F, [1, 2]) == 2


def test_root_is_the_largest_input_or_the_one_with_most_keys() -> None:
    assert Strategy(ByTable()).root(STAR) == 0
    assert Strategy(ByTable(many="e")).root(STAR) == 2
    assert Strategy(ByTable(few="f")).root(STAR) == 1


def test_keys_are_looked_up_in_tables_that_are_not_small() -> None:
    keys = Materialized(columns=(ColumnId("k"),), handle=[], rows=1)
    groups = group(where(F, "f2", bool), "f1")
    pairs = [(ColumnId("f1"), ColumnId("k"))]
    plan = Strategy(ByTable()).with_keys(groups, keys, pairs)
    assert [type(node).__name__ for node in walk(plan)][:4] == ["Aggregate", "Filter", "KeySemiJoin", "Scan"]
    whole = Strategy(ByTable(few="f")).with_keys(groups, keys, pairs)
    assert isinstance(whole, KeySemiJoin)
    assert whole.child is groups
    assert Strategy(ByTable(few="f")).partners(groups, keys, pairs, ()) is groups
