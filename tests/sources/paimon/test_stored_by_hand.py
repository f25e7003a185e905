"""Tables of Paimon whose files a test writes itself: with a primary key and deletion vectors, as compactions
leave them, which PyPaimon does not do; and damaged ones."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap
from tests.support.foreign import LocalStorage, paimon_table

from tautochrone.errors import ForeignTableError
from tautochrone.model.foreign import ForeignFile, ForeignSource, ForeignStep, ShownVersion
from tautochrone.sources.paimon import PaimonTable

MAGIC = 1581511376
FILE = {"_FILE_NAME": "string", "_LEVEL": "int", "_FILE_SIZE": "long", "_SCHEMA_ID": "long"}
RANGE = {"f0": "string", "f1": "int"}


def record(name: str, types: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in types.items()]}


ENTRY = record("e", {"_KIND": "int", "_PARTITION": "bytes", "_BUCKET": "int", "_FILE": record("f", FILE)})
INDEX = record(
    "i",
    {
        "_KIND": "int",
        "_INDEX_TYPE": "string",
        "_FILE_NAME": "string",
        "_DELETIONS_VECTORS_RANGES": {"type": "array", "items": record("r", RANGE)},
    },
)
LIST = record("l", {"_FILE_NAME": "string"})


class Orders:
    """A table with a primary key and deletion vectors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("schema", "snapshot", "manifest", "index"):
            (folder / name).mkdir(parents=True)
        self.schema({"deletion-vectors.enabled": "true"})
        self.files: list[str] = []

    def schema(self, options: Mapping[str, str]) -> None:
        number = len(list((self.folder / "schema").iterdir()))
        columns = [{"id": 0, "name": "id", "type": "INT NOT NULL"}]
        text = json.dumps({"fields": columns, "primaryKeys": ["id"], "options": options})
        (self.folder / f"schema/schema-{number}").write_text(text)

    def avro(self, name: str, schema: Mapping[str, Any], *records: Mapping[str, Any], **how: Any) -> None:
        file = io.BytesIO()
        fastavro.writer(file, schema, records, **how)
        (self.folder / "manifest" / name).write_bytes(file.getvalue())

    def snapshot(self, *names: str, deleted: Mapping[str, int] | None = None) -> int:
        """The next one, which compacted the files of the former one to these; all have one bucket and level.

        Args:
            deleted: by name of a file the position of a row.
        """
        number = len(list((self.folder / "snapshot").iterdir())) + 1
        files = [(1, name) for name in self.files] + [(0, name) for name in names]
        entries = [
            {
                "_KIND": kind,
                "_PARTITION": b"",
                "_BUCKET": 0,
                "_FILE": {"_FILE_NAME": f"{name}.parquet", "_LEVEL": 5, "_FILE_SIZE": 9, "_SCHEMA_ID": 0},
            }
            for kind, name in files
            if name not in {*self.files} & {*names}
        ]
        self.files = list(names)
        kept = [{"_FILE_NAME": f"manifest-{each}"} for each in range(1, number)]
        self.avro(f"manifest-{number}", ENTRY, *entries)
        self.avro(f"base-{number}", LIST, *kept)
        self.avro(f"delta-{number}", LIST, {"_FILE_NAME": f"manifest-{number}"})
        snapshot = {"baseManifestList": f"base-{number}", "deltaManifestList": f"delta-{number}"}
        if deleted:
            self.vectors(f"index-{number}", deleted)
            snapshot["indexManifest"] = f"vectors-{number}"
        text = json.dumps({**snapshot, "commitKind": "COMPACT"})
        (self.folder / f"snapshot/snapshot-{number}").write_text(text)
        return number

    def vectors(self, name: str, deleted: Mapping[str, int]) -> None:
        content, ranges = b"", []
        for file, position in deleted.items():
            data = struct.pack(">I", MAGIC) + BitMap([position]).serialize()
            ranges.append({"f0": f"{file}.parquet", "f1": len(content)})
            content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        (self.folder / "index" / name).write_bytes(content)
        index = {"_KIND": 0, "_INDEX_TYPE": "DELETION_VECTORS", "_FILE_NAME": name}
        self.avro(name.replace("index", "vectors"), INDEX, {**index, "_DELETIONS_VECTORS_RANGES": ranges})


class Counting(LocalStorage):
    """Counts how often index files are read."""

    reads = 0

    def read(self, location: str) -> bytes:
        self.reads += "/index/" in location
        return super().read(location)


def changed(table: PaimonTable, shown: ShownVersion) -> dict[str, ForeignFile | None] | str:
    """By name the files of the only step; or that it names all files."""
    steps = table.steps_since(shown, has_same_columns=True)
    assert steps is not None
    if not steps:
        return {}
    (step,) = steps
    assert isinstance(step, ForeignStep)
    return "all" if step.is_complete else {Path(path).stem: file for path, file in step.files.items()}


