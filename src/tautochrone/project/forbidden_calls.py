"""What methods of a classic session do in definition files: they behave as those of Spark Connect.

What SDP forbids is refused. Spark patches its Connect classes for this; a classic session has other classes
with the same names.

Spark Connect builds an Arrow table from the Python values that `createDataFrame` gets, which takes a whole
number for a FLOAT or DOUBLE column. A classic session refuses it, so such values are converted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.pipelines.block_session_mutations import BLOCKED_METHODS, ERROR_CLASS
from pyspark.sql import SparkSession, functions
from pyspark.sql.catalog import Catalog
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.datasource import DataSource, DataSourceRegistration
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StructType,
    _parse_datatype_string,
)
from pyspark.sql.udf import UDFRegistration

from tautochrone.errors import DefinitionError
from tautochrone.model.names import quoted
from tautochrone.project.databricks.files import METHODS, stream_state
from tautochrone.project.databricks.table_options import require_known_options
from tautochrone.project.deferred_frames import (
    DeferredFrame,
    evaluation_session,
    recorded_call,
    remember_option,
)
from tautochrone.spark.analysis.session_context import parsed_plan
from tautochrone.spark.jvm.catalyst import cached_packages, items, kind
from tautochrone.spark.jvm.driver_calls import driver_calls

__all__ = ["Rule", "float_converter", "rules"]


Converter = Callable[[Any], Any]


def float_converter(data_type: DataType) -> Converter | None:
    """Turns the whole numbers in FLOAT and DOUBLE columns of a value into floats; None: it has no such
    column.

    >>> from pyspark.sql.types import StructField
    >>> rows = StructType([StructField("id", ArrayType(DoubleType()))])
    >>> float_converter(rows)(([1, 2.5, None],))
    ([1.0, 2.5, None],)
    """
    if isinstance(data_type, (FloatType, DoubleType)):
        return lambda value: float(value) if type(value) is int else value
    if isinstance(data_type, ArrayType):
        element = float_converter(data_type.elementType)
        return element and _or_other(list, lambda value: [element(item) for item in value])
    if isinstance(data_type, MapType):
        return _map_converter(data_type)
    if isinstance(data_type, StructType):
        return _struct_converter(data_type)
    return None


def _or_other(python_type: type, convert: Converter) -> Converter:
    """`convert` for values of a type; Spark itself refuses values of another type."""
    return lambda value: convert(value) if isinstance(value, python_type) else value


def _map_converter(data_type: MapType) -> Converter | None:
    key, item = float_converter(data_type.keyType), float_converter(data_type.valueType)
    if key is None and item is None:
        return None

    def convert(value: Any) -> Any:
        return {key(k) if key else k: item(v) if item else v for k, v in value.items()}

    return _or_other(dict, convert)


def _struct_converter(data_type: StructType) -> Converter | None:
    by_name = {field.name: float_converter(field.dataType) for field in data_type.fields}
    by_position = list(by_name.values())
    if not any(by_position) or len(by_position) != len(data_type.fields):
        return None

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: column(v) if (column := by_name.get(k)) else v for k, v in value.items()}
        if not isinstance(value, (tuple, list)) or len(value) != len(by_position):
            return value
        # Spark takes the values of a Row by their position too.
        return tuple(
            column(item) if column else item for item, column in zip(value, by_position, strict=True)
        )

    return convert


Apply = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]

_CLASSIC = {
    "RuntimeConf": RuntimeConfig,
    "Catalog": Catalog,
    "DataFrame": DataFrame,
    "UDFRegistration": UDFRegistration,
}
_EXECUTING: tuple[tuple[type, tuple[str, ...]], ...] = (
    (DataFrame, ("collect", "count", "toPandas", "toArrow", "toLocalIterator", "foreach", "foreachPartition",
                 "show", "isEmpty", "tail", "take", "first", "head")),
    (DataFrameWriter, ("save", "saveAsTable", "insertInto", "parquet", "csv", "json", "orc", "text")),
    (DataStreamWriter, ("start", "toTable")),
)  # fmt: skip
_OPTIONS = ("format", "option", "options", "schema")
_FILES = ("load", "csv", "json", "orc", "parquet", "text", "xml")
_READERS = {DataFrameReader: (*_FILES, "jdbc"), DataStreamReader: _FILES}
# The commands that Spark allows in spark.sql("…") of a pipeline: they change nothing.
_READ_ONLY_COMMANDS = frozenset(
    {
        "DescribeRelation", "DescribeColumn", "ShowTables", "ShowTableProperties", "ShowNamespaces",
        "ShowFunctions", "ShowViews", "ShowCatalogsCommand", "ShowCreateTable", "ShowColumns",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """Replaces `owner.method` by `apply(original, self, args, kwargs)`."""

    owner: type | ModuleType
    method: str
    apply: Apply


def rules(
    rewrite: Callable[[str], str], data_sources: list[type[DataSource]], *, in_query: bool
) -> list[Rule]:
    """The rules for a definition file, or, with `in_query`, for a query function.

    Args:
        rewrite: see `NameScope.rewrite`.
        data_sources: gets the data sources that the file registers.
        in_query: see `user_code`.
    """
    # The last rule of a method is called, so that during an import calls of Auto Loader are recorded too.
    result = [Rule(*method) for method in METHODS]
    auto_loader = {(owner, method): apply for owner, method, apply in METHODS}
    loads = {
        DataFrameReader: _foreign_load(rewrite, None),
        DataStreamReader: _foreign_load(rewrite, auto_loader[DataStreamReader, "load"]),
    }
    result += [
        Rule(_CLASSIC[entry["class"].__name__], entry["method"], _mutation(entry))
        for entry in BLOCKED_METHODS
        if entry["class"].__name__ in _CLASSIC
    ]
    if in_query:
        result += [Rule(owner, method, _execution) for owner, methods in _EXECUTING for method in methods]
        result.append(Rule(DataSourceRegistration, "register", _execution))
    else:
        result.append(Rule(DataSourceRegistration, "register", _recorded_source(data_sources)))
        result.append(Rule(SparkSession, "range", _recorded("range")))
        result.append(Rule(functions, "broadcast", _broadcast))
        for reader, reads in _READERS.items():
            for method in _OPTIONS:
                result.append(Rule(reader, method, _remembered(method, auto_loader.get((reader, method)))))
            for method in reads:
                result.append(Rule(reader, method, _recorded(method, auto_loader.get((reader, method)))))
    for reader, apply in loads.items():
        # A call during the import is recorded, and made again in a query.
        result.append(Rule(reader, "load", apply if in_query else _recorded("load", apply)))
    result.append(Rule(SparkSession, "createDataFrame", _with_floats))
    result.append(Rule(SparkSession, "sql", _sql(rewrite)))
    result += [
        Rule(owner, "table", _renamed(rewrite)) for owner in (SparkSession, DataFrameReader, DataStreamReader)
    ]
    return result


def _mutation(entry: dict[str, Any]) -> Apply:
    def refuse(*_: Any) -> NoReturn:
        raise PySparkException(
            errorClass=f"{ERROR_CLASS}.{entry['error_sub_class']}",
            messageParameters={"method": f"'{entry['class'].__name__}.{entry['method']}'"},
        )

    return refuse


def _execution(*_: Any) -> NoReturn:
    # All tables are empty while a graph is analysed: a result would be wrong, not only slow.
    raise PySparkException(errorClass="ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION", messageParameters={})


def _sql(rewrite: Callable[[str], str]) -> Apply:
    def apply(
        original: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        text = args[0] if args else kwargs.pop("sqlQuery")
        # A text with {placeholders} becomes SQL only inside spark.sql, which then accepts only queries.
        if not {key for key in kwargs if key != "args"}:
            plan = parsed_plan(text)
            statement = kind(plan)
            writes = driver_calls().isCommand(plan) or statement in (
                "InsertIntoStatement",
                "CreateTableAsSelect",
            )
            if writes and statement not in _READ_ONLY_COMMANDS:
                raise DefinitionError(
                    "UNSUPPORTED_PIPELINE_SPARK_SQL_COMMAND",
                    f"'{statement}' is not supported in spark.sql(\"...\") API in Spark Declarative "
                    "Pipeline.",
                    sqlstate="0A000",
                )
            if writes:
                return original(session, rewrite(text), *args[1:], **kwargs)
        if evaluation_session() is None:
            return recorded_call(session, "sql", (text, *args[1:]), kwargs)
        return original(session, rewrite(text), *args[1:], **kwargs)

    return apply


def _recorded(method: str, auto_loader: Apply | None = None) -> Apply:
    """Record a call during an import.

    Args:
        auto_loader: what Auto Loader does instead of the method, when the file asks for columns at once.
    """

    def apply(original: Callable[..., Any], owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if evaluation_session() is None:
            return recorded_call(owner, method, args, kwargs)
        if auto_loader is not None:
            return auto_loader(original, owner, args, kwargs)
        return original(owner, *args, **kwargs)

    return apply


_OPTIONS_OF_DELTA = frozenset(
    {
        "versionasof", "timestampasof", "readchangefeed", "readchangedata", "startingversion",
        "startingtimestamp", "endingversion", "endingtimestamp", "ignorechanges", "ignoredeletes",
        "skipchangecommits", "maxfilespertrigger", "maxbytespertrigger", "excluderegex",
        "schematrackinglocation", "failondataloss",
    }
)  # fmt: skip
"""Options by which Delta's own reader would give other rows, or give them otherwise. Of the other formats no
option is known to give the same rows."""


def _foreign_load(rewrite: Callable[[str], str], auto_loader: Apply | None) -> Apply:
    """Read the shadow table of a table of another lake format, instead of the table itself."""

    def apply(
        original: Callable[..., Any], reader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        named = dict(zip(("path", "format", "schema"), args, strict=False)) | kwargs
        is_batch = isinstance(reader, DataFrameReader)
        known_format, options, has_schema = _batch_state(reader) if is_batch else stream_state(reader)
        table_format = str(named.pop("format", None) or known_format or "")
        has_schema |= named.pop("schema", None) is not None
        options = {**options, **named}
        path = options.pop("path", None)
        name = _shadow_name(rewrite, reader, table_format, path) if isinstance(path, str) else None
        if name is None:
            if auto_loader is not None:
                return auto_loader(original, reader, args, kwargs)
            return original(reader, *args, **kwargs)
        is_delta = table_format.lower() == "delta"
        refused = sorted(key for key in options if not is_delta or str(key).lower() in _OPTIONS_OF_DELTA)
        refused += ["schema"] if has_schema else []
        if refused:
            raise DefinitionError(
                "FOREIGN_OPTION_UNSUPPORTED",
                f"The table {path} of the format {table_format} is read with {', '.join(refused)}, and a "
                "pipeline reads its newest version with all of its columns",
                sqlstate="0A000",
                hint="leave the option out, and select what the query needs",
            )
        session = reader._spark  # noqa: SLF001
        return (session.read if is_batch else session.readStream).table(name)

    return apply


def _batch_state(reader: Any) -> tuple[str | None, dict[str, Any], bool]:
    """The format, the options and whether there is a schema, as the reader was told."""
    java = reader._jreader  # noqa: SLF001
    pairs = items(java.extraOptions().toSeq())
    options = {str(pair._1()): str(pair._2()) for pair in pairs}  # noqa: SLF001
    return java.source(), options, bool(java.userSpecifiedSchema().isDefined())


def _shadow_name(rewrite: Callable[[str], str], reader: Any, table_format: str, path: str) -> str | None:
    """The shadow table's name in SQL; None: tables of the format are not followed."""
    if not re.match(r"/|[A-Za-z][A-Za-z0-9+.-]*:", path):
        # As Spark does, from the folder in which the process was started.
        path = str(cached_packages(reader._spark._jvm).java.io.File(path).getAbsolutePath())  # noqa: SLF001
    written = quoted(table_format, path)
    name = rewrite(written)
    return None if name == written else name


