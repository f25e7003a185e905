"""Files as Databricks' projects read them: Auto Loader (`cloudFiles`), `read_files` and `cloud_files`.

All become Spark's own file source. It identifies files by their path, as Auto Loader does by default, and
what was read is remembered with the table's positions. A stream reader of the format `cloudFiles` remembers
what it was told until it loads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from tautochrone.errors import DefinitionError

__all__ = [
    "METHODS",
    "FileSource",
    "collected_clauses",
    "note_ignored",
    "open_files",
    "options_of",
    "stream_state",
]


_PREFIX = "cloudfiles."
_RESCUED = "_rescued_data"
_TEXT_FORMATS = ("csv", "json")
_FORMATS = (*_TEXT_FORMATS, "parquet", "avro", "orc", "text", "xml", "binaryfile")

_NOT_NEEDED = frozenset({"schemalocation", "validateoptions", "includeexistingfiles", "allowoverwrites"})
"""Options with nothing to map: what they ask for is so already, or the refusal below covers them."""
_TAKEN = frozenset(
    {
        "format",
        "infercolumntypes",
        "partitioncolumns",
        "rescueddatacolumn",
        "schemaevolutionmode",
        "schemahints",
    }
)
_RENAMED = {
    "maxfilespertrigger": "maxFilesPerTrigger",
    "maxbytespertrigger": "maxBytesPerTrigger",
    "maxfileage": "maxFileAge",
    "filenamepattern": "pathGlobFilter",
}
_IGNORED = frozenset(
    {
        "usenotifications", "usemanagedfileevents", "useincrementallisting", "backfillinterval",
        "fetchparallelism", "resourcetag", "region", "queueurl", "awsaccesskey", "awssecretkey", "rolearn",
        "roleexternalid", "rolesessionname", "stsendpoint", "clientid", "clientsecret", "connectionstring",
        "resourcegroup", "subscriptionid", "tenantid", "clientemail", "client", "privatekey", "privatekeyid",
        "projectid", "subscription", "inferschema", "listonstart",
        "databricks.servicecredential", "samplesize",
    }
)  # fmt: skip
"""How Auto Loader learns of new files: here the folder is listed."""
_REFUSED = {
    ("includeexistingfiles", "false"): "Move the files that should not be read out of the folder.",
    ("allowoverwrites", "true"): "Write each file once: a file that changed is not read again.",
    ("cleansource", "delete"): "Delete files that were read by a job of your own.",
    ("cleansource", "move"): "Move files that were read by a job of your own.",
}
_BAD_RECORDS = "badrecordspath"
"""On Databricks the rows of such records are left out; Spark alone knows no such option and has them."""

_PARAMETER = re.compile(r"\$\{(?:\w+:)?([^}\s]+)\}")

_clauses: ContextVar[list[str] | None] = ContextVar("clauses", default=None)


@contextmanager
def collected_clauses() -> Iterator[list[str]]:
    """Options without effect that files and tables are read with inside the block."""
    clauses: list[str] = []
    token = _clauses.set(clauses)
    try:
        yield clauses
    finally:
        _clauses.reset(token)


def note_ignored(clause: str) -> None:
    """Let a clause without effect be one of those that are collected."""
    clauses = _clauses.get()
    if clauses is not None:
        clauses.append(clause)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A folder and how its files are read.

    `infers_types`: without it, columns of text formats are strings where no schema is given.
    """

    path: str
    options: Mapping[str, str]
    schema: StructType | str | None = None
    streaming: bool = True
    infers_types: bool = False


