"""Properties of tables: the refresh policy of a view, the column with a streaming table's source time.

A view without the property has the policy of the project's setting. A change log has the commit time instead
of an event time: the source has committed nothing before the time at which all of its log was read.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from pyspark.sql.types import StructType, TimestampType

from tautochrone.errors import DefinitionError
from tautochrone.model.checkpoint import RefreshPolicy
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.names import TableName

__all__ = [
    "COMMIT_TIME",
    "EVENT_TIME",
    "POLICY_HINT",
    "POLICY_PROPERTY",
    "check_event_times",
    "check_policies",
    "event_time_of",
    "has_commit_time",
    "is_misspelt",
    "parse_policy",
    "policy_of",
]


POLICY_PROPERTY = "tautochrone.refresh-policy"
POLICY_HINT = f"policies are {', '.join(RefreshPolicy)}"


def parse_policy(text: str) -> RefreshPolicy:
    """A policy by its name; case does not matter.

    Raises:
        ValueError: there is no such policy.
    """
    return RefreshPolicy(text.strip().lower())


def policy_of(dataset: Dataset, default: RefreshPolicy) -> RefreshPolicy:
    """The policy of a dataset that `check_policies` has validated."""
    text = dataset.properties.get(POLICY_PROPERTY)
    return default if text is None else parse_policy(text)


def is_misspelt(key: str, name: str) -> bool:
    """Whether a property is a misspelling of `name`, one of ours, and would be ignored silently."""
    ours = key.startswith("tautochrone.") and key != name
    return ours and bool(difflib.get_close_matches(key.lower(), [name], cutoff=0.85))


def check_policies(datasets: Iterable[Dataset]) -> None:
    """Refuse what would be ignored silently: wrong values, wrong kinds of datasets, misspelt properties.

    Raises:
        DefinitionError: `INVALID_REFRESH_POLICY`, with `file:line`.
    """
    for dataset in datasets:
        for key, value in dataset.properties.items():
            if is_misspelt(key, POLICY_PROPERTY):
                raise _invalid_policy_error(
                    dataset, f"has a property '{key}'", f"Did you mean '{POLICY_PROPERTY}'?"
                )
            if key != POLICY_PROPERTY:
                continue
            if dataset.kind is not DatasetKind.MATERIALIZED_VIEW and not dataset.is_kind_by_query:
                problem = f"is a {dataset.kind} and has no '{POLICY_PROPERTY}'"
                raise _invalid_policy_error(dataset, problem, "Only materialized views are refreshed.")
            try:
                parse_policy(value)
            except ValueError as error:
                problem = f"has '{POLICY_PROPERTY}' = '{value}', which is no policy"
                raise _invalid_policy_error(dataset, problem, POLICY_HINT) from error


def _invalid_policy_error(dataset: Dataset, problem: str, hint: str) -> DefinitionError:
    return DefinitionError(
        "INVALID_REFRESH_POLICY",
        f"Dataset {dataset.name} {problem}",
        location=str(dataset.location),
        hint=hint,
    )


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
                raise _invalid_event_time_error(
                    dataset, f"has a property '{key}'", f"Did you mean '{EVENT_TIME}'?"
                )
        column = event_time_of(dataset)
        if column is None:
            continue
        name = COMMIT_TIME if has_commit_time(dataset) else EVENT_TIME
        if dataset.kind is not DatasetKind.STREAMING_TABLE:
            problem = f"is a {dataset.kind} and has no '{name}'"
            raise _invalid_event_time_error(
                dataset, problem, "It belongs to the streaming tables that sources are taken into."
            )
        types = {field.name: field.dataType for field in schemas[dataset.name].fields}
        if not isinstance(types.get(column), TimestampType):
            actual_type = types[column].simpleString() if column in types else "not there"
            problem = f"has '{name}' = '{column}', and that column is {actual_type}"
            raise _invalid_event_time_error(dataset, problem, "Name a column of the type TIMESTAMP.")


def _invalid_event_time_error(dataset: Dataset, problem: str, hint: str) -> DefinitionError:
    return DefinitionError(
        "INVALID_EVENT_TIME", f"Dataset {dataset.name} {problem}", location=str(dataset.location), hint=hint
    )
