"""State tables of a view: companions that only its refreshes read.

A state is a log of runs. A run holds, for each group that a refresh touched, the group's accumulators after
it (count 0: the group is gone), so the newest run of a key wins. Runs are appended and now and then folded
into one. A companion is read at the snapshot that the view's own commit names, never at its main: what a
crash left behind on main is rolled back by the next refresh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StructField, StructType, _parse_datatype_json_string

from tautochrone.algebra.plan import Aggregate, ColumnId, Node, Top, walk
from tautochrone.model.lake import CommitNote, Fork, LakeTable, TableDefinition
from tautochrone.model.names import TableName, Version
from tautochrone.runtime.job import Job
from tautochrone.spark.frontend import View

__all__ = ["STATE_NAMESPACE", "States", "stateful_nodes"]

STATE_NAMESPACE = ("_tautochrone",)
_RUN = "run"
_FOLD_AFTER = 24
_NOT_STORED = ("interval", "void", "map", "variant")


def stateful_nodes(plan: Node) -> tuple[Aggregate | Top, ...]:
    """Nodes of a plan that keep a state, each once."""
    found = (
        node for node in walk(plan) if isinstance(node, Top) or (isinstance(node, Aggregate) and node.merges)
    )
    return tuple({node.number: node for node in found}.values())


@dataclass(slots=True)
class States:
    """The states of one view, as its table's fork names them."""

    job: Job
    view: TableName
    planned: View
    fork: Fork
    _nodes: dict[int, Aggregate | Top] = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = {
            node.number: node for node in stateful_nodes(self.planned.plan) if self._storable(node)
        }

    @property
    def nodes(self) -> Sequence[Aggregate | Top]:
        """Nodes whose state can be stored, each after those below it."""
        return tuple(self._nodes[number] for number in sorted(self._nodes))

    def missing(self) -> str | None:
        """Why the states do not belong to the view's rows, or None."""
        known = {} if self.fork.note is None else self.fork.note.companions
        for number in self._nodes:
            name = self._name(number)
            if str(name) not in known:
                return f"the view has no state {name.table} yet"
            if not self.job.lake.exists(name):
                return f"its state {name} is gone"
        return None

    def numbers(self) -> frozenset[int]:
        return frozenset(self._nodes)

    def rows(self, number: int) -> DataFrame:
        """A state's rows at the fork."""
        return self.rows_at(number, self._version(number))

    def rows_at(self, number: int, version: Version) -> DataFrame:
        """A state's rows: its node's state columns in order, the newest run of each key."""
        node = self._nodes[number]
        stored: DataFrame = self._table(number).read(self.job.base, version)
        columns = self._columns(node)
        if isinstance(node, Top):
            return stored.select(*columns)
        keys, values = columns[: len(node.keys)], columns[len(node.keys) :]
        newest = f"max_by(struct({', '.join(values)}), {_RUN}) AS newest"
        grouped = stored.groupBy(*keys).agg(sf.expr(newest))
        return grouped.selectExpr(*keys, *(f"newest.{value}" for value in values))

    def build(self, number: int, rows: DataFrame, note: CommitNote) -> Version:
        """Store a state as a whole."""
        node = self._nodes[number]
        keys = [] if isinstance(node, Top) else self._columns(node)[: len(node.keys)]
        whole = self._run(node, rows, note)
        table = self._created(number, note)
        fork = table.fork()
        # In the order of the keys, so that a look-up of few keys reads few files.
        staged = table.stage(fork, whole.orderBy(*keys) if keys else whole)
        return table.replace_rows(fork, [staged], replace(note, mode="run 0")).version

    def companions(self, versions: Mapping[int, Version]) -> Mapping[str, str]:
        """Versions of states as a note names them."""
        return {str(self._name(number)): str(version) for number, version in versions.items()}

    def write(self, updates: Mapping[int, DataFrame], note: CommitNote, *, local: bool) -> Mapping[str, str]:
        """Append what a refresh changed; answers the companions for the view's note, all of them."""
        assert self.fork.note is not None
        known = {str(self._name(number)) for number in self._nodes}
        found = {name: at for name, at in self.fork.note.companions.items() if name in known}
        for number, frame in updates.items():
            found[str(self._name(number))] = str(self._append(number, frame, note, local=local))
        return found

    def _append(self, number: int, frame: DataFrame, note: CommitNote, *, local: bool) -> Version:
        node = self._nodes[number]
        table = self._table(number)
        fork = table.fork()
        if fork.version != self._version(number):
            # A refresh that died between its state and its view.
            table.roll_back(self._version(number), note)
            fork = table.fork()
        rows = self._run(node, frame, note)
        runs = _runs(fork)
        if isinstance(node, Top):
            staged = table.stage(fork, rows, local=local)
            return table.replace_rows(fork, [staged], replace(note, mode="run 0")).version
        if runs >= _FOLD_AFTER:
            return self._fold(number, table, fork, rows, note)
        staged = table.stage(fork, rows, local=local)
        return table.commit_staged(fork, [staged], replace(note, mode=f"run {runs + 1}")).version

    def _fold(
        self, number: int, table: LakeTable, fork: Fork, newest: DataFrame, note: CommitNote
    ) -> Version:
        """All runs and the newest one as one run."""
        node = self._nodes[number]
        assert isinstance(node, Aggregate)
        columns = self._columns(node)
        keys, values = columns[: len(node.keys)], columns[len(node.keys) :]
        both = table.read(self.job.base, fork.version).unionByName(newest)
        folded = both.groupBy(*keys).agg(
            sf.expr(f"max_by(struct({', '.join((*values, _RUN))}), {_RUN}) AS newest")
        )
        rows = folded.selectExpr(*keys, *(f"newest.{value}" for value in (*values, _RUN)))
        alive = rows.where(f"{values[0]} > 0") if keys else rows
        staged = table.stage(fork, alive.orderBy(*keys) if keys else alive)
        return table.replace_rows(fork, [staged], replace(note, mode="run 0")).version

    # -- inside -----------------------------------------------------------------------------------

    def _run(self, node: Aggregate | Top, frame: DataFrame, note: CommitNote) -> DataFrame:
        """Rows of a state with the number of their run; a group that is gone counts 0 rows."""
        columns = self._columns(node)
        named = frame.toDF(*columns)
        if isinstance(node, Aggregate):
            count = columns[len(node.keys)]
            texts = [f"coalesce({c}, 0L) AS {c}" if c == count else c for c in columns]
            named = named.selectExpr(*texts)
        return named.selectExpr(*columns, f"CAST({note.checkpoint or 0} AS BIGINT) AS {_RUN}")

    def _columns(self, node: Aggregate | Top) -> list[str]:
        keys = len(node.keys) if isinstance(node, Aggregate) else len(node.columns)
        rest = len(node.state_columns) - keys
        return [f"k{place}" for place in range(keys)] + [f"a{place}" for place in range(rest)]

    def _schema(self, node: Aggregate | Top) -> StructType:
        fields = [
            StructField(name, _parse_datatype_json_string(self._type(column).json()), nullable=True)
            for name, column in zip(self._columns(node), node.state_columns, strict=True)
        ]
        return StructType(fields).add(_RUN, LongType())

    def _type(self, column: ColumnId) -> Any:
        return self.planned.attributes[column].dataType()

    def _storable(self, node: Aggregate | Top) -> bool:
        texts = [str(self._type(column).catalogString()) for column in node.state_columns]
        return not any(word in text for text in texts for word in _NOT_STORED)

    def _name(self, number: int) -> TableName:
        parts = "__".join((*self.view.namespace, self.view.table))
        return TableName(self.view.catalog, STATE_NAMESPACE, f"{parts}__{number}")

    def _table(self, number: int) -> LakeTable:
        return self.job.lake.load(self._name(number))

    def _version(self, number: int) -> Version:
        assert self.fork.note is not None
        return Version(self.fork.note.companions[str(self._name(number))])

    def _created(self, number: int, note: CommitNote) -> LakeTable:
        name = self._name(number)
        schema = self._schema(self._nodes[number])
        definition = TableDefinition(name=name, schema=schema, comment=f"state of {self.view}")
        if not self.job.lake.exists(name):
            return self.job.lake.create(definition, note)
        table = self.job.lake.load(name)
        if self.job.lake.schema(name).simpleString() != schema.simpleString():
            nothing = self.job.base.createDataFrame([], schema)
            table.redefine(table.fork(), definition, nothing, note)
        return table


def _runs(fork: Fork) -> int:
    mode = None if fork.note is None else fork.note.mode
    return int(mode.removeprefix("run ")) if mode and mode.startswith("run ") else 0
