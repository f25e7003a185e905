"""Layered drawing of a directed graph, left to right: who reads stands right of what is read.

The usual four steps (Sugiyama): layers by longest path, invisible nodes where an edge crosses layers, orders
by barycentres, then heights. Pure computation over strings; it must never know what is drawn.
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
    """Positions in units of one layer (x) and one row (y), both from 0.

    `bends` has for each edge the points that it passes between its ends.
    """

    places: Mapping[str, tuple[int, float]]
    bends: Mapping[Edge, tuple[tuple[int, float], ...]]
    layers: int
    rows: float


def layered(nodes: Iterable[str], edges: Iterable[Edge]) -> Layout:
    """Place nodes; edges go from what is read to who reads. Circles are drawn with one edge backwards."""
    names = sorted(set(nodes))
    wanted = sorted({(a, b) for a, b in edges if a != b})
    depth = _depths(names, wanted)
    columns: list[list[Node]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in names:
        columns[depth[name]].append(name)
    left: dict[Node, list[Node]] = defaultdict(list)
    right: dict[Node, list[Node]] = defaultdict(list)
    chains: dict[Edge, list[Node]] = {}
    for source, target in wanted:
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
        places={name: (depth[name], heights[name] - top) for name in names},
        bends={
            edge: tuple((bend[2], heights[bend] - top) for bend in chain if isinstance(bend, tuple))
            for edge, chain in chains.items()
        },
        layers=len(columns),
        rows=max(heights.values(), default=0.0) - top,
    )


def _depths(names: Sequence[str], edges: Sequence[Edge]) -> dict[str, int]:
    """The longest way from a node without inputs; an edge that closes a circle doesn't count."""
    inputs: dict[str, list[str]] = defaultdict(list)
    for source, target in edges:
        inputs[target].append(source)
    depth: dict[str, int] = {}
    for start in names:
        # By hand: chains may be longer than Python's stack.
        open_: dict[str, int] = {}
        stack = [start]
        while stack:
            name = stack[-1]
            if name in depth:
                stack.pop()
                continue
            open_.setdefault(name, 0)
            todo = [above for above in inputs[name] if above not in depth and above not in open_]
            if todo:
                stack.append(todo[0])
                continue
            depth[name] = max((depth[above] + 1 for above in inputs[name] if above in depth), default=0)
            open_.pop(name)
            stack.pop()
    _pull(depth, inputs, edges)
    return depth


def _pull(depth: dict[str, int], inputs: Mapping[str, list[str]], edges: Sequence[Edge]) -> None:
    """Sources stand beside their first reader: an edge across the whole drawing tells nobody anything."""
    nearest: dict[str, int] = {}
    for source, target in edges:
        nearest[source] = min(depth[target], nearest.get(source, depth[target]))
    for name, at in nearest.items():
        if not inputs.get(name):
            depth[name] = max(at - 1, 0)


def _ordered(
    columns: list[list[Node]], left: Mapping[Node, list[Node]], right: Mapping[Node, list[Node]]
) -> list[list[Node]]:
    """Sweep over the layers both ways; the order with the fewest crossings wins."""
    best, fewest = columns, _crossings(columns, right)
    current = [list(column) for column in columns]
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        beside = left if forward else right
        layers = range(1, len(current)) if forward else range(len(current) - 2, -1, -1)
        for layer in layers:
            neighbour = current[layer - 1 if forward else layer + 1]
            place = {node: at for at, node in enumerate(neighbour)}
            own = {node: at for at, node in enumerate(current[layer])}
            current[layer].sort(key=partial(_barycentre, place=place, own=own, beside=beside))
        crossings = _crossings(current, right)
        if crossings < fewest:
            best, fewest = [list(column) for column in current], crossings
    return best


def _barycentre(
    node: Node, place: Mapping[Node, int], own: Mapping[Node, int], beside: Mapping[Node, list[Node]]
) -> tuple[float, int]:
    near = [place[other] for other in beside.get(node, ()) if other in place]
    return (sum(near) / len(near) if near else float(own[node]), own[node])


def _crossings(columns: Sequence[Sequence[Node]], right: Mapping[Node, list[Node]]) -> int:
    total = 0
    for column, following in pairwise(columns):
        place = {node: at for at, node in enumerate(following)}
        ends: list[int] = []
        for node in column:
            mine = sorted(place[other] for other in right.get(node, ()))
            total += sum(1 for end in mine for before in ends if before > end)
            ends += mine
    return total


def _heights(
    columns: Sequence[Sequence[Node]], left: Mapping[Node, list[Node]], right: Mapping[Node, list[Node]]
) -> dict[Node, float]:
    """Each node near the middle of its neighbours, one row apart at least, in the given order."""
    heights: dict[Node, float] = {}
    for column in columns:
        middle = (len(column) - 1) / 2
        heights |= {node: at - middle for at, node in enumerate(column)}
    for sweep in range(_SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            wishes = []
            for node in column:
                near = [heights[n] for n in (*left.get(node, ()), *right.get(node, ()))]
                wishes.append(sum(near) / len(near) if near else heights[node])
            heights |= zip(column, _apart(wishes), strict=True)
    return heights


def _apart(wishes: Sequence[float]) -> list[float]:
    """The heights nearest to the wishes (least squares) that keep the order and one row between.

    Without the row between, that is isotonic regression: neighbours in the wrong order share their mean.
    """
    blocks: list[tuple[float, int]] = []
    for at, wish in enumerate(wishes):
        mean, size = wish - at, 1
        while blocks and blocks[-1][0] > mean:
            other, count = blocks.pop()
            mean, size = (other * count + mean * size) / (count + size), count + size
        blocks.append((mean, size))
    flat = [mean for mean, size in blocks for _ in range(size)]
    return [height + at for at, height in enumerate(flat)]
