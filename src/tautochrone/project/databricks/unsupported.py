"""What exists on Databricks only: each refusal says where it is asked for, and what to write instead."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry
from pyspark.pipelines.source_code_location import SourceCodeLocation

from tautochrone.errors import DefinitionError

__all__ = ["INSTEAD", "caller", "databricks_only_error", "known_databricks_error", "shown"]

_OWN_FOLDER = Path(__file__).parent

_MODULES = ("databricks", "pyspark.dbutils")
_PIPELINES = ("dlt", "databricks.pipelines", "pyspark.pipelines")

INSTEAD = {
    "foreach_batch_sink": "Write the rows into a streaming table, and deliver the table to a sink.",
    "row_filter": "Define a view with the filter as its WHERE, and give readers that view.",
    "column mask": "Define a view that computes the masked column, and give readers that view.",
    "once": "Leave it out and let the flow read a stream (spark.readStream, STREAM): each row is taken once, "
    "and again at a full refresh.",
    "generated column": "Compute the column in the query.",
    "dbutils": "Read parameters with spark.conf.get, from `configuration` in the pipeline spec. Of "
    "dbutils there is fs.ls.",
    "function": "Define the dataset with the decorators of open-source Spark, pyspark.pipelines.",
    "display": "Leave it out: a definition file only defines.",
}
"""By feature: what to write instead."""


def known_databricks_error(error: Exception, location: str) -> DefinitionError | None:
    """The refusal of what a definition file asked for and only Databricks has; None for other errors."""
    if isinstance(error, NameError) and error.name in ("dbutils", "display"):
        return databricks_only_error(error.name, error.name, location)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(_MODULES):
        return databricks_only_error("dbutils", f"The module {error.name}", location)
    module = error.obj if isinstance(error, AttributeError) else None
    name = getattr(module, "__name__", None) if isinstance(module, ModuleType) else None
    if name in _PIPELINES and isinstance(error, AttributeError):
        return databricks_only_error("function", f"{name}.{error.name}", location)
    if isinstance(error, ImportError) and error.name in _PIPELINES:
        return databricks_only_error("function", f"{error}", location)
    return None


def databricks_only_error(feature: str, subject: str, location: str | None = None) -> DefinitionError:
    """The refusal of a feature of `INSTEAD`; `subject` names it in the sentence."""
    return DefinitionError(
        "DATABRICKS_ONLY",
        f"{subject} exists on Databricks only",
        sqlstate="0A000",
        location=location,
        hint=INSTEAD[feature],
    )


def caller() -> SourceCodeLocation:
    """The place in the definition file that called one of these functions."""
    frame = sys._getframe(1)  # noqa: SLF001
    while Path(frame.f_code.co_filename).parent == _OWN_FOLDER and frame.f_back is not None:
        frame = frame.f_back
    return SourceCodeLocation(filename=frame.f_code.co_filename, line_number=frame.f_lineno)


def shown(location: SourceCodeLocation) -> str:
    registry: Any = get_active_graph_element_registry()
    return str(registry.location(location))
