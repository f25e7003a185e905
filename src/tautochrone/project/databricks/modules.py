"""The modules that Databricks' projects import: `dlt` under its names, and more in `pyspark.pipelines`.

They are there while a project's own code runs and are taken away afterwards.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from pyspark import pipelines

from tautochrone.project.databricks import decorators
from tautochrone.project.databricks.auto_cdc import (
    create_auto_cdc_flow,
    create_auto_cdc_from_snapshot_flow,
)
from tautochrone.project.databricks.expect import DECORATORS

__all__ = ["databricks_modules"]

_REFUSED = (
    "foreach_batch_sink",
    "on_event_hook",
)
_COMMON: Mapping[str, Any] = {
    **DECORATORS,
    **{name: decorators.refusing(name) for name in _REFUSED},
    "apply_changes": create_auto_cdc_flow,
    "apply_changes_from_snapshot": create_auto_cdc_from_snapshot_flow,
    "append_flow": decorators.append_flow,
    "create_auto_cdc_flow": create_auto_cdc_flow,
    "create_auto_cdc_from_snapshot_flow": create_auto_cdc_from_snapshot_flow,
    "create_sink": pipelines.create_sink,
    "create_streaming_table": decorators.create_streaming_table,
    "materialized_view": decorators.materialized_view,
    "read": decorators.read,
    "read_stream": decorators.read_stream,
    "temporary_view": decorators.view,
    "view": decorators.view,
}
_ONLY_DLT: Mapping[str, Any] = {
    "table": decorators.table_by_query,
    "create_table": decorators.table_by_query,
    "create_view": decorators.view,
    "create_streaming_live_table": decorators.create_streaming_table,
    "create_target_table": decorators.create_streaming_table,
}
_ONLY_PIPELINES: Mapping[str, Any] = {"table": decorators.table}
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
