"""One catalog commit as a compare-and-set on the table's metadata.

Iceberg's own operations retry: if the metadata changed, they refresh and apply themselves again to the
current metadata. So a process that lost its job could still append after a takeover. Here the new metadata
is built from exactly the metadata whose main and fence were checked, and passed to
`TableOperations.commit(base, updated)`, which never retries. If only something unrelated changed (a
property, a tag), the loop below reloads, *checks again*, and retries.

The same loop resolves an unknown outcome (the catalog gave no answer): it calls `done` with freshly read
metadata before it retries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tautochrone.errors import CommitOutcomeUnknownError, ConflictError, FencedError
from tautochrone.iceberg.commits.clock import is_of_the_future, of_now
from tautochrone.iceberg.commits.hadoop_commit import commit_by_link, is_hadoop_table
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, decode
from tautochrone.iceberg.java.api import Iceberg, MetadataMovedError, translate
from tautochrone.iceberg.java.durable import sync_file_systems
from tautochrone.model.effects import Effects, Step
from tautochrone.model.lake import NO_VERSION, CommitMetadata
from tautochrone.model.names import Fence, TableName, Version

__all__ = ["MAIN", "NO_VERSION", "Loaded", "check_fence", "check_main", "compare_and_set", "load"]

MAIN = "main"

_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table as one read of its metadata showed it."""

    table: Any
    operations: Any
    metadata: Any

    @property
    def main(self) -> Version:
        snapshot = self.metadata.currentSnapshot()
        return NO_VERSION if snapshot is None else Version(str(snapshot.snapshotId()))

    @property
    def commit_metadata(self) -> CommitMetadata | None:
        """Our newest commit metadata. A property of the table keeps it when other programs commit later.

        None: none of our commits was ever made.
        """
        return decode(self.metadata.properties().get(COMMIT_METADATA_KEY))


def load(iceberg: Iceberg, name: TableName) -> Loaded:
    """Read the table fresh from the catalog."""
    table = iceberg.load(name)
    operations = table.operations()
    return Loaded(table, operations, operations.current())


def check_fence(name: TableName, loaded: Loaded, fence: Fence) -> None:
    """Check the first condition of every commit: no newer owner has the table.

    Raises:
        FencedError: the table has the commit metadata of a newer owner.
    """
    commit_metadata = loaded.commit_metadata
    if commit_metadata is not None and commit_metadata.fence > fence:
        raise FencedError(
            "JOB_FENCED",
            f"{name} is owned by fence {commit_metadata.fence} of job {commit_metadata.job}; "
            f"this writer holds {fence}",
            hint="another process took the job over; this one stops",
        )


def check_main(name: TableName, loaded: Loaded, parent: Version, fence: Fence) -> None:
    """Check the conditions of a commit that moves main: no newer owner has the table, main is at `parent`.

    Raises:
        FencedError: the table has the commit metadata of a newer owner.
        ConflictError: main moved.
    """
    check_fence(name, loaded, fence)
    if loaded.main != parent:
        raise ConflictError(
            "TABLE_MOVED",
            f"{name} stands at version {loaded.main}, this commit was forked from {parent}",
            hint="another writer committed to a table that belongs to a pipeline",
        )


def compare_and_set(
    iceberg: Iceberg,
    name: TableName,
    effects: Effects,
    step: Step,
    *,
    build: Callable[[Loaded], Any],
    done: Callable[[Loaded], bool],
    ask_first: bool = False,
) -> Loaded:
    """Commit `build(loaded)` on top of exactly `loaded`; reload, re-check and retry when it moved.

    Args:
        build: new TableMetadata from the loaded one; raises ConflictError or FencedError to stop. It
            may write manifests, so it must be safe to call again.
        done: whether freshly loaded metadata already holds this commit.
        ask_first: ask `done` before the first attempt too, for commits that may be repeated calls.

    Returns:
        The table as it was when the commit was found or made (reload for what it is now).

    Raises:
        CommitOutcomeUnknownError: still unknown after many attempts.
        LakeError: `LAKE_CLOCK_BEHIND`, where the catalog's server builds the metadata.
    """
    last: Exception | None = None
    for attempt in range(_ATTEMPTS):
        loaded = load(iceberg, name)
        if (attempt or ask_first) and done(loaded):
            return loaded
        try:
            if is_of_the_future(loaded.metadata):
                earlier = of_now(iceberg, loaded.metadata)
                effects.perform(step, str(name), partial(_commit, iceberg, name, loaded, earlier))
                loaded = load(iceberg, name)
            updated = _built(name, build, loaded)
            effects.perform(step, str(name), partial(_commit, iceberg, name, loaded, updated))
        except (MetadataMovedError, CommitOutcomeUnknownError) as error:
            last = error
            continue
        return loaded
    raise CommitOutcomeUnknownError(
        "COMMIT_OUTCOME_UNKNOWN",
        f"{name}: {_ATTEMPTS} attempts to commit met a moving table or a silent catalog",
        hint="the next run reads the table and goes on from there",
    ) from last


def _built(name: TableName, build: Callable[[Loaded], Any], loaded: Loaded) -> Any:
    try:
        return build(loaded)
    except (Py4JError, PySparkException) as error:
        raise translate(error, name) from error


def _commit(iceberg: Iceberg, name: TableName, loaded: Loaded, updated: Any) -> None:
    folders = iceberg.synced_folders(loaded.metadata)
    sync_file_systems(folders)
    try:
        if is_hadoop_table(loaded.operations):
            commit_by_link(iceberg, name, loaded.operations, loaded.metadata, updated)
        else:
            loaded.operations.commit(loaded.metadata, updated)
    except Py4JError as error:
        raise translate(error, name) from error
    # The commit itself writes the new metadata file, which must reach the disk too.
    sync_file_systems(folders)
