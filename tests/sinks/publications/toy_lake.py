"""A lake of Parquet files without Spark, deliveries as the runtime makes them, and readers of the formats."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import deltalake
import hudi
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64
from tests.storage.s3 import KEY, REGION, SECRET
from tests.support.paimon import paimon_rows, paimon_snapshots

from tautochrone.model.lake import ColumnStatistics, DataFile, DeletionVector
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent, TransactionId
from tautochrone.sinks.common.object_paths import S3Path, StoredPath
from tautochrone.sinks.common.publication import PublicationSink
from tautochrone.sinks.delta.sink import DeltaPublication
from tautochrone.sinks.hudi.sink import HudiPublication
from tautochrone.sinks.paimon.sink import PaimonPublication

ORDERS, LINES = (TableName("lake", ("shop",), name) for name in ("orders", "lines"))
COLUMNS = (
    {"id": 1, "name": "id", "required": False, "type": "int"},
    {"id": 2, "name": "word", "required": False, "type": "string"},
)
ARROW = {"int": pa.int32(), "long": pa.int64(), "string": pa.string(), "double": pa.float64()}
Columns = Sequence[Mapping[str, Any]]


def stored_column(name: str, column: int, kind: Any, *, is_required: bool = False) -> pa.Field:
    """A column of a data file, of its type in Iceberg's JSON."""
    stored = ARROW.get(kind) if isinstance(kind, str) else None
    if stored is None and kind["type"] == "struct":
        stored = pa.struct([stored_column(c["name"], c["id"], c["type"]) for c in kind["fields"]])
    elif stored is None and kind["type"] == "list":
        stored = pa.list_(stored_column("element", kind["element-id"], kind["element"]))
    elif stored is None:
        key = stored_column("key", kind["key-id"], kind["key"], is_required=True)
        stored = pa.map_(key, stored_column("value", kind["value-id"], kind["value"]))
    return pa.field(name, stored, nullable=not is_required, metadata={"PARQUET:field_id": str(column)})


def write_file(folder: Path, columns: Columns, *rows: tuple[Any, ...]) -> Path:
    """A data file as Iceberg's writers make it."""
    schema = pa.schema([stored_column(c["name"], c["id"], c["type"]) for c in columns])
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    path = folder / f"{uuid.uuid4()}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(named, schema=schema), path)
    return path


@dataclass
class ToyVersion:
    """A version of a table: see `model.lake.VersionFiles`."""

    table: TableName
    version: Version
    columns: Columns
    deleted: dict[Path, frozenset[int]]
    bucket: S3Path | None = None
    """Where the files are; None: on this machine."""
    sequences: Mapping[Path, int] = field(default_factory=dict)

    def _location(self, path: Path) -> str:
        return path.as_uri() if self.bucket is None else str(self.bucket / path.name)

    @cached_property
    def files(self) -> Mapping[str, DataFile]:
        return {
            self._location(path): DataFile(
                location=self._location(path),
                path=path if self.bucket is None else None,
                format="PARQUET",
                bytes=path.stat().st_size,
                rows=pq.read_metadata(path).num_rows,
                encrypted=False,
                deletes=repr(sorted(positions)) if positions else "",
                sequence=self.sequences.get(path, 0),
            )
            for path, positions in self.deleted.items()
        }

    def statistics(self, locations: Sequence[str]) -> Sequence[Mapping[int, ColumnStatistics]]:
        return [{} for _ in locations]

    def deletion_vectors(self, locations: Sequence[str]) -> Sequence[DeletionVector]:
        by_location = {self._location(path): positions for path, positions in self.deleted.items()}
        return [vector(by_location[location]) for location in locations]

    def rows(self) -> list[dict[str, Any]]:
        return [
            row
            for path, positions in self.deleted.items()
            for number, row in enumerate(pq.read_table(path).to_pylist())
            if number not in positions
        ]


