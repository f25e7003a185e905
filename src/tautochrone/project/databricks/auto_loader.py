"""`spark.readStream.format("cloudFiles")`: a stream reader that remembers what it was told until it loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamReader

from tautochrone.project.databricks.files import FileSource, open_files

__all__ = ["METHODS"]

_STATE = "_tautochrone_options"

Method = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _options(reader: Any) -> dict[str, Any]:
    state: dict[str, Any] = vars(reader).setdefault(_STATE, {"format": None, "schema": None, "options": {}})
    return state


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
    (DataStreamReader, "format", _format),
    (DataStreamReader, "option", _option),
    (DataStreamReader, "options", _many),
    (DataStreamReader, "schema", _schema),
    (DataStreamReader, "load", _load),
)
"""Methods of Spark's reader, each with what is called instead, which gets the original."""
