"""How the plans of the rules are computed, apart from what they compute: what is read by key, in which order
inputs are joined, and where another step pays.

Each answer is about cost: with any other one a plan gives the same rows. So the tests give random answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tautochrone.algebra.join_graph import JoinGraph
from tautochrone.algebra.nodes import ColumnId, JoinKey, KeySemiJoin, Node
from tautochrone.algebra.pushdown import Sizes, push_down_keys

__all__ = ["Strategy"]

_MIN_CHANGED_INPUTS = 3
_KeyPairs = Sequence[tuple[ColumnId, ColumnId]]


@dataclass(frozen=True, slots=True)
class Strategy:
    """The strategy of one refresh."""

    sizes: Sizes

    def reads_few_rows(self, *plans: Node) -> bool:
        """Whether plans read so few rows that to know more before they are computed saves nothing."""
        return all(map(self.sizes.reads_few_rows, plans))

    def may_be_large(self, plan: Node) -> bool:
        """Whether the rows of a plan may be too many to be stored before they are counted."""
        return self.sizes.reads_many_rows(plan)

    # -- rows by key -------------------------------------------------------------------------------------

    def with_keys(
        self, rows: Node, keys: Node, on: _KeyPairs, *, null_safe: bool = True, exact: bool = True
    ) -> Node:
        """The rows whose key is among `keys`, selected as far down their plan as possible.

        Args:
            rows: a plan.
            keys: rows with the keys.
            on: columns of `rows`, each with the column of `keys` that it must equal.
            null_safe, exact: as in `KeySemiJoin`.
        """
        semi_join = KeySemiJoin(
            columns=rows.columns, child=rows, keys=keys, on=tuple(on), null_safe=null_safe, exact=exact
        )
        return push_down_keys(semi_join, self.sizes)

    def partners(self, rows: Node, keys: Node, on: _KeyPairs, join_keys: Sequence[JoinKey]) -> Node:
        """`rows` without most of those that cannot match in the join above, which has `join_keys`."""
        return self.with_keys(rows, keys, on, null_safe=any(key.null_safe for key in join_keys), exact=False)

    # -- joins of many inputs ----------------------------------------------------------------------------

    def joins_all_at_once(self, changed: int) -> bool:
        """Whether two joins of all inputs cost less than one for each of those that changed."""
        return changed >= _MIN_CHANGED_INPUTS

    def root(self, graph: JoinGraph) -> int:
        """The input that is joined with all others twice. It is read once and by key, so it is the largest
        one, linked to the most others."""
        return max(range(len(graph.inputs)), key=lambda position: self._root_rank(graph, position))

    def _root_rank(self, graph: JoinGraph, position: int) -> tuple[bool, bool, int]:
        relation = graph.inputs[position]
        others = [other for other in graph.inputs if other is not relation]
        linked = sum(bool(graph.keys_between(relation, other)) for other in others)
        return self.sizes.reads_many_rows(relation), not self.sizes.reads_few_rows(relation), linked

    def next_input(self, graph: JoinGraph, current: Node, remaining: Sequence[int]) -> int:
        """Which of the remaining inputs is joined next with the rows joined so far: those that a key leads to
        first, small ones before large ones.

        Of the inputs that a key leads to, those come first that share no key with another remaining input. A
        key that only restricts together with others matches too many rows alone: joining customers with
        suppliers on the nation gives, for each order, all suppliers of that nation.
        """
        return min(remaining, key=lambda position: self._rank(graph, position, current, remaining))

    def _rank(
        self, graph: JoinGraph, position: int, current: Node, remaining: Sequence[int]
    ) -> tuple[bool, int, bool, int]:
        relation = graph.inputs[position]
        others = [graph.inputs[other] for other in remaining if other != position]
        linked = sum(bool(graph.keys_between(other, relation)) for other in others)
        has_key = bool(graph.keys_between(current, relation))
        return not has_key, linked, self.sizes.reads_many_rows(relation), position
