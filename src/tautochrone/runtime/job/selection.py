"""What `--refresh` and `--full-refresh` name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from tautochrone.errors import DefinitionError
from tautochrone.model.names import TableName
from tautochrone.project.definitions import Definitions
from tautochrone.runtime.job.job import Job

__all__ = ["Selection", "find_all", "select"]


@dataclass(frozen=True, slots=True)
class Selection:
    """`ingest` limits which tables take in new data (None: all); `full` are rebuilt.

    Every derived dataset still follows to the new cut: a run never leaves tables at two instants.
    """

    ingest: frozenset[TableName] | None = None
    full: frozenset[TableName] = frozenset()


def find_all(definitions: Definitions, names: Sequence[str]) -> list[TableName]:
    """Datasets by the names that people type.

    Raises:
        DefinitionError: `DATASET_NOT_FOUND`, with the nearest name.
    """
    found = []
    for text in names:
        name = definitions.dataset_named(tuple(text.split(".")), definitions.scope)
        if name is None:
            known = [table.table for table in definitions.datasets]
            near = difflib.get_close_matches(text, known, n=1)
            raise DefinitionError(
                "DATASET_NOT_FOUND",
                f"No dataset is called {text}",
                sqlstate="42P01",
                hint=f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}",
            )
        found.append(name)
    return found


def select(job: Job, refresh: Sequence[str], full: Sequence[str], *, everything: bool) -> Selection:
    """Resolve the options of `taut run`."""
    if everything:
        return Selection(None, frozenset(job.graph.order))
    chosen = frozenset(find_all(job.definitions, full))
    # Bad records of rows that are read anew would stand there twice.
    chosen |= {name for name, dataset in job.definitions.datasets.items() if dataset.bad_records_of in chosen}
    if not refresh and not full:
        return Selection()
    return Selection(frozenset(find_all(job.definitions, refresh)) | chosen, chosen)
