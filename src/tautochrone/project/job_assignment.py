"""Which datasets a job runs, by the `[jobs]` of `tautochrone.toml`.

A dataset belongs to one job with all of its flows. What no job names belongs to the pipeline's own job,
which is called like the pipeline.
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
    """The tables that `job` brings up to date: all when the project names no jobs.

    Args:
        jobs: by name the datasets as `[jobs]` gives them: names with or without their database, `*` for any
            part.

    Raises:
        SettingsError: `JOB_NOT_FOUND`, `JOB_HAS_NO_DATASETS`, `DATASET_IN_TWO_JOBS`, `DATASET_NOT_FOUND`.
    """
    if not jobs:
        return frozenset(graph.order)
    own = definitions.spec.name
    if job not in jobs and job != own:
        near = difflib.get_close_matches(job, [*jobs, own], n=1)
        raise SettingsError(
            "JOB_NOT_FOUND",
            f"The project has no job {job}",
            hint=f"did you mean {near[0]}?" if near else f"its jobs are {', '.join([*jobs, own])}",
        )
    owner = _owners(jobs, graph)
    for table in graph.order:
        # Bad records are committed together with the batch that they were in.
        source = definitions.datasets[table].bad_records_of
        if source is not None:
            owner.pop(table, None)
            if source in owner:
                owner[table] = owner[source]
    mine = frozenset(table for table in graph.order if owner.get(table, own) == job)
    if not mine:
        raise SettingsError(
            "JOB_HAS_NO_DATASETS",
            f"Job {job} has no datasets: other jobs name them all",
            hint=f"choose one with --job: {', '.join(jobs)}",
        )
    return mine


def _owners(jobs: Mapping[str, Sequence[str]], graph: Graph) -> dict[TableName, str]:
    """The job of each table that some job names."""
    owner: dict[TableName, str] = {}
    for name, patterns in jobs.items():
        for pattern in patterns:
            found = [table for table in graph.order if _matches(table, pattern)]
            if not found:
                raise SettingsError(
                    "DATASET_NOT_FOUND",
                    f"Job {name} has a dataset {pattern}, and nothing is called so",
                    hint=f"there are {', '.join(sorted(table.table for table in graph.order))}",
                )
            for table in found:
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