def open_files(session: SparkSession, source: FileSource) -> DataFrame:
    """The rows of the files, as a stream or as a batch.

    Raises:
        DefinitionError: `DATABRICKS_ONLY`, an option that would read other rows here; `FILE_FORMAT_MISSING`.
    """
    source = _with_parameters(session, source)
    by_name = {_short(key): value for key, value in source.options.items()}
    file_format = by_name.get("format", _format_of(source.path))
    if file_format.lower() not in _FORMATS:
        raise DefinitionError(
            "FILE_FORMAT_MISSING",
            f"The files in {source.path} have the format {file_format or 'of no option'}",
            hint=f"Give an option `format`: {', '.join(_FORMATS)}.",
            sqlstate="42000",
        )
    options = _spark_options(source)
    infers = by_name.get("infercolumntypes", str(source.infers_types)).lower() == "true"
    schema = source.schema
    rescued: str | None = by_name.get("rescueddatacolumn", _RESCUED if schema is None else None)
    if by_name.get("schemaevolutionmode", "").lower() == "none" and "rescueddatacolumn" not in by_name:
        rescued = None
    if schema is None:
        if file_format.lower() == "csv":
            # Databricks assumes a header where it takes the columns from the files.
            options.setdefault("header", "true")
        inferred = _inferred_schema(session, source.path, file_format, options, infers=infers)
        schema = _with_hints(inferred, by_name.get("schemahints"))
        is_header = len(schema) == len(inferred) and _is_header(inferred.names)
        if file_format.lower() == "csv" and "enforceschema" not in by_name and is_header:
            # Auto Loader finds values by the names in each header; Spark goes by places, and can compare.
            options["enforceSchema"] = "false"
    elif isinstance(schema, str):
        schema = _parsed(schema)
    in_text = file_format.lower() in _TEXT_FORMATS
    if rescued and in_text and rescued not in schema.names:
        # Spark puts the record there if a value does not fit its column.
        schema = StructType([*schema.fields, StructField(rescued, StringType())])
        options = {**options, "columnNameOfCorruptRecord": rescued}
    reader: Any = session.readStream if source.streaming else session.read
    rows: DataFrame = reader.format(file_format).options(**options).schema(schema).load(source.path)
    return rows if not rescued or in_text else rows.withColumn(rescued, lit(None).cast("string"))


def _with_parameters(session: SparkSession, source: FileSource) -> FileSource:
    """The source with `${parameter}` replaced by settings, as in the rest of a SQL text."""

    def substitute(text: str) -> str:
        return _PARAMETER.sub(lambda match: session.conf.get(match[1], None) or "", text)

    options = {key: substitute(value) for key, value in source.options.items()}
    schema = substitute(source.schema) if isinstance(source.schema, str) else source.schema
    return replace(source, path=substitute(source.path), options=options, schema=schema)


def _short(key: str) -> str:
    lowered = key.lower()
    return lowered.removeprefix(_PREFIX)


def _spark_options(source: FileSource) -> dict[str, str]:
    """Spark's options for those of Databricks; others are the format's own."""
    options: dict[str, str] = {"recursiveFileLookup": "true"} if "=" not in source.path else {}
    for key, value in source.options.items():
        short = _short(key)
        hint = _REFUSED.get((short, value.lower()))
        if hint is not None:
            raise DefinitionError(
                "DATABRICKS_ONLY", f"{key} = {value} exists on Databricks only", hint=hint, sqlstate="0A000"
            )
        if short == _BAD_RECORDS:
            raise DefinitionError(
                "DATABRICKS_ONLY",
                f"The option {key} exists on Databricks only",
                hint='Set such records aside: bad_records = "quarantine" of the flow in tautochrone.toml.',
                sqlstate="0A000",
            )
        if short in _RENAMED:
            options[_RENAMED[short]] = value
        elif short in _IGNORED or short == "schemaevolutionmode":
            note_ignored(key)
        elif key.lower().startswith(_PREFIX) and short not in _NOT_NEEDED | _TAKEN | {"cleansource"}:
            raise DefinitionError(
                "DATABRICKS_ONLY",
                f"The option {key} exists on Databricks only",
                hint="Leave it out, or use an option of Spark's file source.",
                sqlstate="0A000",
            )
        elif short not in _NOT_NEEDED | _TAKEN | {"cleansource"}:
            options[key] = value
    return options


def _inferred_schema(
    session: SparkSession, path: str, file_format: str, options: Mapping[str, str], *, infers: bool
) -> StructType:
    """The columns of the files that are there now."""
    typed = {**options, **({"inferSchema": "true"} if infers else {"primitivesAsString": "true"})}
    schema = session.read.format(file_format).options(**typed).load(path).schema
    if infers or file_format.lower() != "json":
        return schema
    # Objects and arrays are strings too: Spark gives them as they are written.
    nested = (ArrayType, StructType)
    return StructType(
        [
            StructField(field.name, StringType() if isinstance(field.dataType, nested) else field.dataType)
            for field in schema.fields
        ]
    )


