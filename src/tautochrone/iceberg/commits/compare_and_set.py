"""One catalog commit as a compare-and-set on the table's metadata.

Iceberg's own operations retry: if the metadata changed, they refresh and apply themselves again to the
current metadata. So a process that lost its job could still append after a takeover. Here the new metadata
is built from exactly the metadata whose main and fence were checked, and passed to
`TableOperations.commit(base, updated)`, which never retries. If only something unrelated changed (a
property, a tag), the loop below reloads, *checks again*, and retries.

The same loop resolves an unknown outcome (the catalog gave no answer): it calls `done` with freshly read
metadata before it retries.

Two kinds of tables need more than that:

- Those of Iceberg's hadoop catalog on a local disk. Iceberg renames the new metadata file to its number,
  after it has looked whether that file exists. A local rename overwrites an existing file, so of two
  processes that commit at once one would lose its commit without an error. A hard link fails where there is a
  file: the first process wins, and the other one is refused.
- Those whose metadata is from the future: the clock went back since, or another host's is ahead. Iceberg
  refuses each commit to a table of which the metadata is more than a minute newer than the clock says, until
  the clock has caught up. Times mean nothing to Tautochrone's own reads: versions are named by number. So
  such metadata is first rewritten, as a commit of its own, with the times of its logs no later than now. The
  snapshots keep their times.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tautochrone.errors import CommitOutcomeUnknownError, ConflictError, FencedError, LakeError
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, decode
from tautochrone.iceberg.java.api import FILE_PATHS, Iceberg, MetadataMovedError, sync_file_systems, translate
from tautochrone.iceberg.java.calls import LoadedTable, iceberg_calls
from tautochrone.iceberg.sessions.hadoop_files import newest_metadata_file, plain_path, version_of
from tautochrone.model.effects import Durability, Effects, Step
from tautochrone.model.lake import NO_VERSION, CommitMetadata
from tautochrone.model.moments import now_ms
from tautochrone.model.names import Fence, TableName, Version

__all__ = [
    "MAIN",
    "NO_VERSION",
    "SEAL_KEY",
    "Loaded",
    "check_fence",
    "check_main",
    "commit_by_link",
    "compare_and_set",
    "is_of_the_future",
    "load",
    "staged_at_ms",
    "with_current_time",
]


SEAL_KEY = "tautochrone.orphans-before"
"""A property of a table: see `maintenance.orphans`."""

_TOLERANCE_MS = 30_000
"""Less than the minute that Iceberg allows."""


def staged_at_ms(table: Any) -> int:
    """When files are staged for a Java table, from now on. They come after its seal, whatever the clock said
    when it was sealed."""
    return max(now_ms(), int(iceberg_calls().property(table, SEAL_KEY) or 0))


def is_of_the_future(metadata: Any) -> bool:
    """Whether Iceberg would refuse commits to a table with this Java TableMetadata."""
    latest = int(metadata.lastUpdatedMillis())
    if latest <= (now := now_ms()):
        # The entries of its logs are not more than a minute newer.
        return False
    log = metadata.snapshotLog()
    if log.size():
        latest = max(latest, int(log.get(log.size() - 1).timestampMillis()))
    return latest > now + _TOLERANCE_MS


def with_current_time(iceberg: Iceberg, metadata: Any) -> Any:
    """The same Java TableMetadata, made now."""
    parser = iceberg.api.TableMetadataParser
    fields, now = json.loads(str(parser.toJson(metadata))), now_ms()
    for entry in fields.get("snapshot-log") or ():
        entry["timestamp-ms"] = min(entry["timestamp-ms"], now)
    # Iceberg deletes files that the log loses, so an entry with another time would name a deleted file.
    fields["metadata-log"] = [
        entry for entry in fields.get("metadata-log") or () if entry["timestamp-ms"] <= now
    ]
    fields["last-updated-ms"] = now
    earlier = parser.fromJson(metadata.metadataFileLocation(), json.dumps(fields))
    # Without a change the builder would not note the metadata file of before.
    return iceberg.api.TableMetadata.buildFrom(earlier).setProperties(metadata.properties()).build()


_GZIP = b"\x1f\x8b"
_OPERATIONS = "org.apache.iceberg.hadoop.HadoopTableOperations"


def commit_by_link(iceberg: Iceberg, name: TableName, operations: Any, base: Any, updated: Any) -> None:
    """Make `updated` the table's next version, if `base` is its newest one.

    The metadata file is never compressed, whatever the table's properties say: with two possible names for
    the next version two writers could both create it.

    Raises:
        MetadataMovedError: the table has a newer version than `base`.
        LakeError: `CATALOG_MOVED`, the table's folder was copied or moved.
    """
    base_file = plain_path(str(base.metadataFileLocation()))
    made_in = plain_path(str(base.location()))
    if os.path.realpath(made_in) != os.path.realpath(base_file.parent.parent):
        raise LakeError(
            "CATALOG_MOVED",
            f"{name} was made in {made_in} and is in {base_file.parent.parent} now: it names the files there",
            hint="put the warehouse where it was; only a catalog inside of the storage can be relocated",
            sqlstate="55000",
        )
    version = version_of(base_file)
    newest = newest_metadata_file(base_file.parent.parent)
    if version is None or newest is None or version_of(newest) != version:
        raise _metadata_moved_error(name, newest)
    draft = base_file.with_name(f"{uuid4()}.metadata.json")
    next_file = base_file.with_name(f"v{version + 1}.metadata.json")
    iceberg.api.TableMetadataParser.write(updated, operations.io().newOutputFile(str(draft)))
    try:
        if iceberg.durability is not Durability.PROCESS:
            _sync_file(draft)
        os.link(draft, next_file)
    except FileExistsError:
        raise _metadata_moved_error(name, next_file) from None
    finally:
        for leftover in (draft, draft.with_name(f".{draft.name}.crc")):
            leftover.unlink(missing_ok=True)
    newest = newest_metadata_file(base_file.parent.parent) or next_file
    newest_version = version_of(newest) or version + 1
    if newest_version > version + 1 and not _is_built_upon(next_file, version + 1):
        next_file.unlink(missing_ok=True)
        raise _metadata_moved_error(name, newest)
    _write_hint(base_file.parent, max(newest_version, version + 1))
    iceberg.api.CatalogUtil.deleteRemovedMetadataFiles(operations.io(), base, updated)


def _is_built_upon(file: Path, version: int) -> bool:
    """Whether the newer versions of a table come after this metadata file, which was just linked.

    They do not if other writers made that version and more, and deleted its file, before it was linked:
    Iceberg deletes old metadata files where the table says so.
    """
    newer = [other for other in file.parent.iterdir() if (version_of(other) or 0) > version]
    logs = [entry for other in newer for entry in _metadata_log(other)]
    try:
        made_ms = json.loads(file.read_bytes())["last-updated-ms"]
    except FileNotFoundError:
        # Only a writer of a newer version deletes it.
        return True
    return any(plain_path(path).name == file.name and at_ms == made_ms for path, at_ms in logs)


def _metadata_log(file: Path) -> list[tuple[str, int]]:
    """The earlier metadata files that a metadata file names, and when they were made."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return []
    metadata = json.loads(gzip.decompress(content) if content.startswith(_GZIP) else content)
    return [(entry["metadata-file"], entry["timestamp-ms"]) for entry in metadata.get("metadata-log", [])]


