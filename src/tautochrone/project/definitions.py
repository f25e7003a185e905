"""A project's definitions as values: datasets, flows, sinks. A flow can be evaluated in any session."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from py4j.java_gateway import JavaObject
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import DELETE_COLUMN, TRUNCATE_COLUMN, AutoCdc
from tautochrone.model.definitions import Dataset, DatasetKind, Expectation, SourceLocation
from tautochrone.model.names import TableName, quoted
from tautochrone.model.near_names import table_spellings
from tautochrone.model.reason import Reason
from tautochrone.project.explain_failure import CodePosition, explain
from tautochrone.project.spec import PipelineSpec
from tautochrone.project.sqltext import NameScope, split_name
from tautochrone.project.usercode import evaluation_lock
from tautochrone.spark.analysis.session_context import use_session
from tautochrone.spark.execute.expectations import with_flags, without_dropped
from tautochrone.spark.jvm.errors import SparkProblem

__all__ = [
    "DefinitionWarning",
    "Definitions",
    "Flow",
    "Query",
    "QueryListener",
    "Sink",
    "Snapshots",
    "missing_relation",
    "table_not_found_error",
]

QueryListener = Callable[[JavaObject], None]
"""Gets each parsed query before Spark resolves it, and may raise."""


class Query(Protocol):
    """What a flow computes: SQL or a Python function."""

    @property
    def written(self) -> str:
        """The definition as its author wrote it, for people."""

    def evaluate(self, session: SparkSession, listener: QueryListener | None = None) -> DataFrame:
        """The query's rows; the session is active and its current database and settings are right."""

    def view_text(self) -> str | None:
        """The query's SQL when this is a persisted view, else None."""

    def position_of(self, error: BaseException, problem: SparkProblem | None, /) -> CodePosition | None:
        """The position in the user's code that `error` is about; `problem` is Spark's description of it."""


class Snapshots(Protocol):
    """What returns the snapshots of a flow, one after the other."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that identify a row of a snapshot, as the definition spells them."""

    @property
    def data_columns(self) -> StructType:
        """The columns of the snapshots, as they were found when the definitions were analysed."""

    def next_snapshot(self, session: SparkSession, latest_version: Any, /) -> tuple[DataFrame, Any] | None:
        """The snapshot behind a version, or the first one, and its own version; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """A sink outside the lake, which append flows may write."""

    name: TableName
    format: str
    options: Mapping[str, str]
    location: SourceLocation


@dataclass(frozen=True, slots=True)
class DefinitionWarning:
    """Something in a definition file that has another effect than its author may expect."""

    location: SourceLocation
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A query that writes a dataset or a sink.

    `name` is unique in the pipeline: a dataset's own flow has the dataset's name (with its
    database when that is not the pipeline's). `conf` are the Spark settings with which it is analysed
    and run, `expectations` those of its target. With `auto_cdc` its rows are events that are merged.
    With `snapshots` they are the differences of the snapshots that a function returns. `sets_aside`: events
    without a key or a sequence value are left out of the merge.
    """

    name: str
    target: TableName
    location: SourceLocation
    conf: Mapping[str, str] = field(default_factory=dict)
    scope: NameScope = field(repr=False, compare=False)
    query: Query = field(repr=False, compare=False)
    expectations: tuple[Expectation, ...] = ()
    auto_cdc: AutoCdc | None = None
    snapshots: Snapshots | None = field(default=None, repr=False, compare=False)
    sets_aside: bool = field(default=False, repr=False, compare=False)

    def evaluate(
        self, session: SparkSession, listener: QueryListener | None = None, *, with_dropped: bool = False
    ) -> DataFrame:
        """The flow's query as a DataFrame of `session`, analysed, without the rows that expectations drop.

        Temporary views that it reads must exist: `Definitions.prepare`. Safe to call for many
        sessions, one after the other or from several threads. `listener` gets each SQL query before
        Spark resolves it. `with_dropped`: with the rows that expectations drop.

        Raises:
            DefinitionError: Spark's class when Spark refuses, USER_CODE_FAILED when the user's
                Python raises; with `file:line`.
        """
        with evaluation_lock:
            try:
                with use_session(session, self.scope.catalog, self.scope.namespace, self.conf):
                    rows = self.query.evaluate(session, listener)
                    if with_dropped:
                        return rows
                    return without_dropped(rows, self._rewritten(), self._without_row())
            except Exception as error:
                raise explain(error, self.query.position_of, self.location) from error

    def with_flags(self, rows: DataFrame) -> DataFrame:
        """Rows of `evaluate` with a column for each expectation: true if the row violates it, else false.

        A condition sees what the query sees: the flow's settings, its current database and `LIVE.x`.

        Raises:
            DefinitionError: as of `spark.execute.expectations.without_dropped`.
        """
        if not self.expectations:
            return rows
        with (
            evaluation_lock,
            use_session(rows.sparkSession, self.scope.catalog, self.scope.namespace, self.conf),
        ):
            return with_flags(rows, self._rewritten(), self._without_row())

    def _without_row(self) -> Column | None:
        """Which rows are events that write no row, so that expectations say nothing about them."""
        return None if self.auto_cdc is None else sf.col(DELETE_COLUMN) | sf.col(TRUNCATE_COLUMN)

    def _rewritten(self) -> tuple[Expectation, ...]:
        """The expectations with the names of the pipeline's datasets as Spark knows them."""
        return tuple(replace(e, condition=self.scope.rewrite(e.condition)) for e in self.expectations)


