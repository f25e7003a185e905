"""Resolving a graph before anything is built: every flow is evaluated over empty tables in memory.

Each flow is evaluated; when Spark does not find a table, the dataset of that name is resolved first (or an
external table is created empty) and the flow is evaluated again. So Spark alone decides what a name
means, and definitions may come in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError, all_at_once
from tautochrone.iceberg.sessions.spark_sessions import EmptyCatalog
from tautochrone.model.auto_cdc import keyed_apply_of, with_kept_columns
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.names import TableName, quoted
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.auto_cdc import (
    SnapshotFunction,
    check_auto_cdc,
    check_sequence,
    event_table,
    over_event_tables,
    over_snapshot_table,
    without_unused_quarantine,
    written_columns,
)
from tautochrone.project.databricks.files import collected_clauses
from tautochrone.project.definitions import (
    Definitions,
    DefinitionWarning,
    Flow,
    circular_error,
    is_view,
    missing_relation,
    table_not_found_error,
)
from tautochrone.project.evaluations import Evaluated, Evaluations
from tautochrone.project.graph import UNSTABLE_FUNCTION, Graph, Invariant, ResolvedFlow, evaluate_over_files
from tautochrone.project.identity import Identity, function_text, identity_of
from tautochrone.project.invariant_files import as_invariant
from tautochrone.project.session_settings import row_settings
from tautochrone.project.table_properties import check_event_times, check_policies
from tautochrone.project.validate import check_query_type, did_you_mean, table_schema, with_stored
from tautochrone.spark.analysis.analyzed_plan import (
    analyzed_plan,
    determinism,
    forwarded_table,
    inputs_of,
    linearity,
    relations_of,
    stateful_node,
    temp_views_of,
)
from tautochrone.spark.analysis.file_relations import (
    FileReads,
    file_relations,
    obstacle_to_following,
    with_file_tables,
)
from tautochrone.spark.analysis.file_relations import table_schema as file_table_schema
from tautochrone.spark.analysis.session_context import SqlDefaults, settings_at_start
from tautochrone.spark.sources.registry import external_sources

__all__ = ["ExternalSchema", "analyse"]

ExternalSchema = Callable[[TableName], StructType | None]
"""Returns the schema of an external table of the lake, or None when there is no such table."""


def analyse(
    definitions: Definitions,
    base_session: SparkSession,
    catalog_name: str,
    external_schema: ExternalSchema,
    former: Mapping[TableName, TableName] = MappingProxyType({}),
) -> Graph:
    """Resolve all flows. Writes nothing, runs no query.

    Args:
        definitions: from `load_definitions`, with the same catalog name.
        base_session: any session; only its Spark context is used, with the settings it was started with.
        catalog_name: the lake catalog's name in Spark.
        external_schema: see `ExternalSchema`.
        former: other names of tables. Fingerprints are those that queries had when they read them by these.

    Raises:
        DefinitionError: a flow does not resolve, datasets depend on each other in a cycle, or a query is
            of the wrong kind for its target; with Spark's class where Spark has one, and `file:line`.
    """
    empty_catalog = EmptyCatalog(base_session, catalog_name)
    return _Analysis(definitions, empty_catalog, external_schema, former).run()


class _InputFailedError(Exception):
    """A dataset cannot be resolved because of an error that is already known."""


class _Analysis:
    """The analysis of one graph. `path` holds the datasets that are being resolved, outermost first."""

    def __init__(
        self,
        definitions: Definitions,
        empty_catalog: EmptyCatalog,
        external_schema: ExternalSchema,
        former: Mapping[TableName, TableName],
    ) -> None:
        self._definitions = definitions.with_temporary_views_apart(
            lambda name: external_schema(name) is not None
        )
        self._empty_catalog = empty_catalog
        self._external_schema = external_schema
        self._former = former
        self._resolved: dict[str, ResolvedFlow] = {}
        self._schemas: dict[TableName, StructType] = {}
        self._order: list[TableName] = []
        self._external: set[TableName] = set()
        self._errors: dict[TableName, DefinitionError] = {}
        self._started_with = settings_at_start(empty_catalog.session)
        self._sql_defaults = SqlDefaults(empty_catalog.session)
        self._settings: dict[str, list[object]] = {}
        self._evaluations = Evaluations(empty_catalog.session)

    def run(self) -> Graph:
        # Evaluating a flow sets the current database, which must exist.
        for flow in (*self._definitions.flows, *self._definitions.invariants):
            self._empty_catalog.ensure_namespace(flow.scope.namespace)
        self._definitions.scope.prefer_tables_in_live(lambda name: self._external_schema(name) is not None)
        for name in self._definitions.datasets:
            if name in self._definitions.datasets:  # analysis may take a quarantine table out
                with suppress(_InputFailedError):
                    self._dataset(name, ())
        for flow in self._definitions.flows:
            if flow.target not in self._definitions.datasets:  # flows into sinks
                with suppress(_InputFailedError):
                    self._collecting(flow.target, partial(self._flow, flow, (flow.target,)))
        if self._errors:
            raise all_at_once(list(self._errors.values()))
        check_event_times(self._definitions.datasets.values(), self._schemas)
        invariants = [self._invariant(flow) for flow in self._definitions.invariants]
        return Graph(
            definitions=self._definitions,
            flows={flow.name: self._resolved[flow.name] for flow in self._definitions.flows},
            order=tuple(self._order),
            schemas=self._schemas,
            external=frozenset(self._external),
            invariants=tuple(invariants),
            analysis_session=self._empty_catalog.session,
        )

    def _dataset(self, name: TableName, path: tuple[TableName, ...]) -> None:
        if name in self._schemas:
            return
        if name in self._errors:
            raise _InputFailedError
        if name in path:
            raise circular_error(path[-1], name, str(self._definitions.datasets[path[-1]].location))
        self._collecting(name, partial(self._resolve_dataset, name, path))

    def _collecting(self, name: TableName, resolve: Callable[[], object]) -> None:
        """Keep the error of a dataset, and go on with those that do not read it.

        Raises:
            _InputFailedError: it has an error, or what it reads has one.
        """
        try:
            resolve()
        except DefinitionError as error:
            self._errors[name] = error
            raise _InputFailedError from error

    def _resolve_dataset(self, name: TableName, path: tuple[TableName, ...]) -> None:
        dataset = self._definitions.datasets[name]
        flows = self._definitions.flows_of(name)
        check_auto_cdc(dataset, flows)
        for flow in flows:
            self._definitions = over_snapshot_table(self._definitions, flow)
        flows = self._definitions.flows_of(name)
        frames = [self._flow(flow, (*path, name)) for flow in flows]
        for frame in frames:
            check_sequence(dataset, frame.schema)
        for number in over_event_tables([self._resolved[flow.name] for flow in flows]):
            frames[number] = self._over_event_table(flows[number], (*path, name))
        self._definitions = without_unused_quarantine(self._definitions, name)
        flows = self._definitions.flows_of(name)
        if is_view(dataset):
            frames[0].createOrReplaceTempView(quoted(self._definitions.view_name(name)))
            self._schemas[name] = frames[0].schema
        else:
            self._table(self._definitions.datasets[name], flows, frames)

    def _table(self, dataset: Dataset, flows: tuple[Flow, ...], frames: list[DataFrame]) -> None:
        schema = table_schema(
            dataset,
            [(flow, written_columns(flow, frame.schema)) for flow, frame in zip(flows, frames, strict=True)],
            self._empty_catalog.session,
        )
        if dataset.kind is DatasetKind.STREAMING_TABLE:
            schema = self._with_stored(dataset, schema)
        self._schemas[dataset.name] = self._empty_catalog.create_table(
            dataset.name, schema, str(dataset.location)
        )
        self._order.append(dataset.name)

    def _with_stored(self, dataset: Dataset, schema: StructType) -> StructType:
        stored = self._external_schema(dataset.name)
        apply = keyed_apply_of(dataset.properties, str(dataset.location))
        if stored is None or apply is None or not apply.keeps_columns:
            return with_stored(schema, stored)
        properties = with_kept_columns(dataset.properties, schema.fieldNames(), stored.fieldNames())
        datasets = {**self._definitions.datasets, dataset.name: replace(dataset, properties=properties)}
        self._definitions = replace(self._definitions, datasets=datasets)
        kept = {name.lower() for name in stored.fieldNames()}
        return with_stored(StructType([field for field in schema if field.name.lower() in kept]), stored)

    def _over_event_table(self, flow: Flow, path: tuple[TableName, ...]) -> DataFrame:
        """The events of an AUTO CDC flow, read from the table that takes them."""
        events = event_table(self._definitions, flow)
        self._definitions = events.definitions
        self._dataset(events.name, path)
        return self._flow(events.merging, path)

    def _invariant(self, flow: Flow) -> Invariant:
        frame = self._evaluate(flow, ())[0]
        return as_invariant(self._resolve(flow, frame, frame), self._order)

    def _flow(self, flow: Flow, path: tuple[TableName, ...]) -> DataFrame:
        frame, reads = self._evaluate(flow, path)
        self._decide_kind(flow, streaming=bool(frame.isStreaming))
        check_query_type(self._kind(flow), flow, streaming=bool(frame.isStreaming))
        followed, obstacle = frame, None
        if self._kind(flow) is DatasetKind.MATERIALIZED_VIEW:
            followed, obstacle = self._over_file_tables(flow, frame, reads)
        resolved = self._resolve(flow, followed, frame)
        if obstacle is not None:
            described = tuple(f"{text} ({obstacle})" for text in resolved.inputs.unversioned)
            resolved = replace(resolved, inputs=replace(resolved.inputs, unversioned=described))
        self._resolved[flow.name] = resolved
        return frame

    def _decide_kind(self, flow: Flow, *, streaming: bool) -> None:
        """A dataset whose query decides is a streaming table or a materialized view from here on."""
        dataset = self._definitions.datasets.get(flow.target)
        if dataset is not None and dataset.is_kind_by_query:
            kind = DatasetKind.STREAMING_TABLE if streaming else DatasetKind.MATERIALIZED_VIEW
            decided = replace(dataset, kind=kind, is_kind_by_query=False)
            check_policies([decided])
            datasets = {**self._definitions.datasets, flow.target: decided}
            self._definitions = replace(self._definitions, datasets=datasets)

    def _over_file_tables(
        self, flow: Flow, frame: DataFrame, reads: FileReads
    ) -> tuple[DataFrame, str | None]:
        """A query over files as one over the tables that hold their rows, or itself and the reason."""
        plan = analyzed_plan(flow.with_flags(frame))
        relations = file_relations(plan, reads)
        if not relations:
            return frame, None
        obstacle = obstacle_to_following(plan, reads)
        if obstacle is None and not determinism(plan)[0]:
            return frame, None
        try:
            for relation in relations if obstacle is None else ():
                if relation.table not in self._empty_catalog.tables:
                    self._empty_catalog.create_table(relation.table, file_table_schema(relation.schema))
        except DefinitionError as error:
            obstacle = error.message
        if obstacle is not None:
            return frame, obstacle
        followed = with_file_tables(frame, reads)
        # With another input that has no versions everything is compared anyway: the rows need not be copied.
        return (frame if inputs_of(analyzed_plan(followed), reads.catalog).unversioned else followed), None

    def _evaluate(self, flow: Flow, path: tuple[TableName, ...]) -> tuple[DataFrame, FileReads]:
        last_missing: tuple[str, ...] = ()
        while True:
            try:
                with collected_clauses() as clauses:
                    evaluated = evaluate_over_files(
                        flow,
                        self._empty_catalog.session,
                        self._empty_catalog.catalog,
                        self._definitions.spec.name,
                        partial(self._check_tables, flow),
                    )
                    # A condition may read a table that must be provided first.
                    flow.with_flags(evaluated[0])
                    if evaluated[0].isStreaming and self._is_checked_by_batch(flow):
                        # Batches have the columns alone: no names of tables, nothing that a join hides.
                        flow.with_flags(self._empty_catalog.session.createDataFrame([], evaluated[0].schema))
                self._warn(flow, clauses)
                return evaluated
            except DefinitionError as error:
                parts = missing_relation(error)
                if not parts or parts == last_missing or not self._provide(parts, flow, path):
                    raise self._not_found_error(error, parts, flow) from error
                last_missing = parts

    def _is_checked_by_batch(self, flow: Flow) -> bool:
        """Whether the expectations of a stream are asked of its batches."""
        target = self._definitions.datasets.get(flow.target)
        is_table = target is not None and target.kind is DatasetKind.STREAMING_TABLE
        return is_table and bool(flow.expectations) and flow.auto_cdc is None

    def _warn(self, flow: Flow, clauses: list[str]) -> None:
        """Tell of options of files that have no effect."""
        warnings = [
            DefinitionWarning(
                flow.location, Reason.of(ReasonCode.CLAUSE_IGNORED, statement=flow.name, clause=clause)
            )
            for clause in dict.fromkeys(clauses)
        ]
        if warnings:
            known = self._definitions.warnings
            self._definitions = replace(self._definitions, warnings=(*known, *warnings))

    def _check_tables(self, flow: Flow, query: JavaObject) -> None:
        """Raise for a missing table before Spark resolves the query.

        Spark's analyser loops over some queries with a missing table (a subquery inside
        a window function) and fails without naming the table.
        """
        for parts in relations_of(query):
            name = self._definitions.dataset_named(parts, flow.scope) or flow.scope.find(parts)
            if name is None or name in self._schemas:
                continue
            if name in self._definitions.datasets or self._external_schema(name) is not None:
                raise table_not_found_error(parts)

    def _provide(self, parts: tuple[str, ...], flow: Flow, path: tuple[TableName, ...]) -> bool:
        """Create the missing table, if it is a dataset or an external table."""
        name = self._definitions.dataset_named(parts, flow.scope)
        if name is not None:
            self._dataset(name, path)
            return True
        name = flow.scope.find(parts)
        try:
            schema = self._external_schema(name) if name is not None else None
        except DefinitionError as error:
            error.location = error.location or str(flow.location)
            raise
        if name is None or schema is None:
            return False
        self._schemas[name] = self._empty_catalog.create_table(name, schema, str(flow.location))
        self._external.add(name)
        return True

    def _not_found_error(self, error: DefinitionError, parts: tuple[str, ...], flow: Flow) -> DefinitionError:
        name = flow.scope.find(parts) if parts else None
        other = len(parts) > 2 and not flow.scope.is_ours(parts[0]) and parts[0] not in flow.scope.mapped
        if name is None or other:
            if other:
                error.hint = (
                    f"There is no catalog {parts[0]}: the pipeline's is {self._empty_catalog.catalog}. "
                    f"Another one is defined by spark.sql.catalog.{parts[0]}."
                )
            return error
        datasets = self._definitions.datasets
        others = [known for known in datasets if known != flow.target]
        lowered = TableName(name.catalog, tuple(map(str.lower, name.namespace)), name.table.lower())
        if name != lowered and self._external_schema(lowered) is not None:
            error.hint = f"The lake has {lowered.without_catalog}: only upper and lower case differ."
        elif name in datasets and datasets[name].kind is DatasetKind.TEMPORARY_VIEW:
            error.hint = (
                f"{name.table} is a temporary view, which is in no database. The lake has no "
                f"table {name.without_catalog}."
            )
        else:
            error.hint = (
                did_you_mean(name, others)
                or f"No dataset of this pipeline and no table of the lake is called {name.without_catalog}."
            )
        return error

    def _resolve(self, flow: Flow, frame: DataFrame, evaluated: DataFrame) -> ResolvedFlow:
        """The flow's properties. `frame` is its query over tables that follow its files, `evaluated` the one
        that was defined."""
        # What a condition reads, such as the time, counts as read by the flow.
        plan = analyzed_plan(flow.with_flags(frame))
        streaming = bool(frame.isStreaming)
        state = stateful_node(plan) if streaming else None
        linear, linear_reason = linearity(plan, self._empty_catalog.catalog)
        views = {self._definitions.view_named(view) for view in temp_views_of(plan)} - {None}
        known_views = frozenset(view for view in views if view is not None)
        deterministic, deterministic_reason = determinism(plan)
        definition = self._evaluations.of(
            self._definitions, flow, evaluated, known_views, is_repeatable=deterministic
        )
        if deterministic and not definition.is_stable:
            deterministic, deterministic_reason = False, UNSTABLE_FUNCTION
            linear, linear_reason = False, UNSTABLE_FUNCTION
        inputs = inputs_of(plan, self._empty_catalog.catalog)
        unread = () if streaming else definition.plan.unread
        if unread:
            inputs = replace(inputs, unversioned=(*inputs.unversioned, *unread))
            linear, linear_reason = False, f"it reads {unread[0]}"
        return ResolvedFlow(
            flow=flow,
            pipeline=self._definitions.spec.name,
            schema=frame.schema,
            inputs=inputs,
            views=known_views,
            streaming=streaming,
            stateful=state is not None,
            stateful_reason=state or "",
            linear=linear,
            linear_reason=linear_reason,
            deterministic=deterministic,
            deterministic_reason=deterministic_reason,
            passes_on=forwarded_table(plan, self._empty_catalog.catalog) if streaming else None,
            sources=external_sources(frame) if streaming else frozenset(),
            fingerprint=str(self._identity(flow, frame.schema, known_views, definition)),
            evaluated=None if streaming else definition.plan,
        )

    def _kind(self, flow: Flow) -> DatasetKind:
        dataset = self._definitions.datasets.get(flow.target)
        return dataset.kind if dataset is not None else DatasetKind.SINK

    def _identity(
        self,
        flow: Flow,
        schema: StructType,
        views: frozenset[TableName],
        definition: Evaluated,
    ) -> Identity:
        declared: list[object] = []
        if definition.plan.has_node("CurrentDatabase"):
            declared.append(flow.scope.namespace)
        dataset = self._definitions.datasets.get(flow.target)
        if dataset is not None:
            declared.append([dataset.schema_ddl, dataset.partition_columns, dataset.cluster_columns])
        if flow.auto_cdc is not None:
            declared.append(flow.auto_cdc.text)
        functions: list[object] = [*definition.code]
        if isinstance(flow.snapshots, SnapshotFunction):
            functions.append(function_text(flow.snapshots.function, self._definitions.folders))
        settings: list[object] = [row_settings(self._started_with, flow.conf, self._sql_defaults)]
        if flow.expectations:
            # Counts of violations belong to the conditions: with others, all rows are counted again.
            settings.append([[e.name, str(e.action)] for e in flow.expectations])
        for view in sorted(views):
            for view_flow in self._definitions.flows_of(view):
                settings += [part for part in self._settings[view_flow.name] if part not in settings]
        self._settings[flow.name] = settings
        plan = definition.plan.with_former_names(self._former) if self._former else definition.plan
        return identity_of(plan, schema, declared, functions, settings)