def _metadata_moved_error(name: TableName, newest: Path | None) -> MetadataMovedError:
    text = "is gone" if newest is None else f"stands at {newest.name}"
    return MetadataMovedError("METADATA_MOVED", f"{name} {text}", retryable=True)


def _sync_file(file: Path) -> None:
    with file.open("rb") as content:
        os.fsync(content.fileno())


def _write_hint(folder: Path, version: int) -> None:
    """Other engines begin to look for the newest version at the hint; one that is behind is no error."""
    draft = folder / f"{uuid4()}-version-hint.temp"
    draft.write_text(str(version), encoding="ascii")
    # Hadoop would compare the new text with the checksum of the one before.
    (folder / ".version-hint.text.crc").unlink(missing_ok=True)
    draft.replace(folder / "version-hint.text")


MAIN = "main"
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Loaded(LoadedTable):
    """A table as one read of its metadata showed it."""

    @property
    def commit_metadata(self) -> CommitMetadata | None:
        """Our newest commit metadata. A property of the table keeps it when other programs commit later.

        None: none of our commits was ever made.
        """
        return decode(self.property_values[0])

    @property
    def sealed_at_ms(self) -> int | None:
        """See `maintenance.orphans`; epoch milliseconds."""
        sealed = self.property_values[1]
        return None if sealed is None else int(sealed)


