"""AUTO CDC flows: their queries, the tables of their events, functions that return snapshots.

A flow's query yields the columns of its table, and what each event does to it.

A merge follows from two versions of a lake table. Where a flow reads a topic or files, or joins, its events
are written into a table of their own first, and the flow merges that table. Where a flow takes the snapshots
of a view, the view's rows are a materialized view first.

Functions that return snapshots are the source of `create_auto_cdc_from_snapshot_flow`:

    def next_snapshot(latest_version):
        …
        return spark.read.parquet(path), version   # or None

A function is called when definitions are analysed, for the columns of its next snapshot, and by the flow that
takes the snapshots, in its own session. Other than a query function it may run queries.
"""

from __future__ import annotations

import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    BooleanType,
    DataType,
    StructField,
    StructType,
    TimestampType,
    _parse_datatype_string,
)

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import (
    DELETE_COLUMN,
    END_COLUMN,
    POSITION_RESTARTS,
    SEQUENCE_COLUMN,
    START_COLUMN,
    TOMBSTONE_RETENTION,
    TRUNCATE_COLUMN,
    AutoCdc,
    common_auto_cdc,
    position_restarts,
    tombstone_retention_ms,
)
from tautochrone.model.definitions import Dataset, DatasetKind, SourceLocation
from tautochrone.model.names import TableName, quoted
from tautochrone.model.source_position import (
    SNAPSHOT_VERSION_TYPES,
    SnapshotPosition,
    is_wider_number,
    position_of_version,
    version_at,
)
from tautochrone.project.databricks.unsupported import databricks_only_error
from tautochrone.project.deferred_frames import evaluating, real_frame
from tautochrone.project.definitions import Definitions, Flow, Query, QueryListener, is_view
from tautochrone.project.explain_failure import CodePosition, explain
from tautochrone.project.graph import ResolvedFlow
from tautochrone.project.queries import Project, SqlQuery
from tautochrone.project.sqltext import NameScope
from tautochrone.project.usercode import NamesAtRegistration, evaluation_lock, user_code
from tautochrone.spark.analysis.session_context import dataframe_of_plan, use_session
from tautochrone.spark.execute.change_order import is_change_order
from tautochrone.spark.execute.merge_events import has_horizon
from tautochrone.spark.jvm.errors import SparkProblem, problem_of

__all__ = [
    "DELETED_COLUMN",
    "VERSION_COLUMN",
    "AutoCdcQuery",
    "EventTable",
    "SnapshotFunction",
    "check_auto_cdc",
    "check_sequence",
    "event_quarantine_name",
    "event_table",
    "event_table_name",
    "over_event_tables",
    "over_snapshot_table",
    "with_snapshot_columns",
    "without_unused_quarantine",
    "written_columns",
]


_NO_STREAM = "_LEGACY_ERROR_TEMP_1008"
"""Spark's class of a view that is read as a stream and is none."""