def _broadcast(
    original: Callable[..., Any], frame: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    # A file keeps what it imported: the rule applies in its query functions too.
    if isinstance(frame, DeferredFrame) and evaluation_session() is None:
        return frame.hint("broadcast")
    return original(frame, *args, **kwargs)


def _remembered(method: str, auto_loader: Apply | None) -> Apply:
    def apply(original: Callable[..., Any], owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if evaluation_session() is not None and auto_loader is not None:
            return auto_loader(original, owner, args, kwargs)
        remember_option(owner, method, args, kwargs)
        return original(owner, *args, **kwargs)

    return apply


def _recorded_source(data_sources: list[type[DataSource]]) -> Apply:
    def apply(original: Callable[..., Any], owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # A registration belongs to one session, and query functions run in others.
        data_sources.append(args[0] if args else kwargs["dataSource"])
        return original(owner, *args, **kwargs)

    return apply


def _with_floats(
    original: Callable[..., Any], session: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if evaluation_session() is None:
        return recorded_call(session, "createDataFrame", args, kwargs)
    data, *rest = args or (kwargs.pop("data"),)
    schema = rest[0] if rest else kwargs.get("schema")
    if isinstance(schema, str):
        schema = _parse_datatype_string(schema)
    if isinstance(schema, DataType) and isinstance(data, (list, tuple, Iterator)):
        # A single type is that of the only column.
        convert = float_converter(schema)
        data = [convert(row) for row in data] if convert is not None else data
    return original(session, data, *rest, **kwargs)


def _renamed(rewrite: Callable[[str], str]) -> Apply:
    def apply(original: Callable[..., Any], owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = "tableName" if "tableName" in kwargs else None
        name = kwargs.pop(key) if key else args[0]
        if evaluation_session() is None:
            return recorded_call(owner, "table", (name, *(args if key else args[1:])), kwargs)
        if not isinstance(owner, SparkSession):
            require_known_options(owner, name)
        return original(owner, rewrite(name), *(args if key else args[1:]), **kwargs)

    return apply
