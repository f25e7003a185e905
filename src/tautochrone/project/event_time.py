"""The column with the source time of a streaming table's rows: a property of the table.

A change log has the commit time instead: the source has committed nothing before the time at which all of its
log was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql.types import StructType, TimestampType

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.names import TableName
from tautochrone.project.policy import is_misspelt

__all__ = ["COMMIT_TIME", "EVENT_TIME", "check_event_times", "event_time_of", "has_commit_time"]

EVENT_TIME = "tautochrone.event-time"
COMMIT_TIME = "tautochrone.commit-time"


def event_time_of(dataset: Dataset) -> str | None:
    """The column's name, if the table has one; `check_event_times` has validated it."""
    return dataset.properties.get(EVENT_TIME, dataset.properties.get(COMMIT_TIME))


def has_commit_time(dataset: Dataset) -> bool:
    """Whether source times of the table are times at which its source committed."""
    return EVENT_TIME not in dataset.properties and COMMIT_TIME in dataset.properties


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
        name = COMMIT_TIME if has_commit_time(dataset) else EVENT_TIME
        if dataset.kind is not DatasetKind.STREAMING_TABLE:
            problem = f"is a {dataset.kind} and has no '{name}'"
            raise _invalid(
                dataset, problem, "It belongs to the streaming tables that sources are taken into."
            )
        types = {field.name: field.dataType for field in schemas[dataset.name].fields}
        if not isinstance(types.get(column), TimestampType):
            actual_type = types[column].simpleString() if column in types else "not there"
            problem = f"has '{name}' = '{column}', and that column is {actual_type}"
            raise _invalid(dataset, problem, "Name a column of the type TIMESTAMP.")


def _invalid(dataset: Dataset, problem: str, hint: str) -> DefinitionError:
    return DefinitionError(
        "INVALID_EVENT_TIME", f"Dataset {dataset.name} {problem}", location=str(dataset.location), hint=hint
    )
