"""The graph from sources over tables to sinks, drawn in layers as boxes and curves; a template renders the
SVG.

The steps of the layout are Sugiyama's: layers by longest path, invisible nodes where an edge crosses layers,
orders by barycentres, then heights. Its nodes are strings; it must not know what they stand for.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import pairwise

from tautochrone.meta import DatasetState
from tautochrone.metaservice.pages.rendering import count, duration, short_count
from tautochrone.metaservice.pages.status import DatasetLine, SourceNode, Topology
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
from tautochrone.model.run_report import SourceKind
from tautochrone.model.sink import PUBLICATIONS, DeliveryState, SinkStatus

__all__ = [
    "BOX_HEIGHT",
    "BOX_WIDTH",
    "STATE_SHAPES",
    "Box",
    "Curve",
    "Drawing",
    "Layout",
    "NodeKind",
    "draw",
    "lag_band",
    "layered",
    "neighbourhood",
]

BOX_WIDTH, BOX_HEIGHT = 240, 64
_STEP_X, _STEP_Y, _MARGIN = 310, 80, 12
_LABEL_WIDTH, _STATE_WIDTH, _WORK_WIDTH = 23, 30, 32
"""How many narrow characters fit into each line of a box."""

_BANDS_MS = (10_000, 60_000, 600_000)

STATE_SHAPES = {
    DatasetState.FRESH: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
    DatasetState.BUILDING: "M0 -5.5a5.5 5.5 0 0 1 0 11zM0 -5.5a5.5 5.5 0 0 0 0 11v-1.6a3.9 3.9 0 0 1 0 -7.8z",
    DatasetState.BEHIND: "M0 -6L6 5H-6z",
    DatasetState.WAITING: "M-5 -5.5h3.6v11H-5zM1.4 -5.5H5v11H1.4z",
    DatasetState.FAILING: "M-5.5 -3.5l2-2 3.5 3.5 3.5-3.5 2 2L2 0l3.5 3.5-2 2L0 2l-3.5 3.5-2-2L-2 0z",
    DatasetState.NOT_RUNNING: "M-5 -5H5V5H-5z",
    DatasetState.NEVER: "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0zM-3 0a3 3 0 1 1 6 0a3 3 0 1 1-6 0z",
}
"""An SVG path for each state, around its centre: states differ by shape as well as by colour."""
_OUTSIDE_SHAPE = "M0 -6L6 0L0 6L-6 0z"


class NodeKind(StrEnum):
    """What a box stands for, as a class of the style sheet."""

    STREAM = "stream"
    VIEW = "view"
    OUTSIDE = "outside"
    CLOCK = "clock"
    SOURCE = "source"
    SINK = "sink"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A table, a source or a sink; `name` is that of a table, None for the others.

    `css_class` is a class of the style sheet, `mark` an SVG path that stands for the state. `label` and
    `subtitle` fit into the box, `title` and `state` are the same in full. `work` says what its newest refresh
    with news did, in few words; `work_title` in many.
    """

    key: str
    kind: NodeKind
    name: TableName | None
    x: float
    y: float
    label: str
    subtitle: str
    title: str
    state: str
    css_class: str
    mark: str
    work: str = ""
    work_title: str = ""

    @property
    def known(self) -> bool:
        """Whether a job of the store writes the table."""
        return self.kind in (NodeKind.STREAM, NodeKind.VIEW)

    @property
    def text(self) -> str:
        """All that it says, as one sentence."""
        return f"{self.title}: {self.state}" + (f"; {self.work_title}" if self.work_title else "")


@dataclass(frozen=True, slots=True)
class Curve:
    """An edge as an SVG path, with the style sheet's class of its source."""

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
    """The graph from sources to sinks: of all tables, or of those in `only`."""
    tables = [name for name in (*topology.lines, *topology.outside) if only is None or name in only]
    boxes = {box.key: box for box in (_table_box(topology, name) for name in tables)}
    edges = [
        (str(source), str(target))
        for target, inputs in topology.inputs.items()
        for source in inputs
        if str(source) in boxes and str(target) in boxes
    ]
    for source in topology.sources:
        _add_node(boxes, edges, _source_box(source), targets=map(str, source.datasets))
    for sink in topology.sinks:
        _add_node(boxes, edges, _sink_box(sink), origins=map(str, sink.tables), alone=only is None)
    layout = layered(boxes, edges)
    positioned = {
        key: replace(boxes[key], x=_MARGIN + x * _STEP_X, y=round(_MARGIN + y * _STEP_Y, 1))
        for key, (x, y) in layout.positions.items()
    }
    curves = tuple(
        Curve(_path(positioned[a], positioned[b], layout.bends[a, b]), positioned[a].css_class)
        for a, b in sorted(layout.bends)
    )
    width = 2 * _MARGIN + max(layout.layers - 1, 0) * _STEP_X + BOX_WIDTH
    height = 2 * _MARGIN + round(layout.rows * _STEP_Y) + BOX_HEIGHT
    return Drawing(tuple(positioned.values()), curves, width, height)


