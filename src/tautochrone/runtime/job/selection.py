"""Which tables a run ingests and rebuilds: the options `--refresh` and `--full-refresh`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tautochrone.errors import DefinitionError
from tautochrone.model.names import TableName
from tautochrone.project.definitions import Definitions
from tautochrone.runtime.job.topology import JobTopology
from tautochrone.sinks import has_adapter

__all__ = ["Selection", "find_all", "select"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which tables a run ingests and rebuilds. Every derived dataset is refreshed to the cut in any case.

    Attributes:
        ingest: the tables whose flows run; None: all.
        full: the tables that are rebuilt.
        full_sinks: the sinks to which all rows are sent again.
    """

    ingest: frozenset[TableName] | None = None
    full: frozenset[TableName] = frozenset()
    full_sinks: frozenset[TableName] = frozenset()

    def with_full_refreshes(self, left: Collection[str]) -> Selection:
        """The same, with the full refreshes of these tables and sinks only.

        >>> orders = TableName("lake", ("shop",), "orders")
        >>> Selection(full=frozenset({orders})).with_full_refreshes([]).full
        frozenset()
        """
        return replace(
            self,
            full=frozenset(name for name in self.full if str(name) in left),
            full_sinks=frozenset(name for name in self.full_sinks if str(name) in left),
        )


def find_all(definitions: Definitions, names: Sequence[str]) -> list[TableName]:
    """Resolve names that a user typed to datasets.

    Raises:
        DefinitionError: `DATASET_NOT_FOUND`, with the nearest name.
    """
    datasets = []
    for text in names:
        name = definitions.dataset_named(tuple(text.split(".")), definitions.scope)
        if name is None:
            dataset_names = [table.table for table in definitions.datasets]
            near = difflib.get_close_matches(text, dataset_names, n=1)
            raise DefinitionError(
                "DATASET_NOT_FOUND",
                f"No dataset is called {text}",
                sqlstate="42P01",
                hint=f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(dataset_names))}",
            )
        datasets.append(name)
    return datasets


def select(
    topology: JobTopology, refresh: Sequence[str], full: Sequence[str], *, everything: bool
) -> Selection:
    """Resolve the options of `taut run`.

    Raises:
        DefinitionError: `DATASET_NOT_FOUND`.
    """
    sinks = {
        name.table.lower(): name
        for name, sink in topology.definitions.sinks.items()
        if not has_adapter(sink.format)
    }
    if everything:
        return Selection(None, frozenset(topology.graph.order), frozenset(sinks.values()))
    full_sinks = frozenset(sinks[name.lower()] for name in full if name.lower() in sinks)
    full = [name for name in full if name.lower() not in sinks]
    full_tables = frozenset(find_all(topology.definitions, full))
    # A rebuilt table reads its bad records again, so its quarantine table is rebuilt too.
    full_tables |= {
        name
        for name, dataset in topology.definitions.datasets.items()
        if dataset.bad_records_of in full_tables
    }
    if not refresh and not full:
        return Selection(full_sinks=full_sinks)
    return Selection(
        frozenset(find_all(topology.definitions, refresh)) | full_tables, full_tables, full_sinks
    )
