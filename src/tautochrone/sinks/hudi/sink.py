"""Publishes tables as Hudi tables: each checkpoint is one instant, the same one in all tables.

A Hudi table has its files in its own folder, under names that begin with the id of their file group. So a
data file of the lake gets a second name there: a link, no copy. Copy on write has no deleted rows in files: a
file of which rows are deleted is written anew without them, as the next version in its file group. A file
that left the lake's table is a file group that is replaced.

Hudi has no compare-and-set on its timeline. The state of the publication decides, see
`sinks.common.publication`, and an instant of somebody else is noticed at the next checkpoint.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyroaring import BitMap64

from tautochrone.model.lake import DataFile, DeletionVector, VersionFiles
from tautochrone.model.names import TableName
from tautochrone.model.s3 import S3_OPTIONS, is_on_s3
from tautochrone.model.sink import Digest, Intent, TransactionState
from tautochrone.sinks.common.exclusive_files import link_files, opened_parquet, sizes_of, sync_folder
from tautochrone.sinks.common.file_columns import FileColumns, FileTypes, stored_file
from tautochrone.sinks.common.object_paths import S3Path, StoredPath
from tautochrone.sinks.common.options import require_known
from tautochrone.sinks.common.publication import (
    PublicationSink,
    PublishedTable,
    described_folder,
    digest_of_files,
    diverged_error,
    publication_folder,
    reported_files,
)
from tautochrone.sinks.common.publication_state import StagedCommit
from tautochrone.sinks.hudi.schema import avro_schema
from tautochrone.sinks.hudi.timeline import METADATA_KEY, FileGroup, FileGroups, HudiTimeline

__all__ = [
    "HudiPublication",
    "HudiTable",
    "examine_hudi_publication",
    "hudi_options",
    "open_hudi_publication",
]

_FORMAT = "hudi-publication"
_KEPT_INSTANTS = 10
"""Files that the newest instants show are kept, as Hudi's cleaner does by default."""
_LISTED_INSTANTS = 100
"""So many instants are in the timeline: more than `_KEPT_INSTANTS` and `_COMPLETE_EVERY` together."""
_DRAFTS_LIVE = timedelta(days=1)
_INSTANT = "%Y%m%d%H%M%S"
_COMPLETE_EVERY = 20
"""So often an instant names all files."""


class HudiPublication(PublicationSink):
    """See the module docstring."""

    _log_folder = ".hoodie"
    _instant = ""

    def _new_table(self, table: TableName, folder: StoredPath) -> PublishedTable:
        return HudiTable(self.name, table, folder, lambda: self._instant)

    def begin(self, intent: Intent) -> TransactionState:
        state = super().begin(intent)
        with reported_files(self.name):
            heads = [self._table(table).head() for table in intent.versions]
        self._instant = _instant_after(max((head for head in heads if head is not None), default=""))
        return state

    def digest_files(self, files: VersionFiles) -> Mapping[str, Digest]:
        deleted = [file.location for file in files.files.values() if file.deletes]
        vectors = dict(zip(deleted, files.deletion_vectors(deleted), strict=True))
        return {
            "": digest_of_files(
                _described(location, file.deletes, file.rows - _positions(vectors.get(location)))
                for location, file in files.files.items()
            )
        }


def _instant_after(last: str) -> str:
    """The time now, or a millisecond after `last`, as `yyyyMMddHHmmssSSS` in UTC.

    >>> _instant_after("29991231235959999")
    '30000101000000000'
    """
    now = datetime.now(UTC)
    text = f"{now.strftime(_INSTANT)}{now.microsecond // 1000:03d}"
    if text > last:
        return text
    later = datetime.strptime(f"{last}000+0000", f"{_INSTANT}%f%z") + timedelta(milliseconds=1)
    return f"{later.strftime(_INSTANT)}{later.microsecond // 1000:03d}"


