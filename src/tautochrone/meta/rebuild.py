"""Building a lost store again from what the lake's commits say. It must never read the lake itself.

Every derived commit carries its checkpoint and the versions of all its inputs. A checkpoint counts
as told when, taking for each dataset its newest commit up to that number, everybody who read a
table read the same version of it, over all jobs that share tables. Then exactly that state of all
tables stood there: unless the notes of a failed dataset are missing, and in that case it is still one
true instant, only a slightly older one, which is why nothing is handed out again under a number that
readers may have seen as *newer*: numbers and fences go on far above the highest seen. A checkpoint
that one of the jobs skipped does not come back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta import intervals
from tautochrone.meta import tables as t
from tautochrone.meta.base import Repository
from tautochrone.meta.topology import OUTSIDE, groups
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.clock import is_clock
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.jobs import Part
from tautochrone.model.lake import CommitNote
from tautochrone.model.names import CheckpointNumber, TableName, Version

__all__ = ["LakeVersion", "Rebuild"]

_JOB = "\0job "
"""Before a job's name where jobs and tables stand together; no table's name begins so."""

_SKIP = 1_000
"""Numbers and fences that were given but left no trace in the lake stay below this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeVersion:
    """One commit of ours as the lake shows it; `note` is None for a commit without one."""

    version: Version
    note: CommitNote | None
    committed_at_ms: int

    @property
    def checkpoint(self) -> int | None:
        """The checkpoint that the commit was made for, if it is a derived one."""
        return None if self.note is None else self.note.checkpoint


@dataclass(frozen=True, slots=True)
class _Commit:
    """A derived commit, with the later versions that only repeat it (fences, compactions)."""

    version: str
    checkpoint: int
    inputs: Mapping[str, str]
    committed_at_ms: int
    aliases: set[str]


_State = tuple[dict[str, _Commit], dict[str, str]]
"""The commit of each dataset and the version of each root at one checkpoint."""


class Rebuild(Repository):
    """Reconstruction of an empty store."""

    def is_empty(self) -> bool:
        """Whether the store never recorded a checkpoint."""
        with self._read() as connection:
            return connection.execute(select(t.checkpoints.c.number).limit(1)).first() is None

    def rebuild(self, lake: Mapping[TableName, Sequence[LakeVersion]]) -> tuple[CheckpointNumber, ...]:
        """Fill an empty store from the lake; returns the checkpoints published again.

        Called when a run finds an empty store beside tables with notes of ours. Filling it again from the
        same lake while nothing else happened (a lost answer) gives the same checkpoints again.

        Args:
            lake: for each table of ours, of all jobs that can be found, its commits, oldest first, newest
                last. Outsiders' tables are told by the inputs of their readers.

        Raises:
            MetaError: `META_STORE_NOT_EMPTY`.
        """
        derived = {str(name): _commits(versions) for name, versions in lake.items()}
        notes = {
            str(name): [version.note for version in versions if version.note is not None]
            for name, versions in lake.items()
        }
        seen = [0, *(commit.checkpoint for commits in derived.values() for commit in commits)]
        last = max(seen) + _SKIP
        with self._write() as connection:
            known = connection.execute(select(t.checkpoints.c.number).order_by(t.checkpoints.c.number))
            numbers = known.scalars().all()
            if numbers:
                if (
                    numbers[-1] in seen
                    and connection.execute(select(t.stores.c.last_number)).scalar() == last
                ):
                    # No number was given since a rebuild from this lake left its gap: it was this one.
                    return tuple(map(CheckpointNumber, numbers))
                raise MetaError("META_STORE_NOT_EMPTY", "Only an empty store can be rebuilt")
            _register(connection, notes, derived)
            connection.execute(update(t.stores).values(last_number=last))
            owner = {name: found[-1].job for name, found in notes.items() if found}
            kept = {str(name): {str(v.version) for v in versions} for name, versions in lake.items()}
            told = sorted(
                (number, index, state)
                for index, tables in enumerate(_related(owner, derived))
                for number, state in _told({n: derived[n] for n in tables if derived[n]}, kept)
            )
            for number, _, (chosen, roots) in told:
                _publish(connection, number, chosen, roots, owner, derived)
            return tuple(CheckpointNumber(number) for number in sorted({number for number, _, _ in told}))


def _related(owner: Mapping[str, str], derived: Mapping[str, Sequence[_Commit]]) -> list[list[str]]:
    """Tables of ours by who shares checkpoints: joined by what they read and by their jobs."""
    edges = [(name, _JOB + job) for name, job in owner.items()]
    edges += [
        (name, table)
        for name in owner
        for commit in derived[name]
        for table in commit.inputs
        if not is_clock(TableName.parse(table))
    ]
    return [sorted(group & owner.keys()) for group in groups(edges)]


