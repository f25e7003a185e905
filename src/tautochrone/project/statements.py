"""SQL definition files as statements, classified by Spark's own parser.

Nothing here analyses a query: tables need not exist when definitions are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from py4j.java_gateway import JavaObject
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import AutoCdc
from tautochrone.model.definitions import SourceLocation
from tautochrone.model.names import quoted
from tautochrone.project.databricks.auto_cdc import auto_cdc_clause
from tautochrone.project.databricks.sql import TranslatedStatement, translate
from tautochrone.project.sqltext import StatementText, split
from tautochrone.spark.analysis.session_context import parsed_plan, with_parameters
from tautochrone.spark.jvm.catalyst import items
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["Statement", "StatementKind", "parse_statements", "query_of", "statement_error", "syntax_error"]


class StatementKind(StrEnum):
    """The statements that a definition file may hold, by the names of Spark's plan nodes."""

    STREAMING_TABLE = "CreateStreamingTable"
    STREAMING_TABLE_AS = "CreateStreamingTableAsSelect"
    MATERIALIZED_VIEW = "CreateMaterializedViewAsSelect"
    VIEW = "CreateView"
    TEMPORARY_VIEW = "CreateViewCommand"
    FLOW = "CreateFlowCommand"
    SET = "SetCommand"
    USE = "SetNamespaceCommand"
    USE_CATALOG = "SetCatalogCommand"
    USE_BOTH = "SetCatalogAndNamespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement. `name` is what it creates, sets or uses; `flow_target` only for CREATE FLOW, `query`
    (the text after AS) only for tables. A SET without `value` shows a setting. `text` is what Spark's
    parser takes, `dialect` what it does not. With `auto_cdc` the text is the query of the flow's source."""

    kind: StatementKind
    text: str
    location: SourceLocation
    name: tuple[str, ...]
    flow_target: tuple[str, ...] = ()
    value: str | None = None
    query: str | None = None
    comment: str | None = None
    schema_ddl: str | None = None
    view_columns: tuple[str, ...] = ()
    format: str | None = None
    partition_columns: tuple[str, ...] = ()
    cluster_columns: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    dialect: TranslatedStatement = field(default_factory=lambda: TranslatedStatement(""))
    auto_cdc: AutoCdc | None = None


def parse_statements(text: str, file: str, session: SparkSession) -> list[Statement]:
    """Read a definition file's text.

    Raises:
        DefinitionError: a syntax error (Spark's class), or a statement that SDP does not allow
            (PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR), with `file:line`.
    """
    substitute = partial(with_parameters, session)
    chunks = split(text)
    return [statement for chunk in chunks for statement in _statements(chunk, file, substitute)]


def statement_error(message: str, location: SourceLocation, hint: str | None = None) -> DefinitionError:
    """Spark's error for a statement that a definition file may not hold."""
    return DefinitionError(
        "PIPELINE_SQL_GRAPH_ELEMENT_REGISTRATION_ERROR", message, location=str(location), hint=hint
    )


def query_of(plan: JavaObject) -> JavaObject:
    """The unresolved query inside a parsed statement; a plain query is returned unchanged."""
    kind = plan.getClass().getSimpleName()
    if kind not in list(StatementKind):
        return plan
    if kind == StatementKind.FLOW:
        return plan.flowOperation().query()
    return plan.plan() if kind == StatementKind.TEMPORARY_VIEW else plan.query()


