"""The column that tells how far the source of a streaming table has come: a property of the table."""

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
    """The column's name, if the table has one that `check_event_times` let through."""
    return dataset.properties.get(EVENT_TIME)


def check_event_times(datasets: Iterable[Dataset], schemas: Mapping[TableName, StructType]) -> None:
    """Refuse what would be ignored without a word: other kinds, missing columns, near misses of the name.

    Raises:
        DefinitionError: `INVALID_EVENT_TIME`, with `file:line`.
    """
    for dataset in datasets:
        for key in dataset.properties:
            if is_misspelt(key, EVENT_TIME):
                raise _refusal(dataset, f"has a property '{key}'", f"Did you mean '{EVENT_TIME}'?")
        column = event_time_of(dataset)
        if column is None:
            continue
        if dataset.kind is not DatasetKind.STREAMING_TABLE:
            words = f"is a {dataset.kind} and has no '{EVENT_TIME}'"
            raise _refusal(dataset, words, "It belongs to the streaming tables that sources are taken into.")
        types = {field.name: field.dataType for field in schemas[dataset.name].fields}
        if not isinstance(types.get(column), TimestampType):
            found = types[column].simpleString() if column in types else "not there"
            words = f"has '{EVENT_TIME}' = '{column}', and that column is {found}"
            raise _refusal(dataset, words, "Name a column of the type TIMESTAMP.")


def _refusal(dataset: Dataset, words: str, hint: str) -> DefinitionError:
    return DefinitionError(
        "INVALID_EVENT_TIME", f"Dataset {dataset.name} {words}", location=str(dataset.location), hint=hint
    )