def _add_node(
    boxes: dict[str, Box],
    edges: list[tuple[str, str]],
    box: Box,
    *,
    origins: Iterable[str] = (),
    targets: Iterable[str] = (),
    alone: bool = False,
) -> None:
    """Add a source or a sink with its edges to the tables that are drawn.

    Args:
        alone: also when it has no edge.
    """
    own = [(name, box.key) for name in origins if name in boxes]
    own += [(box.key, name) for name in targets if name in boxes]
    if own or alone:
        boxes[box.key] = box
        edges += own


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


def _table_box(topology: Topology, name: TableName) -> Box:
    line = topology.lines.get(name)
    if line is None:
        label, subtitle = _outside_texts(name)
        kind = NodeKind.CLOCK if is_clock(name) else NodeKind.OUTSIDE
        return _box(str(name), kind, label, subtitle, describe_input(name), name=name)
    kind = NodeKind.STREAM if line.status.kind == DatasetKind.STREAMING_TABLE else NodeKind.VIEW
    box = _box(
        str(name),
        kind,
        name.table,
        _subtitle(line),
        describe_input(name),
        name=name,
        css_class=_css_class(line),
        mark=STATE_SHAPES[line.state],
    )
    record = topology.newest.get(name)
    if record is None or record.refresh is None or record.error is not None:
        return box
    refresh = record.refresh
    took = duration(refresh.duration_ms)
    rows = f"+{short_count(refresh.rows_inserted)} −{short_count(refresh.rows_deleted)}"
    return replace(
        box,
        work=_shorten(f"{refresh.mode} {took} {rows}", _WORK_WIDTH),
        work_title=f"checkpoint {record.checkpoint}: {refresh.mode} in {took}, "
        f"{count(refresh.rows_inserted)} rows added, {count(refresh.rows_deleted)} removed",
    )


def _source_box(source: SourceNode) -> Box:
    key = f"\0source {source.kind} {source.name}"
    label = source.name.rstrip("/").rpartition("/")[2] if source.kind is SourceKind.FILES else source.name
    title = f"{source.kind} {source.name}"
    return _box(key, NodeKind.SOURCE, label, source.kind, title)


def _sink_box(sink: SinkStatus) -> Box:
    if sink.state in (DeliveryState.FAILING, DeliveryState.NEEDS_ATTENTION):
        state, words = DatasetState.FAILING, str(sink.state).replace("_", " ")
    elif sink.behind_since_ms is not None:
        state, words = DatasetState.BUILDING, "lacks a checkpoint"
    elif sink.delivered is None and not sink.flows:
        state, words = DatasetState.NEVER, "nothing delivered yet"
    else:
        state, words = DatasetState.FRESH, "fresh"
    is_publication = sink.format in PUBLICATIONS.values()
    kind = sink.format.replace("-", " ") if is_publication else f"{sink.format} sink"
    box = _box(
        f"\0sink {sink.name}",
        NodeKind.SINK,
        sink.name,
        f"{kind}: {words}",
        f"sink {sink.name}",
        css_class=state.value.replace(" ", "-"),
        mark=STATE_SHAPES[state],
    )
    if sink.delivered is None:
        return box
    text = f"shows checkpoint {sink.delivered.checkpoint}"
    return replace(box, work=text, work_title=text)


def _box(
    key: str,
    kind: NodeKind,
    label: str,
    state: str,
    title: str,
    *,
    name: TableName | None = None,
    css_class: str = "outside",
    mark: str = _OUTSIDE_SHAPE,
) -> Box:
    """A box at no position yet: the layout decides it."""
    return Box(
        key=key,
        kind=kind,
        name=name,
        x=0,
        y=0,
        label=_shorten(label),
        subtitle=_shorten(state, _STATE_WIDTH),
        title=title,
        state=state,
        css_class=css_class,
        mark=mark,
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
        return f"held back: waits for {line.waits_for.table}"
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