def _statements(chunk: StatementText, file: str, substitute: Callable[[str], str]) -> list[Statement]:
    """A statement, or several: `CREATE STREAMING TABLE … FLOW AUTO CDC …` makes a table and its flow, and the
    query of snapshots is a view."""
    location = SourceLocation(file, chunk.line)
    clause = auto_cdc_clause(chunk.text, str(location), substitute)
    if clause is None:
        return [_statement(chunk, file)]
    table = replace(chunk, text=clause.table_text)
    created = [_statement(table, file)] if clause.table_text else []
    target = created[0].name if created else clause.target
    name, query, auto_cdc = clause.flow or target, clause.query, clause.auto_cdc
    if auto_cdc.takes_snapshots:
        view = f"{name[-1]}__query"
        text = f"CREATE TEMPORARY VIEW {quoted(view)} AS {query}"
        created.append(_statement(replace(chunk, text=text), file))
        query, auto_cdc = f"SELECT * FROM STREAM {quoted(view)}", replace(auto_cdc, snapshots_of=(view,))
    dialect = translate(query, str(location))
    flow = Statement(
        kind=StatementKind.FLOW,
        text=dialect.text,
        location=location,
        name=name,
        flow_target=target,
        dialect=dialect,
        auto_cdc=auto_cdc,
    )
    return [*created, flow]


def _statement(chunk: StatementText, file: str) -> Statement:
    location = SourceLocation(file, chunk.line)
    dialect = translate(chunk.text, str(location))
    try:
        plan = parsed_plan(dialect.text)
    except PySparkException as error:
        raise syntax_error(error, replace(chunk, text=dialect.text), file) from error
    statement = replace(_Reader(plan, dialect.text, location).read(), dialect=dialect)
    return replace(statement, view_columns=dialect.columns) if dialect.columns else statement


def syntax_error(error: PySparkException, chunk: StatementText, file: str) -> DefinitionError:
    """Spark's syntax error for a statement of a file, with its position in the file."""
    problem = problem_of(error)
    return DefinitionError(
        problem.error_class,
        problem.message,
        sqlstate=problem.sqlstate,
        location=f"{file}:{chunk.line + (problem.line or 1) - 1}",
        hint="Spark's parser stops here; look for a missing comma, keyword or bracket before it.",
        excerpt=problem.excerpt_in(chunk.text, chunk.line),
    )


def _option(option: JavaObject) -> str | None:
    return str(option.get()) if option.isDefined() else None


def _pair(pair: JavaObject) -> tuple[JavaObject, JavaObject]:
    return pair._1(), pair._2()  # noqa: SLF001


def _strings(mapping: JavaObject) -> dict[str, str]:
    pairs = (_pair(item) for item in items(mapping.toSeq()))
    return {str(key): str(value) for key, value in pairs}


