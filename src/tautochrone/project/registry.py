"""Our implementation of SDP's registry: collects what definition files register, and checks each item.

What needs the whole graph (unknown targets, cycles, kinds of queries) is checked later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, cast

from pyspark.pipelines import flow as sdp_flow
from pyspark.pipelines import output as sdp_output
from pyspark.pipelines.graph_element_registry import GraphElementRegistry
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import AutoCdc, ColumnChoice
from tautochrone.model.definitions import Dataset, DatasetKind, Expectation, SourceLocation
from tautochrone.model.names import TableName, quoted
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.auto_cdc import DELETED_COLUMN, VERSION_COLUMN, AutoCdcQuery, SnapshotFunction
from tautochrone.project.databricks.expect import ExpectationsByFunction
from tautochrone.project.databricks.modules import TableByQuery, TableOfPipelines
from tautochrone.project.definitions import DefinitionWarning, Flow, Query, Sink
from tautochrone.project.queries import Project, PythonQuery, SqlQuery
from tautochrone.project.sqltext import NameScope
from tautochrone.project.statements import Statement, StatementKind, parse_statements, statement_error
from tautochrone.project.usercode import NamesAtRegistration
from tautochrone.project.validate import check_format, uncounted_expectations, unique_expectations
from tautochrone.spark.jvm.driver_calls import driver_calls, split_texts

__all__ = ["Registry"]

_PACKAGE = Path(__file__).parents[1]
_KINDS = {
    StatementKind.STREAMING_TABLE: DatasetKind.STREAMING_TABLE,
    StatementKind.STREAMING_TABLE_AS: DatasetKind.STREAMING_TABLE,
    StatementKind.MATERIALIZED_VIEW: DatasetKind.MATERIALIZED_VIEW,
    StatementKind.VIEW: DatasetKind.VIEW,
    StatementKind.TEMPORARY_VIEW: DatasetKind.TEMPORARY_VIEW,
}


class Registry(GraphElementRegistry):
    """Collects datasets, flows and sinks. `module` is the namespace of the file being imported.

    `for_databricks` says that a file of the project was written for Databricks.
    """

    def __init__(
        self, session: SparkSession, project: Project, scope: NameScope, conf: Mapping[str, str]
    ) -> None:
        self._session = session
        self._project = project
        self._scope = scope
        self._conf = dict(conf)
        self.for_databricks = False
        self.module: dict[str, Any] = {}
        self.modules: list[ModuleType] = []
        self.datasets: dict[TableName, Dataset] = {}
        self.sinks: dict[TableName, Sink] = {}
        self.flows: list[Flow] = []
        self.warnings: list[DefinitionWarning] = []
        self.expectations = ExpectationsByFunction()

    # Databricks' dialect ----------------------------------------------------------------------

    def location(self, location: Any) -> SourceLocation:
        """A place in Python code as people should see it: in the project, where it called a function that
        defines datasets, such as a capture."""
        filename, line = _calling_code(location.filename, location.line_number)
        return SourceLocation(self._project.shown(filename), line)

    def record_ignored(self, statement: str, clause: str, location: Any) -> None:
        """A part of a definition that has no effect here."""
        reason = Reason.of(ReasonCode.CLAUSE_IGNORED, statement=statement, clause=clause)
        self.warnings.append(DefinitionWarning(self.location(location), reason))

    def settings_ignored(self, names: Iterable[str], statement: str, location: SourceLocation) -> None:
        """Tell which settings only Databricks reads."""
        for name in names:
            if name.lower().startswith("spark.databricks."):
                reason = Reason.of(ReasonCode.CLAUSE_IGNORED, statement=statement, clause=name)
                self.warnings.append(DefinitionWarning(location, reason))

    def expect(self, name: str, expectations: Sequence[Expectation], location: Any) -> None:
        """Expectations of a dataset that is registered."""
        resolved = self._scope.resolve(self._parts(name, self.location(location)))
        dataset = self.datasets[resolved]
        self.datasets[resolved] = replace(
            dataset, expectations=unique_expectations((*dataset.expectations, *expectations), dataset)
        )

    def finish(self) -> None:
        """Give each dataset the expectations of its functions, and each flow those of its dataset."""
        for flow in self.flows:
            if not isinstance(flow.query, PythonQuery):
                continue
            expectations = self.expectations.of(flow.query.function)
            dataset = self.datasets.get(flow.target)
            if not expectations:
                continue
            if dataset is None or flow.location != dataset.location:
                raise DefinitionError(
                    "INVALID_EXPECTATION",
                    f"Flow {flow.name} has expectations of its own",
                    location=str(flow.location),
                    hint="Give them to the table: create_streaming_table(expect_all=...).",
                )
            self.datasets[flow.target] = replace(
                dataset, expectations=unique_expectations((*dataset.expectations, *expectations), dataset)
            )
        self.flows = [
            replace(flow, expectations=self.datasets[flow.target].expectations)
            if flow.target in self.datasets
            else flow
            for flow in map(self._with_live_target, self.flows)
        ]
        self.warnings += uncounted_expectations(self.datasets.values())

    def _with_live_target(self, flow: Flow) -> Flow:
        """A flow into `LIVE.x` writes the dataset x."""
        target = flow.target
        if target in self.datasets or len(target.namespace) > 1:
            return flow
        dataset = self._scope.live_dataset((*target.namespace, target.table))
        return flow if dataset is None else replace(flow, target=dataset[0])

    # Python -----------------------------------------------------------------------------------

    def register_output(self, output: sdp_output.Output) -> None:
        location = self.location(output.source_code_location)
        parts = self._parts(output.name, location)
        if isinstance(output, sdp_output.Sink):
            _single(parts, "MULTIPART_SINK_NAME_NOT_SUPPORTED", "Sink", location)
            name = self._scope.resolve(parts)
            self._add_sink(
                Sink(name=name, format=output.format, options=dict(output.options), location=location)
            )
        elif isinstance(output, sdp_output.TemporaryView):
            _single(parts, "MULTIPART_TEMPORARY_VIEW_NAME_NOT_SUPPORTED", "Temporary view", location)
            self._add(
                Dataset(self._scope.resolve(parts), DatasetKind.TEMPORARY_VIEW, location, output.comment)
            )
        elif isinstance(output, sdp_output.Table):
            materialized = isinstance(output, sdp_output.MaterializedView)
            by_query = (TableByQuery, TableOfPipelines) if self.for_databricks else TableByQuery
            self._add(
                Dataset(
                    name=self._scope.resolve(parts, str(location)),
                    kind=DatasetKind.MATERIALIZED_VIEW if materialized else DatasetKind.STREAMING_TABLE,
                    location=location,
                    comment=output.comment,
                    schema_ddl=self._ddl(output.schema),
                    format=output.format.lower() if output.format else None,
                    partition_columns=tuple(output.partition_cols or ()),
                    cluster_columns=tuple(output.cluster_by or ()),
                    properties={key: str(value) for key, value in output.table_properties.items()},
                    is_kind_by_query=isinstance(output, by_query),
                )
            )

    def register_flow(self, flow: sdp_flow.Flow) -> None:
        location = self.location(flow.source_code_location)
        name, target = self._parts(flow.name, location), self._parts(flow.target, location)
        function = flow.func
        query = PythonQuery(
            function,
            self._project,
            self._scope,
            NamesAtRegistration.of(function, self.module, self.modules),
        )
        self.settings_ignored(flow.spark_conf, flow.name, location)
        self._add_flow(name, target, location, query, self._scope, flow.spark_conf)

    def register_auto_cdc(
        self, name: str, target: str, source: str, auto_cdc: AutoCdc, code_location: Any
    ) -> None:
        """A flow that merges the events of a dataset or table, which it reads as a stream."""
        location = self.location(code_location)
        source_parts = self._parts(source, location)
        if auto_cdc.snapshots_of is not None:
            auto_cdc = replace(auto_cdc, snapshots_of=source_parts)
        text = f"SELECT * FROM STREAM {quoted(*source_parts)}"
        query = SqlQuery(text, location, self._scope)
        flow_parts = self._parts(name, location)
        self._add_flow(flow_parts, self._parts(target, location), location, query, self._scope, {}, auto_cdc)

    def register_snapshots(
        self,
        name: str,
        target: str,
        function: Callable[[Any], Any],
        auto_cdc: AutoCdc,
        code_location: Any,
    ) -> None:
        """A flow that merges what changes from one snapshot of a function to the next."""
        location = self.location(code_location)
        snapshots = SnapshotFunction(
            function,
            auto_cdc.keys,
            self._project,
            self._scope,
            NamesAtRegistration.of(function, self.module, self.modules),
            location,
            self._conf,
        )
        own_columns = (VERSION_COLUMN, DELETED_COLUMN)
        merged = replace(
            auto_cdc,
            sequence=VERSION_COLUMN,
            delete=DELETED_COLUMN,
            columns=ColumnChoice(own_columns, is_except=True),
        )
        parts = self._parts(name, location), self._parts(target, location)
        self._add_flow(*parts, location, snapshots, self._scope, {}, merged)

    def _ddl(self, schema: StructType | str | None) -> str | None:
        if isinstance(schema, StructType):
            jvm = self._session._jvm  # noqa: SLF001
            assert jvm is not None
            return str(jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()).toDDL())
        return schema

    def _parts(self, name: str, location: SourceLocation) -> tuple[str, ...]:
        try:
            return tuple(split_texts(str(driver_calls().nameParts(name))))
        except Exception as error:
            raise DefinitionError(
                "INVALID_IDENTIFIER",
                f"The name {name!r} is invalid",
                sqlstate="42602",
                location=str(location),
                hint="Put names with hyphens and other signs between backticks.",
            ) from error

    # SQL --------------------------------------------------------------------------------------

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        self.register_cells([(sql_text, str(file_path))])

    def register_cells(self, cells: Iterable[tuple[str, str]]) -> None:
        """Register the statements of texts for which `USE` and `SET` go on, each with what it is called."""
        scope, conf = self._scope, dict[str, str]()
        for statement in (
            statement for text, shown in cells for statement in parse_statements(text, shown, self._session)
        ):
            location = str(statement.location)
            for clause in statement.dialect.ignored:
                reason = Reason.of(
                    ReasonCode.CLAUSE_IGNORED, statement=".".join(statement.name), clause=clause
                )
                self.warnings.append(DefinitionWarning(statement.location, reason))
            match statement.kind:
                case StatementKind.SET if statement.value is None:
                    self._show_setting(statement)
                case StatementKind.SET:
                    conf[statement.name[0]] = cast(str, statement.value)
                    self.settings_ignored(statement.name, "SET", statement.location)
                case StatementKind.USE:
                    # `USE lake.db` names the catalog too; a single name is a database.
                    if len(statement.name) > 1:
                        scope.require_pipeline_catalog(statement.name[0], location)
                    full_name = (
                        scope.resolve((*statement.name, "x"), location) if len(statement.name) > 1 else None
                    )
                    scope = scope.within(full_name.namespace if full_name else statement.name)
                case StatementKind.USE_CATALOG:
                    scope.require_pipeline_catalog(statement.name[0], location)
                case StatementKind.FLOW:
                    query = self._sql_query(statement, scope)
                    self._add_flow(
                        statement.name,
                        statement.flow_target,
                        statement.location,
                        query,
                        scope,
                        conf,
                        statement.auto_cdc,
                    )
                case _:
                    self._dataset(statement, scope, conf)

    def _show_setting(self, statement: Statement) -> None:
        """`SET key` shows a value: notebooks of Databricks have it, Spark's definition files may not."""
        if not self.for_databricks:
            raise statement_error(
                "Invalid SET command without value",
                statement.location,
                f"Write SET {statement.name[0]} = …, or leave it out: a definition file shows nothing.",
            )
        reason = Reason.of(
            ReasonCode.CLAUSE_IGNORED, statement=statement.name[0], clause="SET without a value"
        )
        self.warnings.append(DefinitionWarning(statement.location, reason))

    def _sql_query(self, statement: Statement, scope: NameScope) -> SqlQuery:
        return SqlQuery(
            statement.text,
            statement.location,
            scope,
            statement.view_columns,
            statement.dialect.files,
        )

    def _dataset(self, statement: Statement, scope: NameScope, conf: Mapping[str, str]) -> None:
        kind = _KINDS[statement.kind]
        # Temporary views belong to no database; they are registered under the pipeline's.
        name_scope = self._scope if kind is DatasetKind.TEMPORARY_VIEW else scope
        name = name_scope.resolve(statement.name, str(statement.location))
        self._add(
            Dataset(
                name=name,
                kind=kind,
                location=statement.location,
                comment=statement.comment,
                schema_ddl=statement.schema_ddl,
                format=statement.format,
                partition_columns=statement.partition_columns,
                cluster_columns=statement.cluster_columns,
                properties={**statement.properties, **statement.dialect.properties},
                expectations=statement.dialect.expectations,
            )
        )
        if statement.kind is not StatementKind.STREAMING_TABLE:
            dataset_name = (name.catalog, *name.namespace, name.table)
            query = self._sql_query(statement, scope)
            self._add_flow(dataset_name, dataset_name, statement.location, query, scope, conf)

    # Both -------------------------------------------------------------------------------------

    def _add(self, dataset: Dataset) -> None:
        check_format(dataset)
        self._unique(dataset.name, dataset.kind, dataset.location)
        name = dataset.name
        self.datasets[name] = dataset
        if dataset.kind is DatasetKind.VIEW:
            taken = {part.lower() for part in self._scope.views.values()}
            self._scope.views[name] = name.table if name.table.lower() not in taken else name.without_catalog
        # Datasets in the pipeline's own database come first.
        if name.namespace == self._scope.namespace or name.table.lower() not in self._scope.live:
            temporary = dataset.kind is DatasetKind.TEMPORARY_VIEW
            view = name.table if temporary else self._scope.views.get(name)
            self._scope.live[name.table.lower()] = name, quoted(view) if view else name.sql

    def _add_sink(self, sink: Sink) -> None:
        self._unique(sink.name, DatasetKind.SINK, sink.location)
        self.sinks[sink.name] = sink

    def _unique(self, name: TableName, kind: DatasetKind, location: SourceLocation) -> None:
        everything: dict[TableName, Dataset | Sink] = {**self.datasets, **self.sinks}
        for known_name, known in everything.items():
            known_kind = known.kind if isinstance(known, Dataset) else DatasetKind.SINK
            if str(known_name).lower() == str(name).lower():
                raise DefinitionError(
                    "PIPELINE_DUPLICATE_IDENTIFIERS.OUTPUT",
                    f"Attempted to register a {kind} with identifier {name}, but a {known_kind} has already "
                    f"been registered with that identifier (at {known.location}). Please ensure all "
                    "outputs created within this pipeline have unique identifiers.",
                    sqlstate="42710",
                    location=str(location),
                    hint="Rename one of them. The names of captured tables begin with that of their capture: "
                    "rename a capture, or leave a table out with exclude=[…].",
                )
            if (name_of_state := _name_of_state(kind, name)) and (
                name_of_state == _name_of_state(known_kind, known_name)
            ):
                raise DefinitionError(
                    "STATE_NAME_TAKEN",
                    f"What is kept for {name} would have the names of what is kept for {known_name} (at "
                    f"{known.location}): both are called {name_of_state[1]}",
                    location=str(location),
                    hint="rename one of them",
                    sqlstate="42710",
                )

    def _add_flow(
        self,
        name: tuple[str, ...],
        target: tuple[str, ...],
        location: SourceLocation,
        query: Query,
        scope: NameScope,
        conf: Mapping[str, Any],
        auto_cdc: AutoCdc | None = None,
    ) -> None:
        snapshots = query if isinstance(query, SnapshotFunction) else None
        if auto_cdc is not None:
            auto_cdc.check(str(location))
            if auto_cdc.is_once:
                reason = Reason.of(ReasonCode.CLAUSE_IGNORED, statement=".".join(name), clause="once")
                self.warnings.append(DefinitionWarning(location, reason))
            query = AutoCdcQuery(query, auto_cdc, str(location))
        location_text = str(location)
        resolved = scope.resolve(target, location_text)
        if name == target:
            text = resolved.table if resolved.namespace == self._scope.namespace else resolved.without_catalog
        elif len(name) > 1:
            raise DefinitionError(
                "MULTIPART_FLOW_NAME_NOT_SUPPORTED",
                f"Flow with multipart name '{'.'.join(name)}' is not supported.",
                sqlstate="0A000",
                location=location_text,
            )
        else:
            text = name[0]
        for known_flow in self.flows:
            if known_flow.name.lower() == text.lower():
                targets = f"{known_flow.target} (at {known_flow.location}), {resolved}"
                raise DefinitionError(
                    "PIPELINE_DUPLICATE_IDENTIFIERS.FLOW",
                    f"Flow {text} was found in multiple datasets: {targets}",
                    sqlstate="42710",
                    location=location_text,
                    hint="Give one of the flows a name of its own.",
                )
        settings = {**self._conf, **{key: str(value) for key, value in conf.items()}}
        self.flows.append(
            Flow(
                name=text,
                target=resolved,
                location=location,
                conf=settings,
                scope=scope,
                query=query,
                auto_cdc=auto_cdc,
                snapshots=snapshots,
            )
        )


def _calling_code(filename: str, line: int) -> tuple[str, int]:
    """The line outside this package that called a function of it; other lines stay as they are."""
    if not Path(filename).is_relative_to(_PACKAGE):
        return filename, line
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename != filename:
        frame = frame.f_back
    while frame is not None and Path(frame.f_code.co_filename).is_relative_to(_PACKAGE):
        frame = frame.f_back
    return (filename, line) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _single(parts: tuple[str, ...], error_class: str, kind_name: str, location: SourceLocation) -> None:
    if len(parts) > 1:
        raise DefinitionError(
            error_class,
            f"{kind_name} with multipart name '{'.'.join(parts)}' is not supported.",
            sqlstate="0A000",
            location=str(location),
        )


def _name_of_state(kind: DatasetKind, name: TableName) -> tuple[str, str] | None:
    """The catalog and what the names of the dataset's states begin with (`runtime.refresh.states`); None: it
    has none."""
    if kind not in (DatasetKind.STREAMING_TABLE, DatasetKind.MATERIALIZED_VIEW):
        return None
    return name.catalog.lower(), name.with_underscores.lower()
