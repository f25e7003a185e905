"""Which datasets a job runs, by the `[jobs]` of `tautochrone.toml`.

A dataset belongs to one job with all of its flows. Datasets that no job names belong to the default job,
which has the pipeline's name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from tautochrone.errors import SettingsError
from tautochrone.model.names import TableName
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph

__all__ = ["datasets_of"]


def datasets_of(
    job: str, jobs: Mapping[str, Sequence[str]], definitions: Definitions, graph: Graph
) -> frozenset[TableName]:
    """The tables that `job` refreshes: all when the project names no jobs.

    Args:
        jobs: by name the datasets as `[jobs]` gives them: names with or without their database, `*` for any
            part.

    Raises:
        SettingsError: `JOB_NOT_FOUND`, `JOB_HAS_NO_DATASETS`, `DATASET_IN_TWO_JOBS`, `DATASET_NOT_FOUND`.
    """
    if not jobs:
        return frozenset(graph.order)
    default_job = definitions.spec.name
    if job not in jobs and job != default_job:
        near = difflib.get_close_matches(job, [*jobs, default_job], n=1)
        raise SettingsError(
            "JOB_NOT_FOUND",
            f"The project has no job {job}",
            hint=f"did you mean {near[0]}?" if near else f"its jobs are {', '.join([*jobs, default_job])}",
        )
    owner = _owners(jobs, graph)
    for table in graph.order:
        # Bad records are committed together with their batch.
        source = _written_with(table, definitions)
        if source is not None:
            owner.pop(table, None)
            if source in owner:
                owner[table] = owner[source]
    job_tables = frozenset(table for table in graph.order if owner.get(table, default_job) == job)
    if not job_tables:
        raise SettingsError(
            "JOB_HAS_NO_DATASETS",
            f"Job {job} has no datasets: other jobs name them all",
            hint=f"choose one with --job: {', '.join(jobs)}",
        )
    return job_tables


def _written_with(table: TableName, definitions: Definitions) -> TableName | None:
    """The table whose job writes this one, which no file declares; None: files declare it."""
    source: TableName | None = None
    while True:
        dataset = definitions.datasets[source or table]
        following = dataset.bad_records_of or dataset.events_of
        if following is None:
            return source
        source = following


def _owners(jobs: Mapping[str, Sequence[str]], graph: Graph) -> dict[TableName, str]:
    """The job of each table that some job names."""
    owner: dict[TableName, str] = {}
    for name, patterns in jobs.items():
        for pattern in patterns:
            matches = [table for table in graph.order if _matches(table, pattern)]
            if not matches:
                raise SettingsError(
                    "DATASET_NOT_FOUND",
                    f"Job {name} has a dataset {pattern}, and nothing is called so",
                    hint=f"there are {', '.join(sorted(table.table for table in graph.order))}",
                )
            for table in matches:
                if owner.setdefault(table, name) != name:
                    raise SettingsError(
                        "DATASET_IN_TWO_JOBS",
                        f"{table} is given to job {owner[table]} and to job {name}",
                        hint="one job brings a dataset up to date",
                    )
    return owner


def _matches(table: TableName, pattern: str) -> bool:
    text = pattern.lower()
    names = (table.table, ".".join((*table.namespace, table.table)), str(table))
    return any(fnmatchcase(name.lower(), text) for name in names)