def options_of_rust(folder: StoredPath) -> dict[str, str]:
    """The options by which deltalake and hudi-rs open a folder."""
    if isinstance(folder, Path):
        return {}
    return {
        "aws_endpoint": folder.client.meta.endpoint_url,
        "aws_allow_http": "true",
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "aws_region": REGION,
    }


def delta_table(folder: StoredPath, version: str | None = None) -> deltalake.DeltaTable:
    number = None if version is None else int(version)
    return deltalake.DeltaTable(str(folder), version=number, storage_options=options_of_rust(folder))


def readable(folder: StoredPath) -> str:
    """As programs name it that know no `s3a`."""
    return str(folder).replace("s3a://", "s3://")


def delta_rows(folder: StoredPath, version: str | None) -> pa.Table:
    """The rows of a Delta table as deltalake reads them."""
    table = delta_table(folder, version)
    return pa.table(deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())


def hudi_table(folder: StoredPath) -> Any:
    builder = hudi.HudiTableBuilder.from_base_uri(readable(folder))
    return builder.with_storage_options(options_of_rust(folder)).build()


def hudi_rows(folder: StoredPath, version: str | None) -> pa.Table:
    """The rows of a Hudi table as hudi-rs reads them."""
    options = hudi.HudiReadOptions()
    if version is not None:
        options = options.with_as_of_timestamp(version)
    batches = [pa.table(batch) for batch in hudi_table(folder).read(options)]
    return pa.concat_tables(batches, promote_options="permissive") if batches else pa.table({})


READERS = {"delta": delta_rows, "hudi": hudi_rows, "paimon": paimon_rows}


def delta_versions(folder: StoredPath) -> list[str]:
    newest = delta_table(folder).version()
    return [str(version) for version in range(newest + 1)]


def hudi_versions(folder: StoredPath) -> list[str]:
    timeline = hudi_table(folder).get_timeline()
    completed = timeline.get_completed_commits(False) + timeline.get_completed_replacecommits(False)
    return sorted(instant.timestamp for instant in completed)


VERSIONS = {"delta": delta_versions, "hudi": hudi_versions, "paimon": paimon_snapshots}
"""All versions in the log, as the format's reader counts them."""
PUBLICATIONS: Mapping[str, Callable[..., PublicationSink]] = {
    "delta": DeltaPublication,
    "hudi": HudiPublication,
    "paimon": PaimonPublication,
}


def listed_versions(folder: StoredPath) -> dict[int, dict[TableName, str]]:
    """What a publication lists: by checkpoint the version of each table."""
    listed = [json.loads(path.read_text()) for path in sorted((folder / "checkpoints").iterdir())]
    return {
        entry["checkpoint"]: {TableName.parse(name): t["version"] for name, t in entry["tables"].items()}
        for entry in listed
    }


def vector(positions: frozenset[int]) -> DeletionVector:
    content = struct.pack("<I", 1681511377) + BitMap64(sorted(positions)).serialize()
    framed = struct.pack(">i", len(content)) + content + struct.pack(">I", zlib.crc32(content))
    return DeletionVector(len(positions), framed)