@dataclass(frozen=True, slots=True)
class AutoCdcQuery:
    """A source's rows as events.

    `source` is the query of the source, `location` where the flow is defined.
    """

    source: Query
    auto_cdc: AutoCdc
    location: str

    @property
    def written(self) -> str:
        return self.source.written

    def evaluate(self, session: SparkSession, listener: QueryListener | None = None) -> DataFrame:
        """The events: the columns of the table, the sequence value, and whether they delete or truncate."""
        rows, auto_cdc = self._rows(session, listener), self.auto_cdc
        chosen = tuple(rows.columns)
        if auto_cdc.columns is not None:
            chosen = auto_cdc.columns.of(chosen, self.location)
        auto_cdc.merge_columns(chosen, self.location)
        self._check_names(chosen)
        events = rows.select(
            *(rows[quoted(name)] for name in chosen),
            self._sequence().alias(SEQUENCE_COLUMN),
            _condition(auto_cdc.delete).alias(DELETE_COLUMN),
            _condition(auto_cdc.truncate).alias(TRUNCATE_COLUMN),
        )
        self._check_sequence(events.schema)
        return events

    def _rows(self, session: SparkSession, listener: QueryListener | None) -> DataFrame:
        try:
            return self.source.evaluate(session, listener)
        except PySparkException as error:
            if self.auto_cdc.is_once and problem_of(error).error_class == _NO_STREAM:
                raise databricks_only_error(
                    "once", "A flow that reads a batch once", self.location
                ) from error
            raise

    def view_text(self) -> str | None:
        return None

    def position_of(self, error: BaseException, problem: SparkProblem | None) -> CodePosition | None:
        return self.source.position_of(error, problem)

    def _sequence(self) -> Column:
        if self.auto_cdc.snapshots_of:
            # A merge puts the time of the checkpoint in its place.
            return sf.lit(None).cast(TimestampType())
        return _column(self.auto_cdc.sequence)

    def _check_sequence(self, schema: StructType) -> None:
        kind = schema[SEQUENCE_COLUMN].dataType.simpleString()
        if any(word in kind for word in ("map", "variant", "void", "interval")):
            raise DefinitionError(
                "AUTO_CDC_SEQUENCE_TYPE",
                f"The sequence of an AUTO CDC flow is {kind}, which has no order or is not stored",
                sqlstate="42K09",
                location=self.location,
                hint="order by a number, a time, a text or a STRUCT of such",
            )

    def _check_names(self, columns: tuple[str, ...]) -> None:
        own = (START_COLUMN, END_COLUMN) if self.auto_cdc.scd_type == 2 else ()
        reserved = {name.lower() for name in (*own, SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)}
        for name in columns:
            if name.lower() in reserved:
                raise DefinitionError(
                    "AUTO_CDC_RESERVED_COLUMN",
                    f"The source of an AUTO CDC flow has a column {name}, which AUTO CDC adds itself",
                    location=self.location,
                    hint="leave it out with COLUMNS * EXCEPT, or rename it",
                )


def written_columns(flow: Flow, schema: StructType) -> StructType:
    """The columns that a flow writes, whose query has this schema."""
    if flow.auto_cdc is None:
        return schema
    special = (SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)
    fields = [field for field in schema.fields if field.name not in special]
    if flow.auto_cdc.scd_type == 2:
        sequence = schema[SEQUENCE_COLUMN].dataType
        fields += [StructField(START_COLUMN, sequence), StructField(END_COLUMN, sequence)]
    return StructType(fields)


def check_auto_cdc(dataset: Dataset, flows: Sequence[Flow]) -> None:
    """What the flows of a dataset must have in common.

    Raises:
        DefinitionError: `AUTO_CDC_TARGET`, `AUTO_CDC_FLOWS_DIFFER`, `EXPECTATION_NOT_SUPPORTED`,
            `INVALID_TOMBSTONE_RETENTION`, `TOMBSTONE_RETENTION_NOT_SUPPORTED`, `INVALID_POSITION_RESTARTS`,
            `POSITION_RESTARTS_NOT_SUPPORTED`.
    """
    common = common_auto_cdc([(flow.name, flow.auto_cdc, str(flow.location)) for flow in flows])
    forgets = tombstone_retention_ms(dataset.properties, str(dataset.location)) is not None
    if forgets and (common is None or common.scd_type != 1 or common.takes_snapshots):
        raise DefinitionError(
            "TOMBSTONE_RETENTION_NOT_SUPPORTED",
            f"{dataset.name} has the property {TOMBSTONE_RETENTION}, and it is no table of SCD type 1 that "
            "takes events of AUTO CDC flows",
            sqlstate="0A000",
            location=str(dataset.location),
            hint="take the property out: other tables have no deletions to forget",
        )
    if position_restarts(dataset.properties, str(dataset.location)) and common is None:
        raise _restarts_error(dataset)
    if common is None:
        return
    location = str(flows[0].location)
    if dataset.kind is not DatasetKind.STREAMING_TABLE:
        raise DefinitionError(
            "AUTO_CDC_TARGET",
            f"The AUTO CDC flow {flows[0].name} writes {dataset.name}, a {dataset.kind}",
            location=location,
            hint="create the target with CREATE STREAMING TABLE or create_streaming_table()",
        )
    if dataset.expectations and common.takes_snapshots:
        raise DefinitionError(
            "EXPECTATION_NOT_SUPPORTED",
            f"{dataset.name} takes what changes from one snapshot to the next, and it has expectations",
            sqlstate="0A000",
            location=str(dataset.location),
            hint="Let the source or the function leave such rows out, or give the expectations to the source "
            "or to a view over the table.",
        )


