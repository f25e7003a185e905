"""The columns of the tables in which a view keeps its states.

Computed once for a plan, because reading a type takes several calls to Java.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyspark
from pyspark.sql.types import StructType

from tautochrone.algebra.nodes import Aggregate, Scan, TopK, stateful_nodes, walk
from tautochrone.model.names import TableName
from tautochrone.spark.translate.from_catalyst import View

__all__ = ["RUN", "NodeStateLayout", "Planned", "StateLayout", "planned"]

RUN = "run"
"""The column that numbers a state's runs, by a sequence of the state's own table."""

_FORMAT = 2
"""Must be raised when this release would misread stored states: then every state is built anew."""

_NOT_STORED = ("interval", "void", "map", "variant")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """The table of one state.

    Attributes:
        keys: columns that tell a row, none for the buffer of a `TopK`.
        values: the others, of a group first its row count.
        schema: all of them and the run, all nullable.
        signature: two states with the same one are read the same way.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    schema: StructType
    signature: str

    @property
    def is_buffer(self) -> bool:
        """Whether it is stored as a whole each time, not as a log of runs."""
        return False

    @property
    def columns_without_run(self) -> tuple[str, ...]:
        return (*self.keys, *self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStateLayout(StateLayout):
    """The state of one stateful node of a view's plan."""

    node: Aggregate | TopK

    @property
    def is_buffer(self) -> bool:
        return isinstance(self.node, TopK)


@dataclass(frozen=True, slots=True)
class Planned:
    """A view's plan.

    Attributes:
        view: the plan itself.
        layouts: the states that it keeps by the number of their node, each after those below it.
        reads: the columns that it reads of each table.
    """

    view: View
    layouts: Mapping[int, NodeStateLayout]
    reads: Mapping[TableName, frozenset[str]]


def planned(view: View) -> Planned:
    """Lay out every state of a plan whose types a table can hold."""
    all_layouts = {node.number: _layout(view, node) for node in stateful_nodes(view.plan)}
    layouts = {number: layout for number, layout in sorted(all_layouts.items()) if layout is not None}
    return Planned(view, layouts, _reads(view))


def _reads(view: View) -> dict[TableName, frozenset[str]]:
    columns: dict[TableName, frozenset[str]] = {}
    for node in walk(view.plan):
        if isinstance(node, Scan):
            names = frozenset(str(view.attributes[column].name()) for column in node.handle)
            columns[node.table] = columns.get(node.table, frozenset()) | names
    return columns


def _layout(view: View, node: Aggregate | TopK) -> NodeStateLayout | None:
    types = [json.loads(view.attributes[column].dataType().json()) for column in node.state_columns]
    texts = [json.dumps(of_column) for of_column in types]
    if any(word in text for text in texts for word in _NOT_STORED):
        return None
    keys: tuple[str, ...] = ()
    if isinstance(node, Aggregate):
        keys = tuple(f"k{i}" for i in range(len(node.keys)))
        expressions = [str(view.attributes[key].name()) for key in node.keys] + [
            call.text for call in node.calls
        ]
    else:
        expressions = [str(entry.toString()) for entry in node.order] + [str(node.limit), str(node.offset)]
    values = tuple(f"a{i}" for i in range(len(types) - len(keys)))
    named = zip((*keys, *values, RUN), (*types, "long"), strict=True)
    fields = [{"name": n, "type": kind, "nullable": True, "metadata": {}} for n, kind in named]
    # Spark numbers its columns anew each time.
    expressions = [re.sub(r"\d+", "", text) for text in expressions]
    signed = json.dumps(
        [_FORMAT, pyspark.__version__, node.number, node.label.capitalize(), expressions, fields]
    )
    return NodeStateLayout(
        node=node,
        keys=keys,
        values=values,
        schema=StructType.fromJson({"type": "struct", "fields": fields}),
        signature=hashlib.sha256(signed.encode()).hexdigest()[:16],
    )
