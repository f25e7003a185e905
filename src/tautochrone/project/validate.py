"""Checks definitions before any query is evaluated. Classes and sentences are Spark's."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import TableName
from tautochrone.project.definitions import Definitions, is_view
from tautochrone.project.policy import check_policies

__all__ = ["did_you_mean", "validate"]


def validate(definitions: Definitions, files: int, main_files: Sequence[str] = ()) -> None:
    """Check targets and numbers of flows.

    Args:
        definitions: everything that the files define.
        files: how many files match the globs of the spec.
        main_files: those that define something only as the main program.

    Raises:
        DefinitionError: a flow without target, a dataset without flow or with too many of them, a
            refresh policy that does not exist.
    """
    datasets = definitions.datasets
    check_policies(datasets.values())
    is_stored = (not is_view(item) or item.kind is DatasetKind.VIEW for item in datasets.values())
    if not any(is_stored) and not definitions.sinks:
        raise DefinitionError(
            "RUN_EMPTY_PIPELINE",
            "Pipelines are expected to have at least one non-temporary dataset defined (tables, persisted "
            "views) but no non-temporary datasets were found in your pipeline.",
            sqlstate="42617",
            location=str(definitions.spec.path),
            hint=_why_empty(definitions, files, main_files),
        )
    for flow in definitions.flows:
        if flow.target not in datasets and flow.target not in definitions.sinks:
            raise DefinitionError(
                "FLOW_TARGET_NOT_FOUND",
                f"Flow {flow.name} writes to {flow.target}, which no definition creates",
                sqlstate="42P01",
                location=str(flow.location),
                hint=did_you_mean(flow.target, [*datasets, *definitions.sinks])
                or "Create it with CREATE STREAMING TABLE or create_streaming_table().",
            )
    for name, dataset in datasets.items():
        flows = definitions.flows_of(name)
        if not flows:
            raise DefinitionError(
                "PIPELINE_DATASET_WITHOUT_FLOW",
                f"Pipeline dataset {name} does not have any defined flows. Please attach a query with the "
                "dataset's definition, or explicitly define at least one flow that writes to the dataset.",
                sqlstate="0A000",
                location=str(dataset.location),
            )
        if len(flows) > 1 and dataset.kind is not DatasetKind.STREAMING_TABLE:
            raise DefinitionError(
                "MATERIALIZED_VIEW_WITH_MULTIPLE_QUERIES",
                f"The {dataset.kind} {name} has {len(flows)} flows; it can have one only: "
                + ", ".join(f"{flow.name} (at {flow.location})" for flow in flows),
                location=str(flows[1].location),
                hint="Only streaming tables take several flows.",
            )


def _why_empty(definitions: Definitions, files: int, main_files: Sequence[str]) -> str:
    if definitions.datasets:
        names = ", ".join(sorted(name.table for name in definitions.datasets))
        return f"There are only temporary views ({names}), which store nothing: add a materialized view."
    if main_files:
        return (
            f'{main_files[0]} defines datasets below `if __name__ == "__main__"`, which is false in a '
            "definition file: call the function without the condition."
        )
    if files:
        noun = "file that matches defines" if files == 1 else "files that match define"
        return f"The {files} {noun} nothing: are the decorators of pyspark.pipelines on the functions?"
    globs = ", ".join(definitions.spec.libraries)
    return f"No file matches the globs under `libraries` in the spec: {globs}."


_IN_ANOTHER_DATABASE = 0.85
"""How alike the names of tables in different databases must be to be taken for a mistake; at most 1."""


def did_you_mean(name: TableName, known: Iterable[TableName]) -> str | None:
    """A hint with the nearest known name, if one is similar.

    Tables of other databases count only if their names are nearly the same: `silver.dim_users` is not
    `source.users`.
    """
    by_table: dict[str, TableName] = {}
    for known_name in sorted(known, key=lambda other: other.namespace != name.namespace):
        by_table.setdefault(known_name.table, known_name)
    similar = difflib.get_close_matches(name.table, by_table)
    near = [
        by_table[table]
        for table in similar
        if by_table[table].namespace == name.namespace or _likeness(table, name.table) > _IN_ANOTHER_DATABASE
    ]
    return f"Did you mean {near[0].without_catalog}?" if near else None


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()
