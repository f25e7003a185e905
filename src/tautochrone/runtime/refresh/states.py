"""State tables: companions of a table that only its refreshes read.

A state is a log of runs. A run holds, for each group that a refresh touched, the group's accumulators after
it (count 0: the group is gone), so the newest run of a key wins. Runs are appended and now and then folded
into one. A companion is read at the snapshot that the view's own commit names, never at its main: what a
crash left behind on main is rolled back by the next refresh.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from tautochrone.errors import TableMissingError
from tautochrone.model import limits
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.lake import CommitMetadata, Fork, LakeTable, TableDefinition
from tautochrone.model.names import TableName, Version
from tautochrone.model.project_build import BuiltState
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.execute.driver_scan import SmallTables, held_in_driver, note_many_rows
from tautochrone.spark.execute.engine import are_few
from tautochrone.spark.execute.materialize import local_relation
from tautochrone.spark.execute.repeated_plans import rows_of_run
from tautochrone.spark.jvm.catalyst import kind
from tautochrone.spark.jvm.driver_calls import select_expressions, with_names
from tautochrone.spark.translate.lowering_context import RowFilter

__all__ = [
    "RUN",
    "STATE_NAMESPACE",
    "StateLayout",
    "States",
    "newest_of_runs",
    "state_definition",
    "state_prefix",
    "states_among",
    "with_run_number",
]

STATE_NAMESPACE = ("_tautochrone",)

RUN = "run"
"""The column that numbers a state's runs, by a sequence of the state's own table."""


def state_prefix(view: TableName) -> str:
    """What the names of a table's states begin with, before their numbers.

    >>> state_prefix(TableName("lake", ("shop",), "totals"))
    'shop__totals__'
    """
    return f"{view.with_underscores}__"


def state_definition(name: TableName, schema: StructType, view: TableName) -> TableDefinition:
    """What the table of a state is created as."""
    return TableDefinition(name=name, schema=schema, comment=f"state of {view}")


def states_among(tables: Iterable[TableName], datasets: Iterable[TableName]) -> list[TableName]:
    """The tables that are states of some datasets, by their whole names.

    >>> totals = TableName("lake", ("shop",), "totals")
    >>> names = "shop__totals__0", "shop__totals__daily__0", "shop__totals__old"
    >>> tables = [TableName("lake", STATE_NAMESPACE, name) for name in names]
    >>> [state.table for state in states_among(tables, [totals])]
    ['shop__totals__0']
    """
    owners = {(dataset.catalog, dataset.with_underscores) for dataset in datasets}
    states = []
    for table in tables:
        owner, _, number = table.table.rpartition("__")
        if table.namespace == STATE_NAMESPACE and number.isdecimal() and (table.catalog, owner) in owners:
            states.append(table)
    return sorted(states)


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


@dataclass(slots=True)
class States:
    """The states of one table, as its fork names them.

    Attributes:
        small_tables: rows of small states, held for the next refresh.
    """

    base: SparkSession
    lake: LakeCatalog
    view: TableName
    layouts: Mapping[int, StateLayout]
    fork: Fork
    small_tables: SmallTables = field(default_factory=SmallTables)
    _tables: dict[int, LakeTable] = field(default_factory=dict)

    def missing_reason(self) -> Reason | None:
        """Why the states do not belong to the view's rows, or None."""
        companions = {} if self.fork.commit_metadata is None else self.fork.commit_metadata.companions
        expected = {str(self._name(number)) for number in self.layouts}
        if unknown_states := sorted(companions.keys() - expected):
            # Rows that were computed with another state may differ from new ones in the last bit of a float.
            return Reason.of(ReasonCode.STATE_NOT_IN_PLAN, state=unknown_states[0])
        reasons = (self._why_unusable(number, layout, companions) for number, layout in self.layouts.items())
        return next((reason for reason in reasons if reason is not None), None)

    def _why_unusable(self, number: int, layout: StateLayout, companions: Mapping[str, str]) -> Reason | None:
        name = self._name(number)
        if str(name) not in companions:
            return Reason.of(ReasonCode.STATE_MISSING, state=name.table)
        try:
            fork = self._table(number).fork()
        except TableMissingError:
            return Reason.of(ReasonCode.STATE_TABLE_GONE, state=str(name))
        if fork.commit_metadata is None or fork.commit_metadata.definition != layout.signature:
            return Reason.of(ReasonCode.STATE_FORMAT_DIFFERS, state=name.table)
        version, table = self._version(number), self._table(number)
        if fork.version == version:
            return None
        if not table.goes_back_to(version):
            # The view was rolled back further than its states are kept.
            return Reason.of(ReasonCode.STATE_EXPIRED, state=name.table)
        metadata = table.merged_commit_metadata_at(version)
        if metadata is None or metadata.definition != layout.signature:
            return Reason.of(ReasonCode.STATE_FORMAT_DIFFERS, state=name.table)
        return None

    def numbers(self) -> frozenset[int]:
        return frozenset(self.layouts)

    def rows(self, number: int, only: RowFilter | None = None) -> DataFrame:
        """A state's rows at the fork."""
        return self.rows_at(number, self._version(number), only)

    def stored_rows(self, number: int) -> DataFrame:
        """All rows that a state's log has at the fork, of older runs too."""
        stored: DataFrame = self._table(number).read(self.base, self._version(number))
        return stored

    def row_count(self, number: int) -> int | None:
        """Rows that a state's log has at the fork; None when its table does not tell."""
        return self._table(number).row_count(self._version(number))

    def rows_at(self, number: int, version: Version, only: RowFilter | None = None) -> DataFrame:
        """A state's rows: its node's state columns in order, the newest run of each key. `only` leaves out
        keys of its log, with all their rows."""
        stored = self.log_at(number, version, only)
        few = are_few(self._table(number).row_count(version))
        return self.newest(number, stored.coalesce(1) if few else stored)

    def newest(self, number: int, stored: DataFrame) -> DataFrame:
        """Of the rows of a state's log the newest of each key."""
        return newest_of_runs(self.layouts[number], stored)

    def log(self, number: int) -> DataFrame:
        """The rows of a state's log at the fork."""
        return self.log_at(number, self._version(number))

    def log_at(self, number: int, version: Version, only: RowFilter | None = None) -> DataFrame:
        """The rows of a state's log. Few are held by the driver: their plan is a local relation."""
        table, name = self._table(number), self._name(number)
        rows = table.row_count(version)

        def read() -> DataFrame:
            stored: DataFrame = table.read(self.base, version)
            return stored

        if rows is not None and rows <= limits.MAX_SMALL_TABLE_ROWS:
            columns = (*self.layouts[number].columns_without_run, RUN)
            stored = self.small_tables.rows(name, version, columns, read)
            return stored if only is None else only(stored)
        stored = read() if only is None else only(read())
        if not are_few(rows):
            note_many_rows(str(name), rows)
            return stored
        local_rows = held_in_driver(stored)
        return stored if local_rows is None else local_rows

    def build(self, number: int, rows: DataFrame, commit_metadata: CommitMetadata) -> Version:
        """Store a state as a whole."""
        layout = self.layouts[number]
        table = self._create(number, commit_metadata)
        fork = table.fork()
        return self._replace(
            layout, table, fork, with_run_number(layout, rows, _next_run(fork)), commit_metadata
        )

    def build_beside(
        self, number: int, rows: DataFrame, commit_metadata: CommitMetadata, branch: str
    ) -> Version:
        """Store a state as a whole on a branch of its table, for rows that are built beside the view's."""
        layout, name = self.layouts[number], self._name(number)
        definition = self._definition(number)
        if not self.lake.exists(name):
            # Its main has no state until the rows are applied.
            self.lake.create(definition, replace(commit_metadata, definition=None, inputs={}))
        run = _next_run(self.lake.load(name).fork())
        stored = with_run_number(layout, rows, run)
        if layout.keys:
            stored = stored.orderBy(*layout.keys)
        metadata = _with_run(layout, commit_metadata, run, 0)
        return self.lake.buildable(name).build(definition, stored, metadata, branch)

    def beside(self, versions: Mapping[int, Version]) -> Mapping[TableName, BuiltState]:
        """States of `build_beside`, as a build records them."""
        return {
            self._name(number): BuiltState(version=version, definition=self.layouts[number].signature)
            for number, version in versions.items()
        }

    def widen(self, number: int, commit_metadata: CommitMetadata) -> None:
        """Give the state's table the columns of the layout that it lacks.

        Raises:
            DefinitionError: `INCOMPATIBLE_SCHEMA_CHANGE`.
        """
        table = self._table(number)
        if table.widen(table.fork(), self.layouts[number].schema, commit_metadata):
            del self._tables[number]

    def companions(self, versions: Mapping[int, Version]) -> Mapping[str, str]:
        """Versions of states as commit metadata names them."""
        return {str(self._name(number)): str(version) for number, version in versions.items()}

    def write(
        self,
        updates: Mapping[int, DataFrame],
        commit_metadata: CommitMetadata,
        local: Collection[int],
        forgets: str = "false",
    ) -> Mapping[str, str]:
        """Append what a refresh changed; answers the companions for the view's commit metadata, all of them.

        Args:
            local: the updates whose rows the driver holds.
            forgets: SQL that is true of rows which need not be kept when runs are folded.
        """
        assert self.fork.commit_metadata is not None
        names = {str(self._name(number)) for number in self.layouts}
        stored = {
            name: version for name, version in self.fork.commit_metadata.companions.items() if name in names
        }
        for number, frame in updates.items():
            stored[str(self._name(number))] = str(
                self._append(number, frame, commit_metadata, forgets, local=number in local)
            )
        return stored

    def _append(
        self, number: int, frame: DataFrame, commit_metadata: CommitMetadata, forgets: str, *, local: bool
    ) -> Version:
        layout, table = self.layouts[number], self._table(number)
        fork = table.fork()
        if fork.version != self._version(number):
            # An earlier refresh ended after the commit of its state and before the view's. Its runs are
            # rolled back, and their numbers are not used again.
            version = self._version(number)
            metadata = table.merged_commit_metadata_at(version)
            runs = 0 if metadata is None or metadata.runs is None else metadata.runs
            table.roll_back(version, _with_run(layout, commit_metadata, _last_run(fork, metadata), runs))
            fork = table.fork()
        run, runs = _next_run(fork), _runs(fork)
        rows = with_run_number(layout, frame, run)
        if layout.is_buffer:
            return self._replace(layout, table, fork, rows, commit_metadata, local=local)
        if runs >= limits.MAX_STATE_RUNS:
            return self._fold(layout, table, fork, rows, commit_metadata, forgets)
        if local and kind(analyzed_plan(rows)) != "LocalRelation":
            rows = dataframe_of_plan(self.base, local_relation(rows)[0])
        staged = table.stage(fork, rows, local=local)
        metadata = _with_run(layout, commit_metadata, run, runs + 1)
        version = table.commit_staged(fork, [staged], metadata).version
        if local:
            self.small_tables.extend(self._name(number), fork.version, version, rows)
        return version

    def _fold(
        self,
        layout: StateLayout,
        table: LakeTable,
        fork: Fork,
        newest: DataFrame,
        commit_metadata: CommitMetadata,
        forgets: str,
    ) -> Version:
        """All runs and the newest one as one run."""
        values = (*layout.values, RUN)
        few = are_few(table.row_count(fork.version))
        # A version from before a column came lacks it.
        both = table.read(self.base, fork.version).unionByName(newest, allowMissingColumns=True)
        if few:
            both = both.coalesce(1)
        folded = both.groupBy(*layout.keys).agg(
            sf.expr(f"max_by(struct({', '.join(values)}), {RUN}) AS newest")
        )
        rows = folded.selectExpr(*layout.keys, *(f"newest.{value}" for value in values))
        alive = rows.where(f"{layout.values[0]} > 0 AND NOT ({forgets})") if layout.keys else rows
        if few:
            # Collected from one task and written from here, without the job of a write.
            alive = alive.sortWithinPartitions(*layout.keys) if layout.keys else alive
            alive = dataframe_of_plan(self.base, local_relation(alive)[0])
        return self._replace(layout, table, fork, alive, commit_metadata, local=few)

    def _replace(
        self,
        layout: StateLayout,
        table: LakeTable,
        fork: Fork,
        rows: DataFrame,
        commit_metadata: CommitMetadata,
        *,
        local: bool = False,
    ) -> Version:
        if layout.keys and not local:
            # Sorted, so that a look-up of few keys reads few files. Local rows become one file anyway.
            rows = rows.orderBy(*layout.keys)
        staged = table.stage(fork, rows, local=local)
        return table.replace_rows(
            fork, [staged], _with_run(layout, commit_metadata, _next_run(fork), 0)
        ).version

    # -- inside -----------------------------------------------------------------------------------

    def _definition(self, number: int) -> TableDefinition:
        return state_definition(self._name(number), self.layouts[number].schema, self.view)

    def _name(self, number: int) -> TableName:
        return TableName(self.view.catalog, STATE_NAMESPACE, f"{state_prefix(self.view)}{number}")

    def _table(self, number: int) -> LakeTable:
        if number not in self._tables:
            self._tables[number] = self.lake.load(self._name(number))
        return self._tables[number]

    def _version(self, number: int) -> Version:
        assert self.fork.commit_metadata is not None
        return Version(self.fork.commit_metadata.companions[str(self._name(number))])

    def _create(self, number: int, commit_metadata: CommitMetadata) -> LakeTable:
        name, schema, definition = self._name(number), self.layouts[number].schema, self._definition(number)
        if not self.lake.exists(name):
            return self.lake.create(definition, commit_metadata)
        table = self._table(number)
        if self.lake.schema(name).simpleString() != schema.simpleString():
            nothing = self.base.createDataFrame([], schema)
            table.redefine(table.fork(), definition, nothing, commit_metadata)
        return table