def test_a_step_names_the_files_that_differ(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.snapshot("a", "b", "c", deleted={"a": 1, "b": 2})
    storage = Counting()
    table = PaimonTable(ForeignSource("paimon", str(tmp_path)), storage)
    first = table.newest()
    assert [table.deleted_positions(file) for file in first.files.values() if file.deletes] == [[1], [2]]
    # One index file has both.
    assert storage.reads == 1
    shown = ShownVersion.of(first)
    orders.snapshot("a", "b", "d", deleted={"a": 1, "b": 3})
    newest = table.newest()
    differing = changed(table, shown)
    assert isinstance(differing, dict)
    assert differing.keys() == {"a", "b", "c", "d"}
    assert (differing["c"], len(newest.files)) == (None, 3)
    shown = ShownVersion.of(newest)
    orders.snapshot("a", "b", "e")
    table.newest()
    # Nothing that was known is needed.
    again = paimon_table(tmp_path)
    again.newest()
    assert changed(again, shown) == changed(table, shown)
    shown = ShownVersion.of(table.newest())
    assert changed(table, shown) == {}
    # With other options, readers may have seen other files.
    orders.schema({"deletion-vectors.enabled": "true", "x": "y"})
    table.newest()
    assert changed(table, shown) == "all"


@pytest.mark.parametrize("write", [po.write_table, pq.write_table])
def test_manifests_in_orc_and_parquet(tmp_path: Path, write: Any) -> None:
    orders = Orders(tmp_path)
    orders.snapshot("a", "b", "c", deleted={"a": 1, "b": 2})
    orders.snapshot("a", "d", deleted={"d": 3})
    expected = paimon_table(tmp_path).newest()
    for path in (tmp_path / "manifest").iterdir():
        records = list(fastavro.reader(io.BytesIO(path.read_bytes())))
        if records:
            write(pa.Table.from_pylist(records), path)
    table = paimon_table(tmp_path)
    assert table.newest() == expected
    assert [table.deleted_positions(file) for file in expected.files.values() if file.deletes] == [[3]]
    manifest = tmp_path / "manifest/manifest-2"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    with pytest.raises(ForeignTableError, match=r"PAIMON_SNAPSHOT_UNREADABLE.*manifest-2 is damaged"):
        paimon_table(tmp_path).newest()


def test_files_that_stay_are_not_named(tmp_path: Path) -> None:
    orders, table = Orders(tmp_path), paimon_table(tmp_path)
    orders.snapshot("a", "b")
    shown = ShownVersion.of(table.newest())
    orders.snapshot("a", "c")
    table.newest()
    differing = changed(table, shown)
    assert isinstance(differing, dict)
    assert (differing.keys(), differing["b"]) == ({"b", "c"}, None)
    # The snapshot expires: its manifests go first.
    (tmp_path / "manifest/base-1").unlink()
    assert changed(table, shown) == "all"
    (tmp_path / "snapshot/snapshot-1").unlink()
    assert changed(table, shown) == "all"


def broken(orders: Orders, what: str) -> None:
    manifest = orders.folder / "manifest/manifest-1"
    if what == "compression":
        entry = {"_KIND": 0, "_PARTITION": b"", "_BUCKET": 0}
        file = {"_FILE_NAME": "a" * 99, "_LEVEL": 5, "_FILE_SIZE": 9, "_SCHEMA_ID": 0}
        orders.avro(manifest.name, ENTRY, {**entry, "_FILE": file}, codec="zstandard")
        content = manifest.read_bytes()
        manifest.write_bytes(content[:-40] + bytes(24) + content[-16:])
    elif what == "codec":
        manifest.write_bytes(manifest.read_bytes().replace(b"null", b"lzma"))
    elif what == "field":
        orders.avro(manifest.name, LIST, {"_FILE_NAME": "x"})
    elif what == "schema":
        (orders.folder / "schema/schema-0").write_text("{}")
    else:
        (orders.folder / "snapshot/snapshot-1").write_text("[]")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("compression", "PAIMON_SNAPSHOT_UNREADABLE.*is damaged"),
        ("codec", "PAIMON_FEATURE_UNSUPPORTED.*manifests compressed by lzma"),
        ("field", "PAIMON_SNAPSHOT_UNREADABLE.*KeyError: '_FILE'"),
        ("schema", "PAIMON_SNAPSHOT_UNREADABLE.*KeyError: 'fields'"),
        ("snapshot", "PAIMON_SNAPSHOT_UNREADABLE.*TypeError"),
    ],
)
def test_whatever_is_wrong_is_an_error_of_a_class(tmp_path: Path, what: str, said: str) -> None:
    orders = Orders(tmp_path)
    orders.snapshot("a", deleted={"a": 1})
    broken(orders, what)
    with pytest.raises(ForeignTableError, match=said):
        paimon_table(tmp_path).newest()


def test_a_vector_that_is_cut_off_is_an_error_of_a_class(tmp_path: Path) -> None:
    orders, table = Orders(tmp_path), paimon_table(tmp_path)
    orders.snapshot("a", deleted={"a": 1})
    (file,) = table.newest().files.values()
    (tmp_path / "index/index-1").write_bytes(b"x")
    with pytest.raises(ForeignTableError, match="PAIMON_VECTOR_UNREADABLE"):
        table.deleted_positions(file)
