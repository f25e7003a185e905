"""The column with the source time of a streaming table's rows: a property of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql.types import StructType, TimestampType

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.names import TableName
from tautochrone.project.policy import is_misspelt

__all__ = ["EVENT_TIME", "check_event_times", "event_time_of"]

EVENT_TIME = "tautochrone.event-time"


def event_time_of(dataset: Dataset) -> str | None:
    """The column's name, if the table has one; `check_event_times` has validated it."""
    return dataset.properties.get(EVENT_TIME)


def check_event_times(datasets: Iterable[Dataset], schemas: Mapping[TableName, StructType]) -> None:
    """Refuse what would be ignored silently: other kinds of datasets, missing columns, misspelt properties.

    Raises:
        DefinitionError: `INVALID_EVENT_TIME`, with `file:line`.
    """
    for dataset in datasets:
        for key in dataset.properties:
            if is_misspelt(key, EVENT_TIME):
                raise _invalid(dataset, f"has a property '{key}'", f"Did you mean '{EVENT_TIME}'?")
        column = event_time_of(dataset)
        if column is None:
            continue
        if dataset.kind is not DatasetKind.STREAMING_TABLE:
            problem = f"is a {dataset.kind} and has no '{EVENT_TIME}'"
            raise _invalid(
                dataset, problem, "It belongs to the streaming tables that sources are taken into."
            )
        types = {field.name: field.dataType for field in schemas[dataset.name].fields}
        if not isinstance(types.get(column), TimestampType):
            actual_type = types[column].simpleString() if column in types else "not there"
            problem = f"has '{EVENT_TIME}' = '{column}', and that column is {actual_type}"
            raise _invalid(dataset, problem, "Name a column of the type TIMESTAMP.")


def _invalid(dataset: Dataset, problem: str, hint: str) -> DefinitionError:
    return DefinitionError(
        "INVALID_EVENT_TIME", f"Dataset {dataset.name} {problem}", location=str(dataset.location), hint=hint
    )