def _is_header(names: Sequence[str]) -> bool:
    """Whether a CSV file has them as its header: Spark gives empty and repeated names their number.

    >>> [_is_header(names) for names in (["id", "name"], ["_c0", "id"], ["a0", "a1"])]
    [True, False, False]
    """
    numbered = [
        name.removesuffix(str(number)) for number, name in enumerate(names) if name.endswith(str(number))
    ]
    return "_c" not in numbered and len(numbered) == len(set(numbered))


def _with_hints(schema: StructType, hints: str | None) -> StructType:
    """The schema with other types for some columns, or with further columns."""
    if not hints:
        return schema
    hinted = {field.name.lower(): field for field in _parsed(hints).fields}
    fields = [hinted.pop(field.name.lower(), field) for field in schema.fields]
    return StructType([*fields, *hinted.values()])


def _parsed(ddl: str) -> StructType:
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def _format_of(path: str) -> str:
    """The format that the path's last part names, as in `*.json`."""
    name = path.rstrip("/").rsplit("/", 1)[-1]
    return name.rsplit(".", 1)[-1].lower() if "." in name else ""


_STATE = "_tautochrone_options"

Method = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options(reader: Any) -> dict[str, Any]:
    state: dict[str, Any] = vars(reader).setdefault(_STATE, {"format": None, "schema": None, "options": {}})
    return state


def stream_state(reader: Any) -> tuple[str | None, dict[str, Any], bool]:
    """The format, the options and whether there is a schema, as a stream reader was told."""
    state = _options(reader)
    return state["format"], dict(state["options"]), state["schema"] is not None


def options_of(reader: Any) -> dict[str, str]:
    """The options that a reader of batches or streams was told in a definition file."""
    return dict(_options(reader)["options"])


def _format(original: Callable[..., Any], reader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = args[0] if args else kwargs["source"]
    state = _options(reader)
    state["format"] = name
    return reader if _is_auto_loader(name) else original(reader, name)


def _is_auto_loader(name: Any) -> bool:
    return isinstance(name, str) and name.lower() == "cloudfiles"


def _option(original: Callable[..., Any], reader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    key, value = (*args, *kwargs.values())[:2]
    _options(reader)["options"][key] = _text(value)
    return reader if str(key).lower().startswith("cloudfiles.") else original(reader, key, value)


def _many(original: Callable[..., Any], reader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _options(reader)["options"].update({key: _text(value) for key, value in kwargs.items()})
    rest = {key: value for key, value in kwargs.items() if not key.lower().startswith("cloudfiles.")}
    return original(reader, *args, **rest)


def _schema(original: Callable[..., Any], reader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (schema,) = (*args, *kwargs.values())
    _options(reader)["schema"] = schema
    return original(reader, schema)


def _load(original: Callable[..., Any], reader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    named = dict(zip(("path", "format", "schema"), args, strict=False)) | kwargs
    state = _options(reader)
    if not _is_auto_loader(named.get("format", state["format"])):
        return original(reader, *args, **kwargs)
    further = {key: _text(value) for key, value in kwargs.items() if key not in ("path", "format", "schema")}
    options = {**state["options"], **further}
    path = named.get("path") or options.pop("path", "")
    source = FileSource(str(path), options, named.get("schema") or state["schema"])
    return open_files(reader._spark, source)  # noqa: SLF001


METHODS: tuple[tuple[type, str, Method], ...] = (
    (DataFrameReader, "option", _option),
    (DataFrameReader, "options", _many),
    (DataStreamReader, "format", _format),
    (DataStreamReader, "option", _option),
    (DataStreamReader, "options", _many),
    (DataStreamReader, "schema", _schema),
    (DataStreamReader, "load", _load),
)
"""Methods of Spark's reader, each with what is called instead, which gets the original."""