def _commits(versions: Sequence[LakeVersion]) -> list[_Commit]:
    found: list[_Commit] = []
    for version in versions:
        if version.checkpoint is not None and version.note is not None:
            same = found and found[-1].version == version.version
            found.append(
                _Commit(
                    version.version,
                    version.checkpoint,
                    version.note.inputs,
                    version.committed_at_ms,
                    found[-1].aliases if same else {str(version.version)},
                )
            )
        elif found:
            found[-1].aliases.add(version.version)
    return found


def _register(
    connection: Connection,
    notes: Mapping[str, Sequence[CommitNote]],
    derived: Mapping[str, Sequence[_Commit]],
) -> None:
    fences: dict[str, int] = {}
    for name, found in notes.items():
        for note in found:
            fences[note.job] = max(fences.get(note.job, 0), note.fence)
            if connection.execute(select(t.jobs.c.name).where(t.jobs.c.name == note.job)).first():
                continue
            connection.execute(insert(t.jobs).values(name=note.job, pipeline=note.pipeline, fence=0))
        known = connection.execute(select(t.datasets.c.name).where(t.datasets.c.name == name))
        if found and known.first() is None:
            # Only `start_run` knows the kind for sure; until then this tells roots from the rest.
            kind = DatasetKind.MATERIALIZED_VIEW if derived[name] else DatasetKind.STREAMING_TABLE
            connection.execute(
                insert(t.datasets).values(
                    name=name,
                    job=found[-1].job,
                    kind=kind.value,
                    definition=found[-1].definition or "",
                    retired=False,
                    is_root=not derived[name],
                )
            )
            # Who belongs together must be known before their jobs start, or one could cut without the others.
            inputs = derived[name][-1].inputs if derived[name] else ()
            for table in sorted(inputs):
                connection.execute(insert(t.dataset_inputs).values(dataset=name, input=table))
    for job, fence in fences.items():
        j = t.jobs.c
        above = update(t.jobs).where(j.name == job, j.fence < fence + _SKIP)
        connection.execute(above.values(fence=fence + _SKIP))


def _told(
    derived: Mapping[str, Sequence[_Commit]], kept: Mapping[str, Collection[str]]
) -> Iterable[tuple[int, _State]]:
    for number in sorted({commit.checkpoint for commits in derived.values() for commit in commits}):
        state = _state_at(derived, number, kept)
        if state is not None:
            yield number, state


def _publish(
    connection: Connection,
    number: int,
    chosen: Mapping[str, _Commit],
    roots: Mapping[str, str],
    owner: Mapping[str, str],
    derived: Mapping[str, Sequence[_Commit]],
) -> None:
    """What related jobs show at `number`: also those that only ingest, none that had not begun."""
    jobs = {owner[name] for name in chosen}
    jobs |= {owner[name] for name in roots if name in owner and not derived[name]}
    cut_at_ms = max(commit.committed_at_ms for commit in chosen.values())
    known = select(t.checkpoints.c.number).where(t.checkpoints.c.number == number)
    if connection.execute(known).first() is None:
        connection.execute(
            insert(t.checkpoints).values(
                number=number,
                job=min(jobs),
                state=CheckpointState.PUBLISHED.value,
                cut_at_ms=cut_at_ms,
                published_at_ms=cut_at_ms,
                opened_ms=cut_at_ms,
            )
        )
    for job in sorted(jobs):
        part = {"checkpoint": number, "job": job, "state": Part.DONE.value}
        connection.execute(insert(t.checkpoint_jobs).values(part))
    for name, version in roots.items():
        intervals.record(connection, owner.get(name, OUTSIDE), name, version, number, root=True)
    for name, commit in chosen.items():
        intervals.record(connection, owner[name], name, commit.version, number)


def _state_at(
    derived: Mapping[str, Sequence[_Commit]], number: int, kept: Mapping[str, Collection[str]]
) -> _State | None:
    """The commit of each dataset and the version of each root at `number`; None when untold, or when
    a root's version is expired (`kept` are those that are there)."""
    chosen: dict[str, _Commit] = {}
    for name, commits in derived.items():
        upto = [commit for commit in commits if commit.checkpoint <= number]
        if upto:
            chosen[name] = upto[-1]
    roots: dict[str, str] = {}
    for commit in chosen.values():
        for table, version in commit.inputs.items():
            if table in derived:
                if table not in chosen or version not in chosen[table].aliases:
                    return None
            elif is_clock(TableName.parse(table)):
                # A view whose rows did not change keeps the time of its last commit.
                roots[table] = max(roots.get(table, version), version, key=int)
            elif roots.setdefault(table, version) != version or version not in kept.get(table, (version,)):
                return None
    return chosen, roots
