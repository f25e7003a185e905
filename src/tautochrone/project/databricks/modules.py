"""The modules that Databricks' projects import: `dlt`, and what Databricks adds to `pyspark.pipelines`.

They are there while a project's own code runs and are taken away afterwards. Functions of the same name as
Spark's take Spark's arguments and Databricks'. What only steers Databricks' own storage is ignored with a
warning; what would change rows or who sees them is refused.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

from pyspark import pipelines
from pyspark.pipelines.api import _validate_decorated, _validate_stored_dataset_args
from pyspark.pipelines.flow import Flow
from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry
from pyspark.pipelines.output import MaterializedView, StreamingTable, TemporaryView
from pyspark.pipelines.source_code_location import SourceCodeLocation
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tautochrone.project.databricks.auto_cdc import (
    create_auto_cdc_flow,
    create_auto_cdc_from_snapshot_flow,
)
from tautochrone.project.databricks.expect import DECORATORS, expectations_from
from tautochrone.project.databricks.unsupported import caller, databricks_only_error, shown
from tautochrone.project.table_properties import POLICY_PROPERTY

__all__ = [
    "TableByQuery",
    "TableOfPipelines",
    "append_flow",
    "create_streaming_table",
    "databricks_modules",
    "materialized_view",
    "on_event_hook",
    "read",
    "read_stream",
    "refusing",
    "table",
    "table_by_query",
    "view",
]


Function = Callable[[], DataFrame]


@dataclass(frozen=True)
class TableByQuery(StreamingTable):
    """What `@dlt.table` defines: a streaming table if the query is a stream, else a materialized view."""


@dataclass(frozen=True)
class TableOfPipelines(StreamingTable):
    """What `@dp.table` defines: Spark's streaming table, in projects for Databricks as `TableByQuery`."""


def read(name: str) -> DataFrame:
    """A dataset of the pipeline or a table, as a batch."""
    return SparkSession.active().read.table(name)


def read_stream(name: str) -> DataFrame:
    """A dataset of the pipeline or a table, as a stream."""
    return SparkSession.active().readStream.table(name)


def view(function: Function | None = None, **arguments: Any) -> Any:
    """Databricks' older name of `temporary_view`."""
    return _decorator(TemporaryView, function, arguments, "view")


def table(function: Function | None = None, **arguments: Any) -> Any:
    """A streaming table; in projects for Databricks as the query is."""
    return _decorator(TableOfPipelines, function, arguments, "table")


def table_by_query(function: Function | None = None, **arguments: Any) -> Any:
    """A streaming table or a materialized view, as the query is."""
    return _decorator(TableByQuery, function, arguments, "table")


def materialized_view(function: Function | None = None, **arguments: Any) -> Any:
    """A materialized view; `refresh_policy` is that of our table property."""
    return _decorator(MaterializedView, function, arguments, "materialized_view")


def create_streaming_table(
    name: str,
    *,
    expect_all: Mapping[str, str] | None = None,
    expect_all_or_drop: Mapping[str, str] | None = None,
    expect_all_or_fail: Mapping[str, str] | None = None,
    **arguments: Any,
) -> None:
    """A streaming table for flows, with the expectations of all of them."""
    location = caller()
    checked = ("table_properties", "partition_cols", "cluster_by")
    _validate_stored_dataset_args(name, *(arguments.get(key) for key in checked))
    registry: Any = get_active_graph_element_registry()
    known = _known_arguments(registry, "create_streaming_table", arguments, location)
    if known.pop("spark_conf", None):
        registry.record_ignored("create_streaming_table", "spark_conf", location)
    registry.register_output(_output(StreamingTable, name, known, location))
    registry.expect(name, expectations_from(expect_all, expect_all_or_drop, expect_all_or_fail), location)


def append_flow(
    *,
    target: str,
    name: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    once: bool = False,
    comment: str | None = None,  # noqa: ARG001
) -> Callable[[Function], Function]:
    """A flow into a streaming table or a sink."""
    location = caller()
    if once:
        raise databricks_only_error("once", "append_flow(once=True)", shown(location))

    def decorate(function: Function) -> Function:
        get_active_graph_element_registry().register_flow(
            Flow(name or function.__name__, target, dict(spark_conf or {}), location, function)
        )
        return function

    return decorate