@dataclass
class ToyLake:
    """Two tables with the versions of each checkpoint, and the publication of them."""

    folder: Path
    format: str = "delta"
    by_id: bool = False
    links: bool = True
    has_feed: bool = False
    checkpoints: dict[int, dict[TableName, ToyVersion]] = field(default_factory=dict)
    fence: int = 0
    sequences: dict[Path, int] = field(default_factory=dict)
    """Of each file the checkpoint with which its rows came."""
    bucket: S3Path | None = None
    """On S3: the publication, and the lake's files if `files_in_bucket`."""
    files_in_bucket: bool = True

    @property
    def published_folder(self) -> StoredPath:
        return (self.folder if self.bucket is None else self.bucket) / "published"

    def table_folder(self, table: TableName) -> Any:
        return self.publication()._table_folder(table)

    def publish(self, **files: dict[Path, frozenset[int]]) -> int:
        """The next checkpoint: the files of each table, with their deleted positions."""
        number = len(self.checkpoints) + 1
        bucket = self.bucket / "data" if self.bucket is not None and self.files_in_bucket else None
        for path in {path for of_table in files.values() for path in of_table}:
            self.sequences.setdefault(path, number)
        self.checkpoints[number] = {
            table: ToyVersion(
                table,
                Version(f"{table.table}-{number}"),
                COLUMNS,
                dict(files[table.table]),
                bucket,
                self.sequences,
            )
            for table in (ORDERS, LINES)
        }
        if bucket is not None:
            for path in {path for of_table in files.values() for path in of_table}:
                (bucket / path.name).copy_from(path)
        return number

    def add(self) -> int:
        """A checkpoint with a new row in each table; a row of each third file goes."""
        last = self.checkpoints.get(len(self.checkpoints), {})
        files = {table.table: dict(last[table].deleted) if last else {} for table in (ORDERS, LINES)}
        number = len(self.checkpoints)
        for of_table in files.values():
            rows = [(number * 10 + i, f"{number} {i}") for i in range(4)]
            of_table[write_file(self.folder / "data", COLUMNS, *rows)] = frozenset()
            for path in list(of_table)[::3]:
                of_table[path] |= {min(set(range(4)) - of_table[path], default=0)}
        return self.publish(**files)

    def publication(self) -> PublicationSink:
        options = (
            {"by_id": self.by_id, "links": self.links, "has_feed": self.has_feed}
            if self.format == "delta"
            else {}
        )
        return PUBLICATIONS[self.format]("mirror", self.published_folder, **options)

    def open(self) -> PublicationSink:
        """As another process opens it that becomes the owner."""
        sink = self.publication()
        sink.claim("lake")
        self.fence = max(self.fence, sink.highest_fence()) + 1
        sink.fence(Fence(self.fence))
        return sink

    def intent(self, sink: PublicationSink, number: int, fence: int | None = None) -> Intent:
        shown = sink.published()
        return Intent(
            transaction=TransactionId(
                incarnation="store",
                sink="mirror",
                checkpoint=CheckpointNumber(number),
                fence=Fence(fence or self.fence),
            ),
            versions={table: version.version for table, version in self.checkpoints[number].items()},
            base=None if shown is None else shown.transaction,
        )

    def prepare(self, sink: PublicationSink, number: int, *, moves_rows: bool = True) -> Intent:
        intent = self.intent(sink, number)
        sink.begin(intent)
        chunks = [
            chunk
            for version in self.checkpoints[number].values()
            for chunk in sink.write_files(intent.transaction, version, moves_rows=moves_rows)
        ]
        sink.prepare(intent.transaction, chunks)
        return intent

    def deliver(self) -> None:
        """All checkpoints that the publication lacks, by a new owner."""
        sink = self.open()
        sink.recover([], Fence(self.fence))
        shown = sink.published()
        first = 1 if shown is None else shown.checkpoint + 1
        if shown is not None and sink.changed_tables(tuple(shown.versions), None):
            first = shown.checkpoint
        for number in range(first, len(self.checkpoints) + 1):
            intent = self.prepare(sink, number)
            sink.commit(intent.transaction, Fence(self.fence))
            sink.maintain(Fence(self.fence))

    def shown(self, table: TableName, version: str | None = None) -> list[dict[str, Any]]:
        """The rows as the reader of the format gives them."""
        rows = READERS[self.format](self.table_folder(table), version).to_pylist()
        return sorted(rows, key=repr)

    def rows(self, table: TableName, number: int) -> list[dict[str, Any]]:
        return sorted(self.checkpoints[number][table].rows(), key=repr)

    def check(self, *, last: int = 0) -> None:
        """Each table has one version for each checkpoint, or for the last ones, with its rows."""
        listed = listed_versions(self.published_folder)
        assert list(listed) == list(self.checkpoints)
        for table in (ORDERS, LINES):
            versions = [of_tables[table] for of_tables in listed.values()]
            assert versions == VERSIONS[self.format](self.table_folder(table))
            for number, of_tables in list(listed.items())[-last:]:
                assert self.shown(table, of_tables[table]) == self.rows(table, number), (table, number)