_TEMPORARY_VIEWS = "temporary views"
"""Stands for the database in the full name of a temporary view that is called like a table of the lake."""


def table_not_found_error(parts: tuple[str, ...]) -> DefinitionError:
    """Spark's error for a table that it does not find."""
    name = quoted(*parts)
    return DefinitionError(
        "TABLE_OR_VIEW_NOT_FOUND",
        f"The table or view {name} cannot be found",
        sqlstate="42P01",
        parameters={"relationName": name},
    )


def missing_relation(error: DefinitionError) -> tuple[str, ...]:
    """The parts of the table's name that Spark did not find; empty for other errors."""
    if not error.error_class.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        return ()
    return split_name(error.parameters.get("relationName", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """Everything that a project defines. `scope` resolves its names where no `USE` is in force."""

    spec: PipelineSpec
    scope: NameScope
    datasets: Mapping[TableName, Dataset]
    flows: tuple[Flow, ...]
    sinks: Mapping[TableName, Sink] = field(default_factory=dict)
    invariants: tuple[Flow, ...] = ()
    """Queries that must return no row; their names are no datasets."""
    warnings: tuple[DefinitionWarning, ...] = ()
    folders: tuple[Path, ...] = ()
    """Where the project's Python files are."""
    data_sources: Sequence[type[DataSource]] = ()
    """What the files registered while they were imported."""

    def flows_of(self, target: TableName) -> tuple[Flow, ...]:
        """The flows that write `target`, in the order of definition."""
        return tuple(flow for flow in self.flows if flow.target == target)

    def view_name(self, name: TableName) -> str:
        """The temporary view that stands for a view in a session."""
        return self.scope.views.get(name, name.table)

    def view_named(self, part: str) -> TableName | None:
        """The view behind a temporary view's name."""
        for name, dataset in self.datasets.items():
            if is_view(dataset) and self.view_name(name).lower() == part.lower():
                return name
        return None

    def dataset_named(self, parts: tuple[str, ...], scope: NameScope) -> TableName | None:
        """The dataset that a name in a query refers to; case does not matter, as in Spark.

        A temporary view is in no database, so a name with a database means a table.
        """
        view = self.view_named(parts[0]) if len(parts) == 1 else None
        if view is not None:
            return view
        full_name = scope.find(parts)
        if full_name is None:
            return None
        lowered = str(full_name).lower()
        return next(
            (
                name
                for name, dataset in self.datasets.items()
                if str(name).lower() == lowered and dataset.kind is not DatasetKind.TEMPORARY_VIEW
            ),
            None,
        )

    def spellings(self, name: str) -> list[str]:
        """How users may write the full name of a dataset: what `dataset_named` takes for it."""
        return [
            written
            for written in table_spellings(name)
            if str(self.dataset_named(tuple(written.split(".")), self.scope)) == name
        ]

    def with_temporary_views_apart(self, is_table: Callable[[TableName], bool]) -> Definitions:
        """The same definitions, where no temporary view has the full name of a table of the lake.

        `is_table` tells whether the lake has a table of this name. A temporary view `t` may read the
        table `db.t`, as in Spark.
        """
        apart = {
            name: TableName(name.catalog, (_TEMPORARY_VIEWS,), name.table)
            for name, dataset in self.datasets.items()
            if dataset.kind is DatasetKind.TEMPORARY_VIEW and is_table(name)
        }
        if not apart:
            return self
        datasets = {
            apart.get(name, name): replace(dataset, name=apart.get(name, name))
            for name, dataset in self.datasets.items()
        }
        flows = tuple(replace(flow, target=apart.get(flow.target, flow.target)) for flow in self.flows)
        return replace(self, datasets=datasets, flows=flows)

    def prepare(
        self,
        session: SparkSession,
        views: Collection[TableName] | None = None,
        evaluate: Callable[[TableName], DataFrame] | None = None,
    ) -> None:
        """Register views as temporary views of `session`, in dependency order.

        Args:
            session: the tables that the views read must exist in it.
            views: only these and the views below them; all when absent.
            evaluate: gives a view's rows in the session; by default the view's query is evaluated.

        Raises:
            DefinitionError: a view cannot be evaluated, or views depend on each other in a cycle.
        """
        all_views = [name for name, dataset in self.datasets.items() if is_view(dataset)]
        chosen = all_views if views is None else [name for name in all_views if name in views]
        for name in chosen:
            # A view that reads another one must not find what the session showed earlier.
            session.catalog.dropTempView(self.view_name(name))
        registered: set[TableName] = set()
        for name in chosen:
            self._register(name, evaluate or partial(self._evaluate, session), registered, ())

    def _evaluate(self, session: SparkSession, view: TableName) -> DataFrame:
        return self.flows_of(view)[0].evaluate(session)

    def _register(
        self,
        name: TableName,
        evaluate: Callable[[TableName], DataFrame],
        registered: set[TableName],
        path: tuple[TableName, ...],
    ) -> None:
        if name in registered:
            return
        if name in path:
            raise circular_error(path[-1], name, str(self.datasets[path[-1]].location))
        while True:
            try:
                frame = evaluate(name)
                break
            except DefinitionError as error:
                missing_name = missing_relation(error)
                missing_view = self.view_named(missing_name[0]) if len(missing_name) == 1 else None
                if missing_view is None or missing_view in registered:
                    raise
                self._register(missing_view, evaluate, registered, (*path, name))
        frame.createOrReplaceTempView(quoted(self.view_name(name)))
        registered.add(name)


def is_view(dataset: Dataset) -> bool:
    """Whether a dataset is a view that is not stored."""
    return dataset.kind in (DatasetKind.VIEW, DatasetKind.TEMPORARY_VIEW)


def circular_error(downstream: TableName, upstream: TableName, location: str) -> DefinitionError:
    """Spark's error for datasets that depend on each other in a cycle."""
    return DefinitionError(
        "CIRCULAR_DEPENDENCY",
        f"The downstream table '{downstream}' is referenced when creating the upstream table or view "
        f"'{upstream}'. Circular dependencies are not supported in a pipeline. Please remove the "
        f"dependency between '{upstream}' and '{downstream}'",
        location=location,
    )