def check_sequence(dataset: Dataset, query: StructType) -> None:
    """What a table that forgets deletions, or whose positions began anew, needs of its flows' queries.

    Raises:
        DefinitionError: `TOMBSTONE_RETENTION_WITHOUT_TIME`, `POSITION_RESTARTS_NOT_SUPPORTED`.
    """
    restarts = position_restarts(dataset.properties, str(dataset.location))
    if restarts and not is_change_order(query[SEQUENCE_COLUMN].dataType):
        raise _restarts_error(dataset)
    if tombstone_retention_ms(dataset.properties, str(dataset.location)) is None:
        return
    kind = query[SEQUENCE_COLUMN].dataType
    if not has_horizon(kind):
        raise DefinitionError(
            "TOMBSTONE_RETENTION_WITHOUT_TIME",
            f"{dataset.name} has the property {TOMBSTONE_RETENTION}, and its sequence is of type "
            f"{kind.simpleString()}",
            sqlstate="42K09",
            location=str(dataset.location),
            hint="a duration needs a sequence of type TIMESTAMP or DATE; without the property all deletions "
            "are remembered",
        )


def _restarts_error(dataset: Dataset) -> DefinitionError:
    return DefinitionError(
        "POSITION_RESTARTS_NOT_SUPPORTED",
        f"{dataset.name} has the property {POSITION_RESTARTS}, and it is no table of AUTO CDC whose events "
        "have a position in a log and an offset in Kafka",
        sqlstate="0A000",
        location=str(dataset.location),
        hint="take the property out; it is for the events of debezium.events, canal.events and "
        "maxwell.events, ordered by their column _sequence",
    )


def _column(expression: Any) -> Column:
    return sf.expr(expression) if isinstance(expression, str) else expression


def _condition(expression: Any) -> Column:
    """A condition that is NULL is not met."""
    if expression is None:
        return sf.lit(False)
    return sf.coalesce(_column(expression).cast(BooleanType()), sf.lit(False))


@dataclass(frozen=True, slots=True)
class EventTable:
    """The definitions with the table, its name, and the flow that merges it."""

    definitions: Definitions
    name: TableName
    merging: Flow


def over_event_tables(flows: Sequence[ResolvedFlow]) -> list[int]:
    """The numbers of a table's AUTO CDC flows that cannot merge what they read.

    Of flows over one table none can: how far it is merged is remembered by table, and a flow that is added
    would begin there.
    """
    merging = [number for number, flow in enumerate(flows) if flow.flow.auto_cdc is not None]
    direct = [number for number in merging if not _needs_event_table(flows[number])]
    readers = Counter(table for number in direct for table in flows[number].inputs.stream)
    shared = {number for number in direct if any(readers[table] > 1 for table in flows[number].inputs.stream)}
    return [number for number in merging if number not in direct or number in shared]


def _needs_event_table(flow: ResolvedFlow) -> bool:
    """Whether the flow is not row by row over one lake table that it reads as a stream."""
    inputs = flow.inputs
    return (
        flow.stateful
        or inputs.external_streams
        or len(inputs.stream) != 1
        or bool(inputs.batch or inputs.unversioned or inputs.clocks)
    )


def event_table(definitions: Definitions, flow: Flow) -> EventTable:
    """The definitions in which `flow` appends its events to a table, and another flow merges them.

    Raises:
        DefinitionError: `AUTO_CDC_EVENTS_NAME_TAKEN`.
    """
    target = definitions.datasets[flow.target]
    name = _free_table_name(definitions, flow, "events")
    assert flow.auto_cdc is not None
    events = Dataset(
        name=name,
        kind=DatasetKind.STREAMING_TABLE,
        location=flow.location,
        comment=f"Events that AUTO CDC merges into {target.name.table}",
        events_of=target.name,
    )
    text = f"SELECT * FROM STREAM {name.sql}"
    query = SqlQuery(text, flow.location, flow.scope)
    merging = replace(flow, name=f"{flow.name}__merge", query=query, snapshots=None)
    flows = [merging if other.name == flow.name else other for other in definitions.flows]
    changed = replace(
        definitions,
        datasets={**definitions.datasets, name: events},
        # Expectations are those of the rows that the merge writes: all events are kept.
        flows=(*flows, replace(flow, target=name, auto_cdc=None, expectations=())),
    )
    return EventTable(changed, name, merging)