def load(iceberg: Iceberg, name: TableName) -> Loaded:
    """Read the table fresh from the catalog.

    Raises:
        TableMissingError: it is not there.
        LakeError: `TABLE_OF_ANOTHER_TARGET`.
    """
    loaded = Loaded.of(iceberg.load_with(name, (COMMIT_METADATA_KEY, SEAL_KEY, *FILE_PATHS)))
    iceberg.require_own(name, loaded.location, *loaded.property_values[2:])
    return loaded


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
        CommitOutcomeUnknownError: still unknown after many attempts, or the table could not be read again
            after an attempt without an answer.
        ConflictError: from `build`; no attempt was committed.
        LakeError: `LAKE_CLOCK_BEHIND`, where the catalog's server builds the metadata.
    """
    last: LakeError | None = None
    unanswered: CommitOutcomeUnknownError | None = None
    for attempt in range(_ATTEMPTS):
        try:
            loaded = load(iceberg, name)
            if (attempt or ask_first) and done(loaded):
                return loaded
            try:
                return _attempt(iceberg, name, effects, step, build, loaded)
            except MetadataMovedError as error:
                last = error
            except CommitOutcomeUnknownError as error:
                last = unanswered = error
        except ConflictError:
            # The metadata that was just read is another one, and does not hold an earlier attempt.
            raise
        except (LakeError, Py4JError) as error:
            if unanswered is None:
                raise
            raise CommitOutcomeUnknownError(
                "COMMIT_OUTCOME_UNKNOWN",
                f"{name}: the catalog gave no answer to a commit ({unanswered.message}), and then the table "
                f"could not be read: {error.message if isinstance(error, LakeError) else error}",
                hint="the next run reads the table and goes on from there",
            ) from error
    raise CommitOutcomeUnknownError(
        "COMMIT_OUTCOME_UNKNOWN",
        f"{name}: {_ATTEMPTS} attempts to commit met a moving table or a silent catalog",
        hint="the next run reads the table and goes on from there",
    ) from last


def _attempt(
    iceberg: Iceberg,
    name: TableName,
    effects: Effects,
    step: Step,
    build: Callable[[Loaded], Any],
    loaded: Loaded,
) -> Loaded:
    """Commit once, on top of `loaded`, or of the same metadata with the current time."""
    if loaded.last_updated_ms > now_ms() and is_of_the_future(loaded.metadata):
        earlier = with_current_time(iceberg, loaded.metadata)
        effects.perform(step, str(name), partial(_commit, iceberg, name, loaded, earlier))
        loaded = load(iceberg, name)
    updated = _built(name, build, loaded)
    effects.perform(step, str(name), partial(_commit, iceberg, name, loaded, updated))
    return loaded


def _built(name: TableName, build: Callable[[Loaded], Any], loaded: Loaded) -> Any:
    try:
        return build(loaded)
    except (Py4JError, PySparkException) as error:
        raise translate(error, name) from error


def _commit(iceberg: Iceberg, name: TableName, loaded: Loaded, updated: Any) -> None:
    folders = iceberg.synced_folders(loaded.metadata)
    sync_file_systems(folders)
    try:
        if loaded.operations_class == _OPERATIONS:
            commit_by_link(iceberg, name, loaded.operations, loaded.metadata, updated)
        else:
            loaded.operations.commit(loaded.metadata, updated)
    except Py4JError as error:
        raise translate(error, name) from error
    # The commit itself writes the new metadata file, which must reach the disk too.
    sync_file_systems(folders)
