"""Building a lost store again from what the lake's commits say. It must never read the lake itself.

Every derived commit carries its checkpoint and the versions of all its inputs. A checkpoint counts
as told when, taking for each dataset its newest commit up to that number, everybody who read a
table read the same version of it. Then exactly that state of all tables stood there: unless the
notes of a failed dataset are missing, and in that case it is still one true instant, only a slightly
older one, which is why nothing is handed out again under a number that readers may have seen as
*newer*: numbers and fences go on far above the highest seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert, select, update

from tautochrone.errors import MetaError
from tautochrone.meta import intervals
from tautochrone.meta import tables as t
from tautochrone.meta.base import Repository
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.clock import is_clock
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.lake import CommitNote
from tautochrone.model.names import CheckpointNumber, TableName, Version

__all__ = ["LakeVersion", "Rebuild"]

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


class Rebuild(Repository):
    """Reconstruction of an empty store."""

    def is_empty(self) -> bool:
        """Whether the store never recorded a checkpoint."""
        with self._read() as connection:
            return connection.execute(select(t.checkpoints.c.number).limit(1)).first() is None

    def rebuild(self, lake: Mapping[TableName, Sequence[LakeVersion]]) -> tuple[CheckpointNumber, ...]:
        """Fill an empty store from the lake; returns the checkpoints published again.

        Called when a run finds an empty store beside tables with notes of ours.

        Args:
            lake: for each table of ours its commits, oldest first, newest last. Outsiders' tables
                are told by the inputs of their readers.

        Raises:
            MetaError: `META_STORE_NOT_EMPTY`.
        """
        derived = {str(name): _commits(versions) for name, versions in lake.items()}
        notes = {
            str(name): [version.note for version in versions if version.note is not None]
            for name, versions in lake.items()
        }
        with self._write() as connection:
            if connection.execute(select(t.checkpoints.c.number).limit(1)).first() is not None:
                raise MetaError("META_STORE_NOT_EMPTY", "Only an empty store can be rebuilt")
            _register(connection, notes, derived)
            seen = [0]
            seen += [commit.checkpoint for commits in derived.values() for commit in commits]
            connection.execute(update(t.stores).values(last_number=max(seen) + _SKIP))
            owner = {name: found[-1].job for name, found in notes.items() if found}
            kept = {str(name): {str(v.version) for v in versions} for name, versions in lake.items()}
            return tuple(
                CheckpointNumber(number)
                for job in sorted(set(owner.values()))
                for number in _publish(
                    connection, job, {n: c for n, c in derived.items() if owner.get(n) == job and c}, kept
                )
            )


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
                )
            )
    for job, fence in fences.items():
        j = t.jobs.c
        above = update(t.jobs).where(j.name == job, j.fence < fence + _SKIP)
        connection.execute(above.values(fence=fence + _SKIP))


def _publish(
    connection: Connection,
    job: str,
    derived: Mapping[str, Sequence[_Commit]],
    kept: Mapping[str, Collection[str]],
) -> Iterable[int]:
    numbers = {commit.checkpoint for commits in derived.values() for commit in commits}
    published = []
    for number in sorted(numbers):
        state = _state_at(derived, number, kept)
        if state is None:
            continue
        chosen, roots = state
        cut_at_ms = max(commit.committed_at_ms for commit in chosen.values())
        connection.execute(
            insert(t.checkpoints).values(
                number=number,
                job=job,
                state=CheckpointState.PUBLISHED.value,
                cut_at_ms=cut_at_ms,
                published_at_ms=cut_at_ms,
            )
        )
        for name, version in roots.items():
            intervals.record(connection, job, name, version, number, root=True)
        for name, commit in chosen.items():
            intervals.record(connection, job, name, commit.version, number)
        published.append(number)
    return published


def _state_at(
    derived: Mapping[str, Sequence[_Commit]], number: int, kept: Mapping[str, Collection[str]]
) -> tuple[dict[str, _Commit], dict[str, str]] | None:
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
