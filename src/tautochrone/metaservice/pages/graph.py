"""The graph of tables, drawn in layers from left to right as boxes and curves; a template renders the SVG.

The steps of the layout are Sugiyama's: layers by longest path, invisible nodes where an edge crosses layers,
orders by barycentres, then heights. Its nodes are strings; it must not know what they stand for.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from tautochrone.meta import DatasetState
from tautochrone.metaservice.pages.rendering import duration
from tautochrone.metaservice.pages.status import DatasetLine, Topology
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import (
    TableName,
    describe_clock,
    describe_files,
    describe_input,
    is_clock,
    is_file_table,
    is_shadow_table,
)

__all__ = [
    "BOX_HEIGHT",
    "BOX_WIDTH",
    "Box",
    "Curve",
    "Drawing",
    "Layout",
    "draw",
    "lag_band",
    "layered",
    "neighbourhood",
]

BOX_WIDTH, BOX_HEIGHT = 214, 48
_STEP_X, _STEP_Y, _MARGIN = 284, 64, 12
_LABEL_WIDTH = 25
"""How many narrow characters fit into a box."""

_BANDS_MS = (10_000, 60_000, 600_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A table. `css_class` and `shape` are classes of the style sheet, `subtitle` is the second line."""

    name: TableName
    x: float
    y: float
    label: str
    subtitle: str
    css_class: str
    shape: str
    known: bool


@dataclass(frozen=True, slots=True)
class Curve:
    """An edge as an SVG path, with the style sheet's class of its source."""

    source: TableName
    target: TableName
    path: str
    css_class: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """The whole graph; sizes are pixels."""

    boxes: tuple[Box, ...]
    curves: tuple[Curve, ...]
    width: int
    height: int


def lag_band(lag_ms: int | None) -> str:
    """The class of the style sheet for a lag: four steps of colour."""
    lag = lag_ms or 0
    return f"late-{sum(lag >= limit for limit in _BANDS_MS)}"


def neighbourhood(topology: Topology, focus: TableName) -> frozenset[TableName]:
    """A table with everything upstream and downstream of it."""
    upstream = _reachable(lambda name: topology.inputs.get(name, ()), focus)
    return upstream | _reachable(topology.readers, focus) | {focus}


def draw(topology: Topology, only: frozenset[TableName] | None = None) -> Drawing:
    """The graph of all tables, or of those in `only`."""
    names = {str(name): name for name in (*topology.lines, *topology.outside) if only is None or name in only}
    edges = [
        (str(source), str(target))
        for target, inputs in topology.inputs.items()
        for source in inputs
        if str(source) in names and str(target) in names
    ]
    layout = layered(names, edges)
    boxes = tuple(
        _box(topology, names[text], _MARGIN + x * _STEP_X, _MARGIN + y * _STEP_Y)
        for text, (x, y) in layout.positions.items()
    )
    boxes_by_name = {str(box.name): box for box in boxes}
    curves = tuple(
        Curve(
            names[a],
            names[b],
            _path(boxes_by_name[a], boxes_by_name[b], layout.bends[a, b]),
            boxes_by_name[a].css_class,
        )
        for a, b in sorted(layout.bends)
    )
    width = 2 * _MARGIN + max(layout.layers - 1, 0) * _STEP_X + BOX_WIDTH
    height = 2 * _MARGIN + round(layout.rows * _STEP_Y) + BOX_HEIGHT
    return Drawing(boxes, curves, width, height)


def _reachable(
    neighbours: Callable[[TableName], Iterable[TableName]], start: TableName
) -> frozenset[TableName]:
    seen: set[TableName] = set()
    todo = [start]
    while todo:
        for name in neighbours(todo.pop()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return frozenset(seen)


def _box(topology: Topology, name: TableName, x: float, y: float) -> Box:
    line = topology.lines.get(name)
    if line is None:
        label, subtitle = _outside_texts(name)
        css_class, shape = "outside", "clock" if is_clock(name) else "outside"
    else:
        label, subtitle, css_class = name.table, _subtitle(line), _css_class(line)
        shape = "stream" if line.status.kind == DatasetKind.STREAMING_TABLE else "view"
    return Box(
        name=name,
        x=x,
        y=round(y, 1),
        label=_shorten(label),
        subtitle=_shorten(subtitle, _LABEL_WIDTH + 4),
        css_class=css_class,
        shape=shape,
        known=line is not None,
    )


def _outside_texts(name: TableName) -> tuple[str, str]:
    """Label and subtitle of what no job of the store writes."""
    if is_clock(name):
        return describe_clock(name), "clock"
    if is_file_table(name):
        return describe_files(name).removeprefix("the files in "), "files"
    if is_shadow_table(name):
        return describe_input(name).removeprefix("the "), "written by others"
    return name.table, "written by others"


def _subtitle(line: DatasetLine) -> str:
    if line.waits_for is not None:
        return f"waits for {line.waits_for.table}"
    shows_lag = line.state in (DatasetState.BEHIND, DatasetState.BUILDING, DatasetState.NOT_RUNNING)
    return f"{line.state}: {duration(line.status.lag_ms)}" if shows_lag else str(line.state)


def _css_class(line: DatasetLine) -> str:
    state = line.state.value.replace(" ", "-")
    return f"{state} {lag_band(line.status.lag_ms)}" if line.state is DatasetState.BEHIND else state


def _shorten(text: str, max_width: int = _LABEL_WIDTH) -> str:
    """As much of a text as fits. Wide characters count twice."""
    width = 0
    for index, character in enumerate(text):
        width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if width > max_width:
            return text[: max(index - 1, 1)] + "…"
    return text


def _path(source: Box, target: Box, bends: tuple[tuple[int, float], ...]) -> str:
    middle = BOX_HEIGHT / 2
    points: list[tuple[float, float]] = [(source.x + BOX_WIDTH, source.y + middle)]
    for layer, row in bends:
        x, y = _MARGIN + layer * _STEP_X, _MARGIN + row * _STEP_Y + middle
        points += [(x, y), (x + BOX_WIDTH, y)]
    points.append((target.x, target.y + middle))
    parts = [f"M{points[0][0]:.0f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        half = (x0 + x1) / 2
        parts.append(f"C{half:.0f} {y0:.1f} {half:.0f} {y1:.1f} {x1:.0f} {y1:.1f}")
    return " ".join(parts)


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
