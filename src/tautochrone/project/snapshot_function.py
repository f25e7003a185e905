"""Functions that return snapshots: the source of `create_auto_cdc_from_snapshot_flow`.

    def next_snapshot(latest_version):
        …
        return spark.read.parquet(path), version   # or None

A function is called when definitions are analysed, for the columns of its next snapshot, and by the flow that
takes the snapshots, in its own session. Other than a query function it may run queries.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BooleanType, DataType, StructField, StructType, _parse_datatype_string

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import (
    DELETE_COLUMN,
    END_COLUMN,
    SEQUENCE_COLUMN,
    START_COLUMN,
    TRUNCATE_COLUMN,
)
from tautochrone.model.definitions import SourceLocation
from tautochrone.model.names import TableName
from tautochrone.model.source_position import (
    SNAPSHOT_VERSION_TYPES,
    SnapshotPosition,
    is_wider_number,
    position_of_version,
    version_at,
)
from tautochrone.project.auto_cdc_events import event_table_name
from tautochrone.project.auto_cdc_query import AutoCdcQuery
from tautochrone.project.deferred_frames import evaluating, real_frame
from tautochrone.project.definitions import Definitions, Flow, QueryListener
from tautochrone.project.explain_failure import CodePosition, explain
from tautochrone.project.names import NameScope
from tautochrone.project.queries import Project
from tautochrone.project.usercode import Bindings, evaluation_lock, user_code
from tautochrone.spark.analysis.session_context import dataframe_of_plan, use_session
from tautochrone.spark.jvm.errors import SparkProblem

__all__ = ["DELETED_COLUMN", "VERSION_COLUMN", "SnapshotFunction", "with_snapshot_columns"]

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
    bindings: Bindings
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
                    return self._called(session, latest_version)
            except Exception as error:
                raise explain(error, self.position_of, self.location) from error

    def dataframe(self, session: SparkSession, _listener: QueryListener | None = None) -> DataFrame:
        """A stream with the columns of the events. Spark never runs it: `ingest.snapshot_flow` writes
        them."""
        assert self.columns is not None
        fields = [*self.columns.fields, StructField(DELETED_COLUMN, BooleanType())]
        stream = session.readStream.format("rate").load()
        return stream.select(*(sf.lit(None).cast(field.dataType).alias(field.name) for field in fields))

    def view_text(self, _session: SparkSession) -> str | None:
        return None

    def position_of(self, error: BaseException, problem: SparkProblem | None) -> CodePosition | None:
        return self.project.position_of(error, problem)

    def _called(self, session: SparkSession, latest_version: Any) -> tuple[DataFrame, Any] | None:
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
                raise self._invalid(f"{type(answer).__name__}")
            frame, version = real_frame(answer[0]), answer[1]
        if frame is None:
            return None
        if not isinstance(frame, DataFrame):
            raise self._invalid(f"a pair that begins with {type(frame).__name__}")
        if frame.isStreaming:
            raise self._invalid("a stream")
        if not frame._jdf.sparkSession().equals(session._jsparkSession):  # noqa: SLF001
            # It is built on a DataFrame that the file created during its import.
            frame = dataframe_of_plan(session, frame._jdf.queryExecution().logical())  # noqa: SLF001
        return frame, version

    def _invalid(self, what: str) -> DefinitionError:
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
    declared = _declared(definitions, flow, function)
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


def _declared(definitions: Definitions, flow: Flow, function: SnapshotFunction) -> StructType | None:
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