def newest_of_runs(layout: StateLayout, log: DataFrame) -> DataFrame:
    """Of the rows of a state's log the newest of each key."""
    if layout.is_buffer:
        return log.select(*layout.columns_without_run)
    newest = sf.expr(f"max_by(struct({', '.join(layout.values)}), {RUN}) AS newest")
    grouped = log.groupBy(*layout.keys).agg(newest)
    return select_expressions(grouped, [*layout.keys, *(f"newest.{value}" for value in layout.values)])


def with_run_number(layout: StateLayout, frame: DataFrame, run: int) -> DataFrame:
    """Rows of a state with the number of their run; a group that is gone counts 0 rows."""
    plan, count = analyzed_plan(frame), -1 if layout.is_buffer else len(layout.keys)
    if kind(plan) == "LocalRelation":
        return rows_of_run(frame.sparkSession, plan, (*layout.columns_without_run, RUN), run, count)
    texts = list(layout.columns_without_run)
    if not layout.is_buffer:
        texts[count] = f"coalesce({texts[count]}, 0L) AS {texts[count]}"
    return select_expressions(
        with_names(frame, layout.columns_without_run), [*texts, f"CAST({run} AS BIGINT) AS {RUN}"]
    )


def _with_run(layout: StateLayout, commit_metadata: CommitMetadata, run: int, runs: int) -> CommitMetadata:
    """What a state's commit says: its newest run, how many were added since they were folded, and how they
    are to be read."""
    return replace(commit_metadata, run=run, runs=runs, definition=layout.signature)


def _last_run(fork: Fork, *older: CommitMetadata | None) -> int:
    """The highest run that the state's table ever had, as far as main and this commit metadata say."""
    return max(
        0,
        *(
            commit_metadata.run or 0
            for commit_metadata in (fork.commit_metadata, *older)
            if commit_metadata is not None
        ),
    )


def _next_run(fork: Fork) -> int:
    return _last_run(fork) + 1


def _runs(fork: Fork) -> int:
    return (
        0 if fork.commit_metadata is None or fork.commit_metadata.runs is None else fork.commit_metadata.runs
    )