class _Reader:
    """Extracts the parts of one parsed statement."""

    def __init__(self, plan: JavaObject, text: str, location: SourceLocation) -> None:
        self._plan = plan
        self._text = text
        self._location = location
        self._kind = str(plan.getClass().getSimpleName())

    def statement_error(self, message: str, hint: str | None = None) -> DefinitionError:
        return statement_error(message, self._location, hint)

    def read(self) -> Statement:
        plan = self._plan
        match self._kind:
            case (
                StatementKind.STREAMING_TABLE
                | StatementKind.STREAMING_TABLE_AS
                | StatementKind.MATERIALIZED_VIEW
            ):
                return self._table(StatementKind(self._kind))
            case StatementKind.VIEW:
                return self._view(StatementKind.VIEW, self._parts(plan.child()))
            case StatementKind.TEMPORARY_VIEW:
                return self._view(StatementKind.TEMPORARY_VIEW, (str(plan.name().table()),))
            case StatementKind.FLOW:
                return self._flow()
            case StatementKind.SET:
                return self._set()
            case StatementKind.USE:
                return self._make(StatementKind.USE, tuple(str(p) for p in items(plan.namespace())))
            case StatementKind.USE_BOTH:
                return self._make(StatementKind.USE, self._parts(plan.child()))
            case StatementKind.USE_CATALOG:
                return self._make(StatementKind.USE_CATALOG, (str(plan.catalogName()),))
            case _:
                raise self.statement_error(
                    f"Unsupported plan {plan.nodeName()} parsed from SQL query",
                    "Write CREATE MATERIALIZED VIEW … AS instead of CREATE TABLE … AS."
                    if self._kind == "CreateTableAsSelect"
                    else "A definition file holds CREATE STREAMING TABLE, CREATE MATERIALIZED VIEW, "
                    "CREATE [TEMPORARY] VIEW, CREATE FLOW, SET and USE only.",
                )

    def _make(self, kind: StatementKind, name: tuple[str, ...], value: str | None = None) -> Statement:
        return Statement(kind=kind, text=self._text, location=self._location, name=name, value=value)

    def _parts(self, node: JavaObject) -> tuple[str, ...]:
        identifier = node.nodeName() == "UnresolvedIdentifier"
        parts = node.nameParts() if identifier else node.multipartIdentifier()
        return tuple(str(part) for part in items(parts))

    def _table(self, kind: StatementKind) -> Statement:
        plan, spec = self._plan, self._plan.tableSpec()
        partitions, clusters = self._transforms(plan.partitioning())
        return Statement(
            kind=kind,
            text=self._text,
            location=self._location,
            name=self._parts(plan.name()),
            query=None if kind is StatementKind.STREAMING_TABLE else str(plan.originalText()),
            comment=_option(spec.comment()),
            schema_ddl=self._columns(plan.columns()),
            format=(_option(spec.provider()) or "").lower() or None,
            partition_columns=partitions,
            cluster_columns=clusters,
            properties=_strings(spec.properties()),
        )

    def _columns(self, columns: JavaObject) -> str | None:
        texts = []
        for column in items(columns):
            text = f"{quoted(str(column.name()))} {column.dataType().sql()}"
            text += "" if column.nullable() else " NOT NULL"
            comment = _option(column.comment())
            if comment is not None:
                escaped = comment.replace("\\", "\\\\").replace("'", "\\'")
                text += f" COMMENT '{escaped}'"
            texts.append(text)
        return ", ".join(texts) or None

    def _transforms(self, transforms: JavaObject) -> tuple[tuple[str, ...], tuple[str, ...]]:
        partitions: list[str] = []
        clusters: list[str] = []
        for transform in items(transforms):
            columns = [".".join(reference.fieldNames()) for reference in transform.references()]
            if transform.name() == "identity":
                partitions += columns
            elif transform.name() == "cluster_by":
                clusters += columns
            else:
                raise self.statement_error(
                    f"Invalid partitioning transform ({transform.toString()})",
                    "SDP partitions by columns only; compute the value as a column of the query.",
                )
        return tuple(partitions), tuple(clusters)

    def _view(self, kind: StatementKind, name: tuple[str, ...]) -> Statement:
        plan = self._plan
        return Statement(
            kind=kind,
            text=self._text,
            location=self._location,
            name=name,
            comment=_option(plan.comment()),
            view_columns=tuple(str(_pair(item)[0]) for item in items(plan.userSpecifiedColumns())),
            properties=_strings(plan.properties()),
        )

    def _flow(self) -> Statement:
        plan, operation = self._plan, self._plan.flowOperation()
        if operation.nodeName() != "InsertIntoStatement":
            raise self.statement_error("Unable flow type. Only INSERT INTO flows are supported.")
        # In the order of Spark's own checks and with its sentences.
        if operation.partitionSpec().size() > 0:
            raise self.statement_error("Partition spec may not be specified for flow target.")
        if operation.userSpecifiedCols().size() > 0:
            raise self.statement_error("Column schema may not be specified for flow target.")
        if operation.overwrite():
            raise self.statement_error("INSERT OVERWRITE flows not supported.")
        if operation.ifPartitionNotExists():
            raise self.statement_error("IF NOT EXISTS not supported for flows.")
        if not operation.byName():
            raise self.statement_error(
                "Only INSERT INTO by name flows supported.", "Write INSERT INTO target BY NAME SELECT …"
            )
        return Statement(
            kind=StatementKind.FLOW,
            text=self._text,
            location=self._location,
            name=self._parts(plan.name()),
            flow_target=self._parts(operation.table()),
            comment=_option(plan.comment()),
        )

    def _set(self) -> Statement:
        pair = self._plan.kv()
        if not pair.isDefined():
            raise self.statement_error("Invalid SET command without key-value pair")
        key, option = _pair(pair.get())
        return self._make(StatementKind.SET, (str(key),), _option(option))