class HudiTable:
    """One table of the publication, see `PublishedTable`.

    Args:
        instant: gives the time of the checkpoint that is staged.
    """

    def __init__(self, sink: str, table: TableName, folder: StoredPath, instant: Any) -> None:
        self._sink = sink
        self._table = table
        self._folder = folder
        self._instant = instant
        self._timeline = HudiTimeline(folder)

    def head(self) -> str | None:
        return self._timeline.head()

    def stage(self, intent: Intent, files: VersionFiles, *, moves_rows: bool) -> StagedCommit:
        instant, before = self._instant(), self._timeline.groups()
        schema, sources, groups, removed = self._timeline.schema, dict[str, str](), FileGroups(), FileGroups()
        # The files of a table that did not move need not be listed.
        if files.version != self._timeline.lake_version:
            schema = json.dumps(avro_schema(self._sink, self._table, files.columns))
            added = self._added(files, before, is_same_schema=schema == self._timeline.schema)
            removed = {location: group for location, group in before.items() if location not in files.files}
            sources, groups = self._sources(files, added, before, instant)
        described = {
            "transaction": intent.transaction.as_json(),
            "version": files.version,
            "moves_rows": moves_rows,
            **self._changes(before, groups, removed),
        }
        metadata = {
            "partitionToWriteStats": {"": [_write_stat(group) for group in groups.values()]},
            "compacted": False,
            "operationType": "INSERT_OVERWRITE" if removed else "UPSERT",
            "extraMetadata": {"schema": schema, METADATA_KEY: json.dumps(described)},
        }
        if removed:
            metadata["partitionToReplaceFileIds"] = {"": [group.file_id for group in removed.values()]}
        content = {"sources": sources, "metadata": json.dumps(metadata), "replaces": bool(removed)}
        return StagedCommit(instant, json.dumps(content), sum(group.rows for group in groups.values()))

    def _added(self, files: VersionFiles, before: FileGroups, *, is_same_schema: bool) -> list[DataFile]:
        """The files that are new, or of which other rows are deleted.

        Raises:
            SinkError: readers would not see in a file what the lake has. With another schema all files are
                looked at again.
        """
        added = [
            file
            for location, file in files.files.items()
            if location not in before or before[location].deletes != file.deletes
        ]
        columns = FileColumns(
            self._sink, self._table, files.columns, FileTypes(), by_id=False, folder=self._folder
        )
        columns.require_readable(added if is_same_schema else list(files.files.values()))
        return added

    def _changes(self, before: FileGroups, groups: FileGroups, removed: FileGroups) -> dict[str, Any]:
        """The file groups that come and go; sometimes all that are in force, so that none earlier is read."""
        is_complete = not before or self._timeline.instants_read >= _COMPLETE_EVERY
        if is_complete:
            groups = {
                location: group for location, group in before.items() if location not in removed
            } | groups
        added = {location: asdict(group) for location, group in groups.items()}
        return {"is_complete": is_complete, "added": added, "removed": list(removed)}

    def _sources(
        self, files: VersionFiles, added: Sequence[DataFile], before: FileGroups, instant: str
    ) -> tuple[dict[str, str], FileGroups]:
        """By name in the table's folder the file that it is a link to, and the file groups."""
        locations = [file.location for file in added if file.deletes]
        vectors = dict(zip(locations, files.deletion_vectors(locations), strict=True))
        sources, groups = dict[str, str](), FileGroups()
        for file in added:
            path = stored_file(self._sink, self._table, file, self._folder)
            known = before.get(file.location)
            file_id = f"{uuid.uuid4()}-0" if known is None else known.file_id
            name = f"{file_id}_0-0-0_{instant}.parquet"
            vector = vectors.get(file.location)
            source, size = path, file.bytes
            if _positions(vector):
                source, size = self._without_rows(path, file.bytes, vector, instant)
            sources[name] = str(source)
            rows = file.rows - _positions(vector)
            groups[file.location] = FileGroup(file_id, name, file.deletes, rows, size)
        return sources, groups

    def _without_rows(
        self, path: StoredPath, size: int, vector: DeletionVector | None, instant: str
    ) -> tuple[StoredPath, int]:
        """A copy of a data file of `size` bytes without its deleted rows, where readers do not look; and its
        bytes."""
        assert vector is not None
        draft = self._folder / ".hoodie" / ".temp" / f"{instant}-{uuid.uuid4()}.parquet"
        if not isinstance(draft, S3Path):
            draft.parent.mkdir(parents=True, exist_ok=True)
            self._copy_rows(path, size, draft, _positions_in(vector))
            return draft, draft.stat().st_size
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder) / draft.name
            self._copy_rows(path, size, local, _positions_in(vector))
            draft.copy_from(local)
            return draft, local.stat().st_size

    def _copy_rows(self, path: StoredPath, size: int, draft: Path, deleted: NDArray[np.int64]) -> None:
        first = 0
        with (
            pq.ParquetFile(opened_parquet(path, size)) as file,
            pq.ParquetWriter(draft, file.schema_arrow, store_decimal_as_integer=True) as copy,
        ):
            for number in range(file.num_row_groups):
                rows = file.read_row_group(number)
                kept = np.ones(rows.num_rows, bool)
                low, high = np.searchsorted(deleted, (first, first + rows.num_rows))
                kept[deleted[low:high] - first] = False
                copy.write_table(rows.filter(pa.array(kept)))
                first += rows.num_rows

    def commit(self, commit: StagedCommit) -> None:
        content = json.loads(commit.content)
        replaces = content["replaces"]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._timeline.create(self._table.table)
        self._timeline.begin(commit.version, replaces=replaces)
        sources = content["sources"].items()
        links = [(self._source(source), self._folder / name) for name, source in sources]
        link_files(self._sink, self._table, links)
        sync_folder(self._folder)
        if not self._timeline.complete(commit.version, content["metadata"], replaces=replaces):
            raise diverged_error(self._sink, self._table, self._folder, commit.version)

    def _source(self, location: str) -> StoredPath:
        if isinstance(self._folder, S3Path) and is_on_s3(location):
            return S3Path.parse(location, self._folder.client)
        return Path(location)

    def is_committed(self, commit: StagedCommit) -> bool:
        return self.head() == commit.version

    def digest(self) -> Digest:
        """A file that is missing, or has another size, has no rows."""
        groups = self._timeline.groups()
        sizes = sizes_of([self._folder / group.name for group in groups.values()])
        return digest_of_files(
            _described(location, group.deletes, group.rows if size == group.bytes else 0)
            for (location, group), size in zip(groups.items(), sizes, strict=True)
        )

    def maintain(self) -> None:
        """Remove links of which the newest instants show nothing, and drafts that no commit took."""
        old = (datetime.now(UTC) - _DRAFTS_LIVE).strftime(_INSTANT)
        for draft in (self._folder / ".hoodie" / ".temp").glob("*.parquet"):
            if draft.name < old:
                draft.unlink(missing_ok=True)
        oldest, needed = self._timeline.unneeded_before(_KEPT_INSTANTS)
        for path in self._folder.glob("*.parquet"):
            if path.stem.rpartition("_")[2] <= oldest and path.name not in needed:
                path.unlink(missing_ok=True)
        self._timeline.remove_before(_LISTED_INSTANTS)


