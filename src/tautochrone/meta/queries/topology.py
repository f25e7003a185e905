"""Who belongs together: tables and jobs joined by who reads and writes what. Clocks join nobody.

Read fresh in each transaction: a registration that comes between two calls counts at once. A topology with a
cycle is refused, by a check that must never know jobs or the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, select

from tautochrone.errors import MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import VERSIONED_KINDS
from tautochrone.meta.queries.invariant_checks import invariants_and_tables
from tautochrone.model.names import TableName, is_clock

__all__ = [
    "EXTERNAL",
    "JOB_PREFIX",
    "Topology",
    "connected_components",
    "direct_inputs",
    "read_topology",
    "reported_roots",
    "require_acyclic",
]


EXTERNAL = ""
"""Stands for the job of tables that no job writes."""

JOB_PREFIX = "\0job "
"""Begins the node of a job in a graph of jobs and tables. No table's name begins with it."""

_D, _I = t.datasets.c, t.dataset_inputs.c
_DATASETS = select(_D.name, _D.job, _D.is_root).where(_D.retired.is_(False), _D.kind.in_(VERSIONED_KINDS))
_INPUTS = select(_I.dataset, _I.input)


@dataclass(frozen=True, slots=True)
class Topology:
    """`owner` of each dataset (tables only), which of them only ingestion writes, what each reads."""

    owner: dict[str, str]
    roots: frozenset[str]
    inputs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    checked: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    """Each invariant: the job that checks it and what it reads."""

    def datasets(self, job: str) -> set[str]:
        """The tables that a job writes."""
        return {name for name, owner in self.owner.items() if owner == job}

    def reads(self, job: str) -> set[str]:
        """What a job's datasets and invariants read and it does not write itself, clocks included."""
        own = self.datasets(job)
        read = {name for dataset in own for name in self.inputs.get(dataset, ())}
        return read.union(*(tables for checking_job, tables in self.checked if checking_job == job)) - own

    def only_ingests(self, job: str) -> bool:
        """Whether a cut says everything of a job: it has roots alone, and nothing to check."""
        return self.datasets(job) <= self.roots and all(
            checking_job != job for checking_job, _ in self.checked
        )

    def jobs_sharing_with(self, job: str) -> frozenset[str]:
        """The jobs that share checkpoints with `job`, itself included."""
        joined = connected_components(
            [
                *((name, JOB_PREFIX + owner) for name, owner in self.owner.items()),
                *((name, JOB_PREFIX + job) for job, tables in self.checked for name in _tables(tables)),
                *self._edges(),
            ]
        )
        group = next((group for group in joined if JOB_PREFIX + job in group), {JOB_PREFIX + job})
        return frozenset(name.removeprefix(JOB_PREFIX) for name in group if name.startswith(JOB_PREFIX))

    def related(self, tables: Collection[str]) -> set[str]:
        """The datasets that share a root, or an invariant, with one of `tables`, directly or through
        others."""
        together = [(some[0], name) for _, read in self.checked if (some := _tables(read)) for name in some]
        joined: dict[str, list[str]] = {}
        for left, right in (*self._edges(), *together):
            joined.setdefault(left, []).append(right)
            joined.setdefault(right, []).append(left)
        reached, queue = set(tables), [*tables]
        while queue:
            neighbours = [name for name in joined.get(queue.pop(), ()) if name not in reached]
            reached.update(neighbours)
            queue += neighbours
        return reached & self.owner.keys()

    def clocks(self, jobs: Collection[str]) -> set[str]:
        """The clocks that the jobs read."""
        return {name for job in jobs for name in self.reads(job) if is_clock(TableName.parse(name))}

    def _edges(self) -> Iterable[tuple[str, str]]:
        inputs: set[str] = set().union(*self.inputs.values())
        clocks = {name for name in inputs if is_clock(TableName.parse(name))}
        return (
            (dataset, name)
            for dataset, names in self.inputs.items()
            if dataset in self.owner
            for name in names - clocks
        )


def _tables(names: Collection[str]) -> list[str]:
    return [name for name in names if not is_clock(TableName.parse(name))]


def read_topology(connection: Connection) -> Topology:
    """The registered datasets of all jobs."""
    rows = connection.execute(_DATASETS).all()
    owner, roots = {row.name: row.job for row in rows}, frozenset(row.name for row in rows if row.is_root)
    return Topology(owner, roots, direct_inputs(connection), invariants_and_tables(connection))


def direct_inputs(connection: Connection) -> dict[str, frozenset[str]]:
    """The direct inputs of every registered dataset, clocks included."""
    inputs: dict[str, set[str]] = {}
    for dataset, name in connection.execute(_INPUTS).all():
        inputs.setdefault(dataset, set()).add(name)
    return {dataset: frozenset(names) for dataset, names in inputs.items()}


def reported_roots(connection: Connection, job: str, topology: Topology) -> dict[str, str]:
    """What is known of the roots that the jobs with `job` bring in or look at: the newest versions."""
    jobs = topology.jobs_sharing_with(job)
    names = {name for owner in jobs for name in topology.datasets(owner) & topology.roots}
    names |= {name for owner in jobs for name in topology.reads(owner) if name not in topology.owner}
    r = t.reports.c
    rows = connection.execute(select(r.job, r.table_name, r.version).where(r.job.in_([*jobs, EXTERNAL])))
    return {row.table_name: row.version for row in rows if row.table_name in names}


def connected_components(edges: Iterable[tuple[str, str]]) -> list[set[str]]:
    """Connected components."""
    group: dict[str, set[str]] = {}
    for left, right in edges:
        joined = group.get(left, {left}) | group.get(right, {right})
        for name in joined:
            group[name] = joined
    return list({id(members): members for members in group.values()}.values())


def require_acyclic(edges: Mapping[str, frozenset[str]], tables: Iterable[str]) -> None:
    """Refuse a topology in which one of `tables` is computed from itself, directly or through others.

    Args:
        edges: for each table the tables that it reads.
        tables: those that are new or changed.

    Raises:
        MetaError: `TOPOLOGY_CYCLE`, with the cycle from input to output.
    """
    for table in sorted(tables):
        cycle = _cycle_through(edges, table)
        if cycle:
            raise MetaError(
                "TOPOLOGY_CYCLE",
                f"{table} would be made from itself: {' → '.join(cycle)}",
                hint="A checkpoint passes from inputs to outputs; in a cycle it would never end.",
                parameters={"cycle": " → ".join(cycle)},
            )


def _cycle_through(edges: Mapping[str, frozenset[str]], start: str) -> list[str]:
    """The shortest cycle through `start`, from input to output; empty when there is none."""
    reader_of: dict[str, str] = {}
    frontier = [start]
    while frontier:
        following: list[str] = []
        for name in frontier:
            for source in sorted(edges.get(name, ())):
                if source == start:
                    path = [start]
                    table = name
                    while table != start:
                        path.append(table)
                        table = reader_of[table]
                    return [*path, start]
                if source not in reader_of:
                    reader_of[source] = name
                    following.append(source)
        frontier = following
    return []
