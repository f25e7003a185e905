"""The graph as boxes and curves in pixels; a template makes the SVG. Colours belong to the style sheet."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from tautochrone.metaservice.pages.dataset_status import DatasetLine, DatasetState, Topology
from tautochrone.metaservice.pages.layout import layered
from tautochrone.metaservice.pages.words import duration
from tautochrone.model.clock import describe_clock, is_clock
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import TableName

__all__ = ["BOX_HEIGHT", "BOX_WIDTH", "Box", "Curve", "Drawing", "around", "draw", "lag_band"]

BOX_WIDTH, BOX_HEIGHT = 214, 48
_STEP_X, _STEP_Y, _MARGIN = 284, 64, 12
_LABEL = 25
"""How many narrow signs fit into a box."""

_BANDS_MS = (10_000, 60_000, 600_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A table. `look` and `shape` are classes of the style sheet, `says` the second line."""

    name: TableName
    x: float
    y: float
    label: str
    says: str
    look: str
    shape: str
    known: bool


@dataclass(frozen=True, slots=True)
class Curve:
    """An edge as an SVG path; `look` is that of what it comes from."""

    source: TableName
    target: TableName
    path: str
    look: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Pixels."""

    boxes: tuple[Box, ...]
    curves: tuple[Curve, ...]
    width: int
    height: int


def lag_band(lag_ms: int | None) -> str:
    """How late, in four steps that differ in colour."""
    late = lag_ms or 0
    return f"late-{sum(late >= limit for limit in _BANDS_MS)}"


def around(topology: Topology, focus: TableName) -> frozenset[TableName]:
    """A table with all that it is made from and all that is made from it."""
    above = _reach(lambda name: topology.inputs.get(name, ()), focus)
    return above | _reach(topology.readers, focus) | {focus}


def draw(topology: Topology, only: frozenset[TableName] | None = None) -> Drawing:
    """All tables, or those of `only`."""
    names = {str(name): name for name in (*topology.lines, *topology.outside) if only is None or name in only}
    edges = [
        (str(source), str(target))
        for target, inputs in topology.inputs.items()
        for source in inputs
        if str(source) in names and str(target) in names
    ]
    found = layered(names, edges)
    boxes = tuple(
        _box(topology, names[text], _MARGIN + x * _STEP_X, _MARGIN + y * _STEP_Y)
        for text, (x, y) in found.places.items()
    )
    placed = {str(box.name): box for box in boxes}
    curves = tuple(
        Curve(names[a], names[b], _path(placed[a], placed[b], found.bends[a, b]), placed[a].look)
        for a, b in sorted(found.bends)
    )
    width = 2 * _MARGIN + max(found.layers - 1, 0) * _STEP_X + BOX_WIDTH
    height = 2 * _MARGIN + round(found.rows * _STEP_Y) + BOX_HEIGHT
    return Drawing(boxes, curves, width, height)


def _reach(near: Callable[[TableName], Iterable[TableName]], start: TableName) -> frozenset[TableName]:
    seen: set[TableName] = set()
    todo = [start]
    while todo:
        for name in near(todo.pop()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return frozenset(seen)


def _box(topology: Topology, name: TableName, x: float, y: float) -> Box:
    line = topology.lines.get(name)
    if line is None:
        clock = is_clock(name)
        says = "clock" if clock else "written by others"
        label = describe_clock(name) if clock else name.table
        look, shape = "outside", "clock" if clock else "outside"
    else:
        label, says, look = name.table, _says(line), _look(line)
        shape = "stream" if line.status.kind == DatasetKind.STREAMING_TABLE else "view"
    return Box(
        name=name,
        x=x,
        y=round(y, 1),
        label=_cut(label),
        says=_cut(says, _LABEL + 4),
        look=look,
        shape=shape,
        known=line is not None,
    )


def _says(line: DatasetLine) -> str:
    if line.waits_for is not None:
        return f"waits for {line.waits_for.table}"
    late = line.state in (DatasetState.BEHIND, DatasetState.BUILDING)
    return f"{line.state}: {duration(line.status.lag_ms)}" if late else str(line.state)


def _look(line: DatasetLine) -> str:
    word = line.state.value.replace(" ", "-")
    return f"{word} {lag_band(line.status.lag_ms)}" if line.state is DatasetState.BEHIND else word


def _cut(text: str, signs: int = _LABEL) -> str:
    """As much of a text as fits, counting wide signs twice."""
    width = 0
    for at, sign in enumerate(text):
        width += 2 if unicodedata.east_asian_width(sign) in "WF" else 1
        if width > signs:
            return text[: max(at - 1, 1)] + "…"
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