def without_unused_quarantine(definitions: Definitions, table: TableName) -> Definitions:
    """The definitions without the quarantine tables of AUTO CDC flows that read no records from outside.

    Events that such flows set aside stay in the table that they read: no `event_table` was made for them.
    """
    flows = [flow for flow in definitions.flows_of(table) if flow.auto_cdc and flow.sets_aside]
    unused = {event_table_name(flow) for flow in flows} - definitions.datasets.keys()
    if not unused:
        return definitions
    datasets = {
        name: each for name, each in definitions.datasets.items() if each.bad_records_of not in unused
    }
    return replace(definitions, datasets=datasets)


def over_snapshot_table(definitions: Definitions, flow: Flow) -> Definitions:
    """The definitions in which `flow` takes the snapshots of a materialized view, if its source is a view.

    Raises:
        DefinitionError: `AUTO_CDC_EVENTS_NAME_TAKEN`.
    """
    source = flow.auto_cdc.snapshots_of if flow.auto_cdc is not None else None
    view = definitions.dataset_named(source, flow.scope) if source else None
    if source is None or view is None or not is_view(definitions.datasets[view]):
        return definitions
    name = _free_table_name(definitions, flow, "snapshot")
    snapshot = Dataset(
        name=name,
        kind=DatasetKind.MATERIALIZED_VIEW,
        location=flow.location,
        comment=f"Snapshots that AUTO CDC merges into {flow.target.table}",
        events_of=flow.target,
    )
    text, merged_text = f"SELECT * FROM {quoted(*source)}", f"SELECT * FROM STREAM {name.sql}"
    reading = replace(
        flow,
        name=f"{flow.name}__snapshot",
        target=name,
        query=SqlQuery(text, flow.location, flow.scope),
        auto_cdc=None,
    )
    query = SqlQuery(merged_text, flow.location, flow.scope)
    assert flow.auto_cdc is not None
    merging = replace(flow, query=AutoCdcQuery(query, flow.auto_cdc, str(flow.location)))
    flows = [merging if other.name == flow.name else other for other in definitions.flows]
    return replace(definitions, datasets={**definitions.datasets, name: snapshot}, flows=(*flows, reading))


def event_table_name(flow: Flow) -> TableName:
    """The name of the table that holds the events of a flow."""
    return _table_name(flow, "events")


def event_quarantine_name(flow: Flow) -> TableName:
    """The name of the quarantine table of a flow's events: other flows into its table have their own."""
    return _table_name(flow, "quarantine")


def _table_name(flow: Flow, suffix: str) -> TableName:
    target = flow.target
    # A flow without a name of its own has that of its target, with a database such as LIVE.
    own_name = target.table if "." in flow.name else flow.name
    return TableName(target.catalog, target.namespace, f"{own_name}__{suffix}")


def _free_table_name(definitions: Definitions, flow: Flow, suffix: str) -> TableName:
    """The name of a table that stands between a flow and its source, which no dataset has.

    Raises:
        DefinitionError: `AUTO_CDC_EVENTS_NAME_TAKEN`.
    """
    name = _table_name(flow, suffix)
    taken = definitions.datasets.get(name)
    if taken is not None:
        raise DefinitionError(
            "AUTO_CDC_EVENTS_NAME_TAKEN",
            f"The {suffix} of the AUTO CDC flow {flow.name} would be {name}, and a dataset is called so",
            sqlstate="42P07",
            location=str(taken.location),
            hint="rename that dataset, or give the flow another name",
        )
    return name


VERSION_COLUMN, DELETED_COLUMN = "__taut_version", "__taut_deleted"
"""What the stream of a function's events has besides the columns of the snapshots."""

_SPECIAL = (SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)
_ANNOTATIONS = {"int": "bigint", "str": "string", "date": "date", "datetime": "timestamp", "float": "double"}