def _positions(vector: DeletionVector | None) -> int:
    return 0 if vector is None else vector.positions


def _positions_in(vector: DeletionVector) -> NDArray[np.int64]:
    """The deleted positions, ascending. The bitmap stands between 8 bytes (length, magic number) and 4 (check
    sum)."""
    return np.fromiter(BitMap64.deserialize(vector.content[8:-4]), np.int64, vector.positions)


def _write_stat(group: FileGroup) -> dict[str, Any]:
    return {
        "fileId": group.file_id,
        "path": group.name,
        "prevCommit": "null",
        "numWrites": group.rows,
        "numDeletes": 0,
        "numUpdateWrites": 0,
        "numInserts": group.rows,
        "totalWriteBytes": group.bytes,
        "totalWriteErrors": 0,
        "partitionPath": "",
        "fileSizeInBytes": group.bytes,
    }


def _described(location: str, deletes: str, rows: int) -> tuple[int, str]:
    return rows, f"{location}\n{deletes}\n{rows}"


def hudi_options(name: str, options: Mapping[str, str]) -> StoredPath:
    """The folder of the publication.

    Raises:
        SinkError: `SINK_OPTION_MISSING`, `SINK_OPTION_INVALID`.
    """
    require_known(name, options, ("folder", *S3_OPTIONS))
    return publication_folder(name, _FORMAT, options)


def open_hudi_publication(name: str, options: Mapping[str, str]) -> HudiPublication:
    """The factory of the format. Nothing is written.

    Raises:
        SinkError: as `hudi_options`.
    """
    return HudiPublication(name, hudi_options(name, options))


def examine_hudi_publication(name: str, options: Mapping[str, str]) -> str:
    """A sentence about the folder."""
    return described_folder(name, hudi_options(name, options))
