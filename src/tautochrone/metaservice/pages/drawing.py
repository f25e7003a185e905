"""The graph of tables as boxes and curves in pixels; a template renders the SVG."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from tautochrone.metaservice.pages.dataset_status import DatasetLine, DatasetState, Topology
from tautochrone.metaservice.pages.formats import duration
from tautochrone.metaservice.pages.layout import layered
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import TableName, describe_clock, describe_files, is_clock, is_file_table

__all__ = ["BOX_HEIGHT", "BOX_WIDTH", "Box", "Curve", "Drawing", "draw", "lag_band", "neighbourhood"]

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
    return name.table, "written by others"


def _subtitle(line: DatasetLine) -> str:
    if line.waits_for is not None:
        return f"waits for {line.waits_for.table}"
    shows_lag = line.state in (DatasetState.BEHIND, DatasetState.BUILDING)
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
