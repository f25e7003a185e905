"""A tree of inner joins as one join of many inputs, with the keys that lead from one input to another."""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.algebra.nodes import Expression, Join, JoinKey, Node, inner_join_of

__all__ = ["JoinGraph", "join_graph_of"]


@dataclass(frozen=True, slots=True)
class JoinGraph:
    """The inputs, the equalities between them, and the other conditions over all of them."""

    inputs: list[Node]
    keys: list[JoinKey]
    conditions: list[Expression]

    def keys_between(self, current: Node, relation: Node) -> list[JoinKey]:
        """The equalities between rows that were joined already and another input, `current` on the left."""
        joined, added = set(current.columns), set(relation.columns)
        keys = []
        for key in self.keys:
            if key.left in joined and key.right in added:
                keys.append(key)
            elif key.right in joined and key.left in added:
                keys.append(key.swapped())
        return keys

    def tree(self, root: int) -> dict[int, tuple[int, list[JoinKey]]]:
        """The inputs that keys lead to from the root, parents before children: each with the position of its
        parent, and the keys between them, the parent's on the left."""
        tree: dict[int, tuple[int, list[JoinKey]]] = {}
        front = [root]
        for parent in front:
            for position, relation in enumerate(self.inputs):
                keys = self.keys_between(self.inputs[parent], relation)
                if position != root and position not in tree and keys:
                    tree[position] = parent, keys
                    front.append(position)
        return tree


def join_graph_of(node: Join) -> JoinGraph:
    """The graph of an inner join and of the inner joins right below it."""
    graph = JoinGraph(list(node.differentiated), [], [])
    _add_conditions(node, graph)
    return graph


def _add_conditions(join: Join, graph: JoinGraph) -> None:
    for below in map(inner_join_of, join.children):
        if below is not None:
            _add_conditions(below, graph)
    graph.keys.extend(join.keys)
    graph.conditions.extend(join.conditions)
