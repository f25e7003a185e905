"""A layered drawing of a directed graph, left to right (Sugiyama's method).

Its steps are: layers by longest path, invisible nodes where an edge crosses layers, orders by barycentres,
then heights. Nodes are strings; this module must not know what they stand for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

__all__ = ["Layout", "layered"]

_SWEEPS = 8

Edge = tuple[str, str]
Node = str | tuple[str, str, int]
"""A name, or the bend of an edge in a layer."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions in layers (x) and rows (y), both from 0.

    `bends` has for each edge the points between its ends.
    """

    positions: Mapping[str, tuple[int, float]]
    bends: Mapping[Edge, tuple[tuple[int, float], ...]]
    layers: int
    rows: float


def layered(nodes: Iterable[str], edges: Iterable[Edge]) -> Layout:
    """The layout of a graph whose edges go from source to reader. In a cycle one edge goes backwards."""
    names = sorted(set(nodes))
    unique_edges = sorted({(a, b) for a, b in edges if a != b})
    depth = _depths(names, unique_edges)
    columns: list[list[Node]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in names:
        columns[depth[name]].append(name)
    left: dict[Node, list[Node]] = defaultdict(list)
    right: dict[Node, list[Node]] = defaultdict(list)
    chains: dict[Edge, list[Node]] = {}
    for source, target in unique_edges:
        low, high = depth[source], depth[target]
        chain: list[Node] = [(source, target, layer) for layer in range(low + 1, high)]
        for layer, bend in enumerate(chain, low + 1):
            columns[layer].append(bend)
        chains[source, target] = chain
        if low < high:
            path: list[Node] = [source, *chain, target]
            for a, b in pairwise(path):
                right[a].append(b)
                left[b].append(a)
    columns = _ordered(columns, left, right)
    heights = _heights(columns, left, right)
    top = min(heights.values(), default=0.0)
    return Layout(
        positions={name: (depth[name], heights[name] - top) for name in names},
        bends={
            edge: tuple((bend[2], heights[bend] - top) for bend in chain if isinstance(bend, tuple))
            for edge, chain in chains.items()
        },
        layers=len(columns),
        rows=max(heights.values(), default=0.0) - top,
    )


def _depths(names: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """The longest path from a node without inputs to each node. Edges that close a cycle do not count."""
    inputs: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        inputs[target].append(source)
    depth: dict[str, int] = {}
    for start in names:
        # A stack instead of recursion, because chains may be longer than Python's limit.
        visiting: dict[str, int] = {}
        stack = [start]
        while stack:
            name = stack[-1]
            if name in depth:
                stack.pop()
                continue
            visiting.setdefault(name, 0)
            unvisited = [above for above in inputs[name] if above not in depth and above not in visiting]
            if unvisited:
                stack.append(unvisited[0])
                continue
            depth[name] = max((depth[above] + 1 for above in inputs[name] if above in depth), default=0)
            visiting.pop(name)
            stack.pop()
    _move_sources_right(depth, inputs, edges)
    return depth


def _move_sources_right(
    depth: dict[str, int], inputs: Mapping[str, list[str]], edges: Sequence[Edge]
) -> None:
    """Move nodes without inputs next to their first reader, so that their edges are short."""
    nearest: dict[str, int] = {}
    for source, target in edges:
        nearest[source] = min(depth[target], nearest.get(source, depth[target]))
    for name, layer in nearest.items():
        if not inputs.get(name):
            depth[name] = max(layer - 1, 0)


def _ordered(
    columns: list[list[Node]], left: Mapping[Node, list[Node]], right: Mapping[Node, list[Node]]
) -> list[list[Node]]:
    """The order with the fewest crossings, from sweeps over the layers in both directions."""
    best, fewest = columns, _crossings(columns, right)
    current = [list(column) for column in columns]
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        neighbours = left if forward else right
        layers = range(1, len(current)) if forward else range(len(current) - 2, -1, -1)
        for layer in layers:
            fixed = current[layer - 1 if forward else layer + 1]
            ranks = {node: rank for rank, node in enumerate(fixed)}
            own_ranks = {node: rank for rank, node in enumerate(current[layer])}
            current[layer].sort(
                key=partial(_barycentre, ranks=ranks, own_ranks=own_ranks, neighbours=neighbours)
            )
        crossings = _crossings(current, right)
        if crossings < fewest:
            best, fewest = [list(column) for column in current], crossings
    return best


def _barycentre(
    node: Node,
    ranks: Mapping[Node, int],
    own_ranks: Mapping[Node, int],
    neighbours: Mapping[Node, list[Node]],
) -> tuple[float, int]:
    adjacent = [ranks[neighbour] for neighbour in neighbours.get(node, ()) if neighbour in ranks]
    return (sum(adjacent) / len(adjacent) if adjacent else float(own_ranks[node]), own_ranks[node])


def _crossings(columns: Sequence[Sequence[Node]], right: Mapping[Node, list[Node]]) -> int:
    total = 0
    for column, following in pairwise(columns):
        ranks = {node: rank for rank, node in enumerate(following)}
        ends: list[int] = []
        for node in column:
            node_ends = sorted(ranks[neighbour] for neighbour in right.get(node, ()))
            total += sum(1 for end in node_ends for before in ends if before > end)
            ends += node_ends
    return total


def _heights(
    columns: Sequence[Sequence[Node]], left: Mapping[Node, list[Node]], right: Mapping[Node, list[Node]]
) -> dict[Node, float]:
    """A height for each node near the mean of its neighbours, in the given order, at least one row apart."""
    heights: dict[Node, float] = {}
    for column in columns:
        middle = (len(column) - 1) / 2
        heights |= {node: rank - middle for rank, node in enumerate(column)}
    for sweep in range(_SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            preferred = []
            for node in column:
                adjacent = [heights[n] for n in (*left.get(node, ()), *right.get(node, ()))]
                preferred.append(sum(adjacent) / len(adjacent) if adjacent else heights[node])
            heights |= zip(column, _spread(preferred), strict=True)
    return heights


def _spread(preferred: Sequence[float]) -> list[float]:
    """The heights nearest to the preferred ones (least squares), in order and one row apart.

    This is isotonic regression of the heights minus their index: blocks in the wrong order share their mean.
    """
    blocks: list[tuple[float, int]] = []
    for index, preference in enumerate(preferred):
        mean, size = preference - index, 1
        while blocks and blocks[-1][0] > mean:
            previous, count = blocks.pop()
            mean, size = (previous * count + mean * size) / (count + size), count + size
        blocks.append((mean, size))
    flat = [mean for mean, size in blocks for _ in range(size)]
    return [height + index for index, height in enumerate(flat)]