@dataclass(frozen=True, slots=True)
class SnapshotFunction:
    """A user's function, with the names it saw when it was registered; also the query of its flow.

    Attributes:
        columns: of the snapshots and `VERSION_COLUMN`, once they are known.
    """

    function: Callable[[Any], Any]
    keys: tuple[str, ...]
    project: Project
    scope: NameScope
    bindings: NamesAtRegistration
    location: SourceLocation
    conf: Mapping[str, str]
    columns: StructType | None = None

    @property
    def written(self) -> str:
        try:
            return textwrap.dedent(inspect.getsource(self.function)).strip()
        except (OSError, TypeError):
            return f"def {getattr(self.function, '__name__', '')}(…): …"

    @property
    def data_columns(self) -> StructType:
        """The columns of the snapshots, as the analysis found them."""
        assert self.columns is not None
        return StructType([field for field in self.columns.fields if field.name != VERSION_COLUMN])

    def next_snapshot(self, session: SparkSession, latest_version: Any) -> tuple[DataFrame, Any] | None:
        """The snapshot behind a version and its own version; None: there is none.

        Raises:
            DefinitionError: `SNAPSHOT_FUNCTION_RESULT`, or what the function raised, with the place in it.
        """
        with evaluation_lock:
            try:
                with use_session(session, self.scope.catalog, self.scope.namespace, self.conf):
                    return self._call_function(session, latest_version)
            except Exception as error:
                raise explain(error, self.position_of, self.location) from error

    def evaluate(self, session: SparkSession, _listener: QueryListener | None = None) -> DataFrame:
        """A stream with the columns of the events. Spark never runs it: `ingest.snapshot_flow` writes
        them."""
        assert self.columns is not None
        fields = [*self.columns.fields, StructField(DELETED_COLUMN, BooleanType())]
        stream = session.readStream.format("rate").load()
        return stream.select(*(sf.lit(None).cast(field.dataType).alias(field.name) for field in fields))

    def view_text(self) -> str | None:
        return None

    def position_of(self, error: BaseException, problem: SparkProblem | None) -> CodePosition | None:
        return self.project.position_of(error, problem)

    def _call_function(self, session: SparkSession, latest_version: Any) -> tuple[DataFrame, Any] | None:
        self.project.register_data_sources(session)
        with (
            user_code(
                self.project.root,
                self.project.imports,
                self.scope.rewrite,
                self.project.data_sources,
                in_query=False,
            ),
            self.bindings.bound(session),
            evaluating(session),
        ):
            answer = self.function(latest_version)
            if answer is None:
                return None
            if not isinstance(answer, (tuple, list)) or len(answer) != 2:
                raise self._invalid_snapshot_error(f"{type(answer).__name__}")
            frame, version = real_frame(answer[0]), answer[1]
        if frame is None:
            return None
        if not isinstance(frame, DataFrame):
            raise self._invalid_snapshot_error(f"a pair that begins with {type(frame).__name__}")
        if frame.isStreaming:
            raise self._invalid_snapshot_error("a stream")
        if not frame._jdf.sparkSession().equals(session._jsparkSession):  # noqa: SLF001
            # It is built on a DataFrame that the file created during its import.
            frame = dataframe_of_plan(session, frame._jdf.queryExecution().logical())  # noqa: SLF001
        return frame, version

    def _invalid_snapshot_error(self, what: str) -> DefinitionError:
        return DefinitionError(
            "SNAPSHOT_FUNCTION_RESULT",
            f"The snapshot function returned {what}",
            sqlstate="42804",
            location=str(self.location),
            hint="return a DataFrame that is no stream together with its version, or None if there is no "
            "further snapshot",
        )


def with_snapshot_columns(
    definitions: Definitions,
    sessions: Callable[[], SparkSession],
    stored_schema: Callable[[TableName], StructType | None],
    stored_position: Callable[[TableName, str], SnapshotPosition | None],
) -> Definitions:
    """The definitions, in which each flow that takes snapshots knows the columns of its function's next one.

    Args:
        sessions: opens a session on the lake's tables; called only if a function is there.
        stored_schema: of a table of the lake, or None.
        stored_position: of a flow into a table of the lake that takes snapshots, or None.

    Raises:
        DefinitionError: what a function raised, `AUTO_CDC_SNAPSHOT_COLUMNS_UNKNOWN`.
    """
    if not any(flow.snapshots for flow in definitions.flows):
        return definitions
    session = sessions()

    def with_columns(flow: Flow) -> Flow:
        function, query = flow.snapshots, flow.query
        if not isinstance(function, SnapshotFunction) or not isinstance(query, AutoCdcQuery):
            return flow
        table = event_table_name(flow)
        newest = stored_position(table, flow.name)
        columns = _columns(definitions, flow, function, session, stored_schema(table), newest)
        known = replace(function, columns=columns)
        return replace(flow, query=replace(query, source=known), snapshots=known)

    return replace(definitions, flows=tuple(map(with_columns, definitions.flows)))


