"""The log of a Delta table as delta-rs writes it, and the parts of the protocol that it does not write."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import struct
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64
from tests.support.foreign import delta_table

from tautochrone.errors import ForeignTableError
from tautochrone.model.foreign import ForeignSource, ForeignTable, ForeignVersion, ShownVersion
from tautochrone.sources.delta.schema import columns_of, partition_value

deltalake = pytest.importorskip("deltalake")

SOURCE = ForeignSource("delta", "/data/orders")


def rows(*ids: int) -> pa.Table:
    kinds = pa.array([None if i % 5 == 0 else f"k {i % 3}/ü" for i in ids], pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "kind": kinds})


def locations(folder: Path) -> dict[str, dict[str, Any]]:
    """The files of the newest version and their partitions, as delta-rs sees them."""
    adds = pa.table(deltalake.DeltaTable(folder).get_add_actions(flatten=True)).to_pylist()
    return {
        str(folder / unquote(add["path"])): {
            name.removeprefix("partition."): value
            for name, value in add.items()
            if name.startswith("partition.")
        }
        for add in adds
    }


def shown(version: ForeignVersion) -> dict[str, dict[str, Any]]:
    return {file.location.removeprefix("file:"): dict(file.partition) for file in version.files.values()}


def replayed(before: ForeignVersion, table: ForeignTable, newest: ForeignVersion) -> set[str] | None:
    """The files of the newest version by the steps since an older one."""
    steps = table.steps_since(ShownVersion.of(before), has_same_columns=True)
    if steps is None:
        return None
    files = {*before.files}
    for step in steps:
        for location, file in step.files.items():
            files.add(location) if file is not None else files.discard(location)
    assert all(
        step.moves_rows or {*step.files} <= {*before.files, *newest.files, *step.files} for step in steps
    )
    return files


@pytest.mark.parametrize("partitions", [None, ["kind"]])
@pytest.mark.parametrize("seed", range(3))
def test_files_are_those_that_delta_rs_sees(tmp_path: Path, partitions: list[str] | None, seed: int) -> None:
    folder, pick = tmp_path / "my orders", random.Random(seed)
    deltalake.write_deltalake(folder, rows(*range(20)), partition_by=partitions)
    reader = delta_table(folder)
    older = reader.newest()
    for number in range(25):
        table = deltalake.DeltaTable(folder)
        what = pick.choice(["append", "append", "delete", "overwrite", "compact", "restore", "checkpoint"])
        if what == "append":
            deltalake.write_deltalake(folder, rows(*range(number * 10, number * 10 + 7)), mode="append")
        elif what == "delete":
            table.delete(f"id % 4 = {pick.randrange(4)}")
        elif what == "overwrite":
            deltalake.write_deltalake(folder, rows(*range(pick.randrange(1, 9))), mode="overwrite")
        elif what == "compact":
            table.optimize.compact()
        elif what == "restore":
            table.restore(pick.randrange(table.version() + 1))
        else:
            table.create_checkpoint()
        # One that goes on, and one that reads the log for the first time.
        newest, anew = reader.newest(), delta_table(folder).newest()
        assert newest.number == anew.number == deltalake.DeltaTable(folder).version()
        assert dict(newest.files) == dict(anew.files)
        assert shown(newest) == locations(folder), what
        assert all(Path(path).is_file() for path in shown(newest))
        assert replayed(older, reader, newest) == {*newest.files}
        older = newest if pick.random() < 0.5 else older


def test_texts_with_separators_of_lines(tmp_path: Path) -> None:
    """JSON has them as they are, apart from those below a space."""
    separators = ["\n", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
    kinds = [f"a{separator}b" for separator in separators]
    data = pa.table({"id": pa.array(range(len(kinds)), pa.int64()), "kind": kinds})
    deltalake.write_deltalake(tmp_path, data, partition_by=["kind"])
    newest = delta_table(tmp_path).newest()
    assert shown(newest) == locations(tmp_path)
    assert {file.partition["kind"] for file in newest.files.values()} == {*kinds}


def test_a_version_that_only_rearranges_moves_no_rows(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, rows(1))
    deltalake.write_deltalake(tmp_path, rows(2), mode="append")
    deltalake.DeltaTable(tmp_path).optimize.compact()
    deltalake.write_deltalake(tmp_path, rows(3), mode="append")
    table = delta_table(tmp_path)
    identity = table.newest().identity
    steps = table.steps_since(ShownVersion(identity, 0), has_same_columns=True)
    assert steps is not None
    assert [(step.moves_rows, len(step.files)) for step in steps] == [(True, 1), (False, 3), (True, 1)]
    assert table.steps_since(ShownVersion(identity, 4), has_same_columns=True) is None
    assert table.steps_since(ShownVersion("another", 0), has_same_columns=True) is None
    assert table.steps_since(ShownVersion(identity, 3), has_same_columns=True) == []


def test_a_log_begins_at_its_checkpoint(tmp_path: Path) -> None:
    for number in range(4):
        deltalake.write_deltalake(tmp_path, rows(number), mode="append")
    deltalake.DeltaTable(tmp_path).create_checkpoint()
    deltalake.write_deltalake(tmp_path, rows(4), mode="append")
    for number in range(4):
        (tmp_path / f"_delta_log/{number:020d}.json").unlink()
    table = delta_table(tmp_path)
    newest = table.newest()
    assert (newest.number, shown(newest)) == (4, locations(tmp_path))
    assert table.steps_since(ShownVersion(newest.identity, 3), has_same_columns=True) is not None
    assert table.steps_since(ShownVersion(newest.identity, 1), has_same_columns=True) is None
    (tmp_path / "_delta_log/00000000000000000003.checkpoint.parquet").unlink()
    with pytest.raises(ForeignTableError, match=r"DELTA_LOG_UNREADABLE.*version 4 and not version 0"):
        delta_table(tmp_path).newest()


def test_checkpoints_in_parts_and_with_sidecars(tmp_path: Path) -> None:
    for number in range(4):
        deltalake.write_deltalake(tmp_path, rows(number), mode="append")
    deltalake.DeltaTable(tmp_path).create_checkpoint()
    log, stem = tmp_path / "_delta_log", f"{3:020d}.checkpoint"
    whole = pq.read_table(log / f"{stem}.parquet")
    expected = locations(tmp_path)
    (log / f"{stem}.parquet").unlink()
    for number in range(4):
        (log / f"{number:020d}.json").rename(log / f"{number:020d}.kept")
    first, second = log / f"{stem}.{1:010d}.{2:010d}.parquet", log / f"{stem}.{2:010d}.{2:010d}.parquet"
    pq.write_table(whole.slice(0, 3), first)
    with pytest.raises(ForeignTableError, match="DELTA_TABLE_MISSING"):
        delta_table(tmp_path).newest()
    pq.write_table(whole.slice(3), second)
    assert shown(delta_table(tmp_path).newest()) == expected
    first.unlink()
    second.unlink()
    adds = whole.filter(whole["add"].is_valid())
    others = whole.filter(whole["add"].is_null()).to_pylist(maps_as_pydicts="strict")
    (log / "_sidecars").mkdir()
    pq.write_table(adds.select(["add"]), log / "_sidecars/one.parquet")
    lines = [{key: value for key, value in row.items() if value is not None} for row in others]
    lines += [{"checkpointMetadata": {"version": 3}}, {"sidecar": {"path": "one.parquet", "sizeInBytes": 1}}]
    text = "\n".join(json.dumps(line, default=str) for line in lines)
    (log / f"{stem}.{uuid.uuid4()}.json").write_text(text)
    assert shown(delta_table(tmp_path).newest()) == expected


def test_a_table_in_the_place_of_another_one_is_another(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for number in range(3):
        deltalake.write_deltalake(folder, rows(number), mode="append")
    table = delta_table(folder)
    before = table.newest()
    folder.rename(tmp_path / "former")
    with pytest.raises(ForeignTableError, match="DELTA_TABLE_MISSING"):
        table.newest()
    deltalake.write_deltalake(folder, rows(7))
    newest = table.newest()
    assert (newest.number, shown(newest)) == (0, locations(folder))
    assert newest.identity != before.identity
    assert table.steps_since(ShownVersion(before.identity, before.number), has_same_columns=True) is None


def rewritten(folder: Path, edit: Callable[[dict[str, Any]], object]) -> ForeignTable:
    """The table, with its first version edited."""
    path = folder / "_delta_log/00000000000000000000.json"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        edit(line)
    path.write_text("\n".join(map(json.dumps, lines)))
    return delta_table(folder)


@pytest.mark.parametrize("is_same_process", [False, True])
@pytest.mark.parametrize("later", [0, 1, 2, 3])
def test_a_backup_that_is_put_back_is_followed_as_a_whole(
    tmp_path: Path, later: int, is_same_process: bool
) -> None:
    folder, backup = tmp_path / "t", tmp_path / "backup"
    for number in range(4):
        deltalake.write_deltalake(folder, rows(number), mode="append")
        if number == 1:
            shutil.copytree(folder, backup)
    table = delta_table(folder)
    before = table.newest()
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)
    for number in range(later):
        deltalake.write_deltalake(folder, rows(20 + number), mode="append")
    table = table if is_same_process else delta_table(folder)
    newest = table.newest()
    assert ShownVersion.of(newest) != ShownVersion.of(before)
    assert shown(newest).keys() == locations(folder).keys()
    assert table.steps_since(ShownVersion.of(before), has_same_columns=True) is None


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ({"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["variantType", "deletionVectors"],
          "writerFeatures": []}, "must know variantType, and"),
        ({"minReaderVersion": 4, "minWriterVersion": 7}, "must know reader version 4, and"),
    ],
)  # fmt: skip
def test_features_that_are_not_known_are_refused(tmp_path: Path, protocol: Any, message: str) -> None:
    deltalake.write_deltalake(tmp_path, rows(1))
    table = rewritten(tmp_path, lambda line: line.update(protocol=protocol) if "protocol" in line else None)
    with pytest.raises(ForeignTableError, match=f"DELTA_FEATURE_UNSUPPORTED.*{message}"):
        table.newest()


@pytest.mark.parametrize("path", ["file:///else where/a%2520b.parquet", "/else%20where/a%2520b.parquet"])
def test_absolute_paths_of_clones(tmp_path: Path, path: str) -> None:
    deltalake.write_deltalake(tmp_path, rows(1))
    table = rewritten(tmp_path, lambda line: line["add"].update(path=path) if "add" in line else None)
    (location,) = table.newest().files
    assert location.removeprefix("file:").replace("//", "") == "/else where/a%20b.parquet"


def vector_bytes(positions: list[int]) -> bytes:
    return struct.pack("<I", 1681511377) + BitMap64(positions).serialize()


@pytest.mark.parametrize(
    ("spelling", "other"),
    list(itertools.permutations(["{path}", "file:{path}", "file://{path}", "a%20b.parquet"], 2)),
)
def test_a_file_goes_under_another_spelling(tmp_path: Path, spelling: str, other: str) -> None:
    deltalake.write_deltalake(tmp_path, rows(1))
    table = delta_table(tmp_path)
    before = table.newest()
    path = f"{tmp_path}/a%20b.parquet"
    add = {"partitionValues": {}, "size": 9, "dataChange": True}
    for number, line in enumerate(
        (
            {"add": {"path": spelling.format(path=path), **add}},
            {"remove": {"path": other.format(path=path), "dataChange": True}},
        ),
        1,
    ):
        (tmp_path / f"_delta_log/{number:020d}.json").write_text(json.dumps(line))
        assert len(table.newest().files) == 3 - number
    assert replayed(before, table, table.newest()) == {*before.files}
    assert {*delta_table(tmp_path).newest().files} == {*before.files}


def test_deletion_vectors_in_files_and_in_the_log(tmp_path: Path) -> None:
    positions = [3, 5, 2**33 + 1]
    data = vector_bytes(positions)
    name = uuid.UUID(int=7)
    block = b"\x01" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (tmp_path / f"deletion_vector_{name}.bin").write_bytes(block)
    stored = {"storageType": "u", "pathOrInlineDv": "0" * 19 + "7", "offset": 1,
              "sizeInBytes": len(data), "cardinality": 3}  # fmt: skip
    deltalake.write_deltalake(tmp_path, rows(*range(9)))
    table = rewritten(
        tmp_path, lambda line: line["add"].update(deletionVector=stored) if "add" in line else None
    )
    (file,) = table.newest().files.values()
    assert table.deleted_positions(file) == positions
    (tmp_path / f"deletion_vector_{name}.bin").write_bytes(block[:-1] + b"?")
    with pytest.raises(ForeignTableError, match=r"DELTA_VECTOR_UNREADABLE.*check sum"):
        table.deleted_positions(file)
    (tmp_path / f"deletion_vector_{name}.bin").unlink()
    with pytest.raises(ForeignTableError, match="DELTA_VECTOR_UNREADABLE"):
        table.deleted_positions(file)


def test_values_of_partitions() -> None:
    values = {
        ("int", "-7"): -7, ("string", "a b"): "a b", ("boolean", "true"): True,
        ("date", "2024-02-29"): "2024-02-29",
        ("timestamptz", "2024-01-01T10:00:00.5Z"): "2024-01-01T10:00:00.5+00:00",
        ("timestamp", "2024-01-01 10:00:00"): "2024-01-01T10:00:00", ("decimal(5, 2)", "1.5"): "1.50",
        ("string", ""): None, ("string", None): None, ("double", "1.5"): 1.5,
    }  # fmt: skip
    for (kind, text), expected in values.items():
        assert partition_value(SOURCE, "p", kind, text) == expected
    for kind, text in [
        ("timestamptz", "2024-01-01 10:00:00"),
        ("double", "NaN"),
        ("binary", "a"),
        ("int", "x"),
    ]:
        with pytest.raises(ForeignTableError, match="DELTA_PARTITION_UNREADABLE"):
            partition_value(SOURCE, "p", kind, text)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"type": "variant"}, "the type variant"),
        ({"type": "string", "metadata": {"__COLLATIONS": {"c": "UNICODE_CI"}}}, "a collation"),
        ({"type": "timestamp_ntz", "metadata": {"delta.typeChanges": [
            {"fromType": "date", "toType": "timestamp_ntz"}]}}, "former type date"),
        ({"type": {"type": "array", "elementType": "void", "containsNull": True}}, "the type void"),
    ],
)  # fmt: skip
def test_columns_that_iceberg_cannot_read_are_refused(column: dict[str, Any], message: str) -> None:
    schema = {"type": "struct", "fields": [{"name": "c", "nullable": True, "metadata": {}, **column}]}
    with pytest.raises(ForeignTableError, match=f"DELTA_TYPE_UNSUPPORTED.*{message}"):
        columns_of(SOURCE, json.dumps(schema), is_mapped=False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "AttributeError"),
        ('{"remove": {"x": 1}}', "KeyError: 'path'"),
        ('{"metaData": {"id": "1", "schemaString": null}}', "the table has no columns"),
        ('{"metaData": {"id": "1", "schemaString": "{"}}', ""),
    ],
)
def test_whatever_is_wrong_is_an_error_of_a_class(tmp_path: Path, line: str, said: str) -> None:
    deltalake.write_deltalake(tmp_path, rows(1))
    (tmp_path / "_delta_log/00000000000000000001.json").write_text(line)
    with pytest.raises(ForeignTableError, match=f"DELTA_LOG_UNREADABLE.*{said}"):
        delta_table(tmp_path).newest()
