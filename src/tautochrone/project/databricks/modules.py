"""The modules that Databricks' projects import: `dlt`, and what they find in `pyspark.pipelines`.

They are there while a project's own code runs and are taken away afterwards.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from pyspark import pipelines

from tautochrone.project.databricks import decorators
from tautochrone.project.databricks.expect import DECORATORS

__all__ = ["databricks_modules"]

_REFUSED = (
    "apply_changes",
    "apply_changes_from_snapshot",
    "create_auto_cdc_flow",
    "create_auto_cdc_from_snapshot_flow",
    "foreach_batch_sink",
    "on_event_hook",
)
_COMMON: Mapping[str, Any] = {
    **DECORATORS,
    **{name: decorators.refusing(name) for name in _REFUSED},
    "append_flow": decorators.append_flow,
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
    """Inside the block `import dlt` works, and `pyspark.pipelines` has Databricks' names."""
    installed = sys.modules.get("dlt", _MISSING)
    added = {**_COMMON, **_ONLY_PIPELINES}
    own = {name: vars(pipelines).get(name, _MISSING) for name in added}
    sys.modules["dlt"] = _DLT
    vars(pipelines).update(added)
    try:
        yield
    finally:
        for name, value in own.items():
            if value is _MISSING:
                vars(pipelines).pop(name, None)
            else:
                vars(pipelines)[name] = value
        if installed is _MISSING:
            sys.modules.pop("dlt", None)
        else:
            sys.modules["dlt"] = installed