def refusing(name: str) -> Callable[..., NoReturn]:
    """A function that refuses its call."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise databricks_only_error(name, f"{name}()", shown(caller()))

    return refuse


def on_event_hook(
    function: Callable[[Any], Any] | None = None,
    *,
    max_allowable_consecutive_failures: int | None = None,  # noqa: ARG001
) -> Any:
    """A function that Databricks calls with its events. It changes no rows, and nothing calls it here."""
    location = caller()

    def decorate(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        registry: Any = get_active_graph_element_registry()
        registry.record_ignored("on_event_hook", f"the function {function.__name__}", location)
        return function

    return decorate if function is None else decorate(function)


_IGNORED = ("path", "temporary", "private", "cluster_by_auto")
_KNOWN = ("comment", "table_properties", "partition_cols", "cluster_by", "schema", "spark_conf", "format")


def _decorator(output: type, function: Function | None, arguments: dict[str, Any], decorator: str) -> Any:
    location = caller()
    name = arguments.pop("name", None)

    # Spark's own checks of the arguments that it knows, with its classes.
    checked = ("table_properties", "partition_cols", "cluster_by")
    _validate_stored_dataset_args(name, *(arguments.get(key) for key in checked))

    def decorate(function: Function) -> Function:
        _validate_decorated(function, decorator)
        registry: Any = get_active_graph_element_registry()
        known = _known_arguments(registry, decorator, arguments, location)
        resolved, conf = name or function.__name__, dict(known.pop("spark_conf", None) or {})
        registry.register_output(_output(output, resolved, known, location))
        registry.register_flow(Flow(resolved, resolved, conf, location, function))
        return function

    return decorate if function is None else decorate(function)


def _known_arguments(
    registry: Any, decorator: str, arguments: Mapping[str, Any], location: SourceCodeLocation
) -> dict[str, Any]:
    """The arguments that mean something here."""
    known: dict[str, Any] = {}
    for key, value in arguments.items():
        if key == "row_filter" and value is not None:
            raise databricks_only_error("row_filter", f"row_filter of @{decorator}", shown(location))
        if key in _IGNORED:
            if value:
                registry.record_ignored(decorator, key, location)
        elif key == "refresh_policy" and value is not None:
            properties = dict(arguments.get("table_properties") or {})
            known["table_properties"] = {**properties, POLICY_PROPERTY: str(value)}
        elif key in _KNOWN:
            known.setdefault(key, value)
        elif key not in ("row_filter", "refresh_policy"):
            raise TypeError(f"{decorator}() got an unexpected keyword argument '{key}'")
    return known


def _output(output: type, name: str, known: Mapping[str, Any], location: SourceCodeLocation) -> Any:
    if output is TemporaryView:
        return TemporaryView(name=name, comment=known.get("comment"), source_code_location=location)
    schema: StructType | str | None = known.get("schema")
    return output(
        name=name,
        comment=known.get("comment"),
        source_code_location=location,
        table_properties=dict(known.get("table_properties") or {}),
        partition_cols=_columns(known.get("partition_cols")),
        cluster_by=_columns(known.get("cluster_by")),
        schema=schema,
        format=known.get("format"),
    )


def _columns(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


_COMMON: Mapping[str, Any] = {
    **DECORATORS,
    "apply_changes": create_auto_cdc_flow,
    "apply_changes_from_snapshot": create_auto_cdc_from_snapshot_flow,
    "append_flow": append_flow,
    "create_auto_cdc_flow": create_auto_cdc_flow,
    "create_auto_cdc_from_snapshot_flow": create_auto_cdc_from_snapshot_flow,
    "create_sink": pipelines.create_sink,
    "create_streaming_table": create_streaming_table,
    "foreach_batch_sink": refusing("foreach_batch_sink"),
    "materialized_view": materialized_view,
    "on_event_hook": on_event_hook,
    "read": read,
    "read_stream": read_stream,
    "temporary_view": view,
    "view": view,
}
_ONLY_DLT: Mapping[str, Any] = {
    "table": table_by_query,
    "create_table": table_by_query,
    "create_view": view,
    "create_streaming_live_table": create_streaming_table,
    "create_target_table": create_streaming_table,
}
_ONLY_PIPELINES: Mapping[str, Any] = {"table": table}
_MISSING: Any = object()


def _dlt_module() -> ModuleType:
    module = ModuleType("dlt", "Databricks' module of pipeline decorators, as this project understands it.")
    vars(module).update({**_COMMON, **_ONLY_DLT})
    return module


_DLT = _dlt_module()


@contextlib.contextmanager
def databricks_modules() -> Iterator[None]:
    """Inside the block `dlt` and `databricks.pipelines` can be imported, and `pyspark.pipelines` has
    Databricks' names."""
    with (
        _entries(sys.modules, {"dlt": _DLT, "databricks.pipelines": _DLT, **_databricks_package()}),
        _entries(vars(pipelines), {**_COMMON, **_ONLY_PIPELINES}),
    ):
        yield


def _databricks_package() -> Mapping[str, ModuleType]:
    """The package around `databricks.pipelines`, unless one is installed."""
    if "databricks" in sys.modules or importlib.util.find_spec("databricks") is not None:
        return {}
    package = ModuleType("databricks")
    package.__path__ = []
    return {"databricks": package}


@contextlib.contextmanager
def _entries(mapping: dict[str, Any], added: Mapping[str, Any]) -> Iterator[None]:
    """Inside the block `mapping` has the entries of `added`."""
    before = {name: mapping.get(name, _MISSING) for name in added}
    mapping.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is _MISSING:
                mapping.pop(name, None)
            else:
                mapping[name] = value