def _columns(
    definitions: Definitions,
    flow: Flow,
    function: SnapshotFunction,
    session: SparkSession,
    stored: StructType | None,
    newest: SnapshotPosition | None,
) -> StructType:
    answer = function.next_snapshot(session, version_at(newest))
    if answer is not None:
        frame, version = answer
        position = position_of_version(version, flow.name)
        kind = (position if newest is None else newest).version_type
        data = StructType([_with_stored_type(field, stored) for field in frame.schema.fields])
        return _with_version(data, _parse_datatype_string(kind))
    # A flow of the same name that took no snapshots may have left a table with another type.
    if (
        stored is not None
        and SEQUENCE_COLUMN in stored.names
        and _is_version(stored[SEQUENCE_COLUMN].dataType)
    ):
        data = StructType([field for field in stored.fields if field.name not in _SPECIAL])
        return _with_version(data, stored[SEQUENCE_COLUMN].dataType)
    declared = _declared_columns(definitions, flow, function)
    if declared is None:
        raise DefinitionError(
            "AUTO_CDC_SNAPSHOT_COLUMNS_UNKNOWN",
            f"The function of flow {flow.name} has no snapshot yet, so the columns of {flow.target} are not "
            "known",
            sqlstate="42K0F",
            location=str(flow.location),
            hint="run when the first snapshot is there, or declare the columns: "
            "create_streaming_table(schema=…); for SCD type 1 the type of the version is that of the "
            "function's annotation, such as -> Optional[Tuple[DataFrame, int]]",
        )
    return declared


def _declared_columns(definitions: Definitions, flow: Flow, function: SnapshotFunction) -> StructType | None:
    """The columns that the flow's target declares, if also the type of the version is known.

    Raises:
        DefinitionError: `AUTO_CDC_SNAPSHOT_VERSION_TYPE`.
    """
    target = definitions.datasets.get(flow.target)
    if target is None or target.schema_ddl is None:
        return None
    schema = _parse_datatype_string(target.schema_ddl)
    assert isinstance(schema, StructType)
    data = StructType([field for field in schema.fields if field.name not in (START_COLUMN, END_COLUMN)])
    kind: DataType | None = schema[START_COLUMN].dataType if START_COLUMN in schema.names else None
    if kind is not None and not _is_version(kind):
        raise DefinitionError(
            "AUTO_CDC_SNAPSHOT_VERSION_TYPE",
            f"{target.name} declares {START_COLUMN} as {kind.simpleString()}, a type that no version has",
            sqlstate="42804",
            location=str(target.location),
            hint=f"a version is one of {', '.join(SNAPSHOT_VERSION_TYPES)}; whole numbers are bigint",
        )
    if kind is None:
        annotation = getattr(function.function, "__annotations__", {}).get("return")
        words = (
            str(annotation).replace("]", " ").replace(",", " ").replace(".", " ").replace("'", " ").split()
        )
        name = next((_ANNOTATIONS[word] for word in reversed(words) if word in _ANNOTATIONS), None)
        kind = None if name is None else _parse_datatype_string(name)
    return None if kind is None else _with_version(data, kind)


def _with_stored_type(field: StructField, stored: StructType | None) -> StructField:
    """A column with the type that it has in the lake, if that takes its numbers.

    A reader that infers types finds a narrower one where a snapshot has small or whole numbers only.
    """
    same_name = (
        (known for known in stored.fields if known.name.lower() == field.name.lower()) if stored else ()
    )
    known = next(iter(same_name), field)
    is_wider = is_wider_number(known.dataType.simpleString(), field.dataType.simpleString())
    return StructField(field.name, known.dataType) if is_wider else field


def _is_version(kind: DataType) -> bool:
    return kind.simpleString() in SNAPSHOT_VERSION_TYPES


def _with_version(data: StructType, kind: DataType) -> StructType:
    return StructType([*data.fields, StructField(VERSION_COLUMN, kind)])
