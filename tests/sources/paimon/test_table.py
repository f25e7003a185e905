"""The snapshots of a Paimon table as PyPaimon writes them, compared with what it reads."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support.foreign import paimon_table
from tests.support.paimon import (
    alter_table,
    append_rows,
    create_table,
    paimon_rows,
    roll_back,
)

from tautochrone.errors import ForeignTableError
from tautochrone.model.foreign import ForeignFile, ForeignSource, ForeignTable, ForeignVersion, ShownVersion
from tautochrone.sources.paimon.schema import columns_of
from tautochrone.sources.paimon.snapshots import Schema

TYPES = {"id": "int64", "kind": "string"}


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "kind": f"k {i % 3}/ü"} for i in ids]


def ids_in(table: ForeignTable, files: Mapping[str, ForeignFile]) -> list[int]:
    ids = []
    for path, file in files.items():
        deleted = {*table.deleted_positions(file)} if file.deletes else set()
        column = pq.read_table(path.removeprefix("file:"))["id"].to_pylist()
        ids += [value for number, value in enumerate(column) if number not in deleted]
    return sorted(ids)


def replayed(before: ForeignVersion, table: ForeignTable) -> dict[str, ForeignFile]:
    """The files of the newest version by the steps since an older one."""
    steps = table.steps_since(ShownVersion.of(before), has_same_columns=True)
    assert steps is not None
    files = dict(before.files)
    for step in steps:
        if step.is_complete:
            files.clear()
        for location, file in step.files.items():
            files.pop(location, None)
            if file is not None:
                files[location] = file
    return files


@pytest.mark.parametrize("partition_keys", [(), ("kind",)])
def test_rows_are_those_that_pypaimon_reads(tmp_path: Path, partition_keys: tuple[str, ...]) -> None:
    folder, pick = tmp_path / "shop.db/my orders", random.Random(len(partition_keys))
    create_table(folder, TYPES, partition_keys=partition_keys)
    reader = paimon_table(folder)
    older = reader.newest()
    assert (older.number, older.files) == (0, {})
    snapshots = 0
    for number in range(9):
        what = pick.choice(["append", "append", "append", "overwrite", "roll back"])
        if what == "roll back" and snapshots > 2:
            snapshots -= pick.randrange(1, 3)
            roll_back(folder, snapshots)
        else:
            added = rows(*range(number * 10, number * 10 + pick.randrange(1, 9)))
            append_rows(folder, TYPES, *added, overwrites=what == "overwrite")
            snapshots = max(int(p.name[9:]) for p in (folder / "snapshot").glob("snapshot-*"))
        # One that goes on, and one that reads the table for the first time.
        newest, anew = reader.newest(), paimon_table(folder).newest()
        assert newest == anew
        assert ids_in(reader, newest.files) == sorted(paimon_rows(folder)["id"].to_pylist()), what
        assert replayed(older, reader) == newest.files
        older = newest if pick.random() < 0.5 else older


def refused(folder: Path) -> str:
    with pytest.raises(ForeignTableError) as raised:
        paimon_table(folder).newest()
    return raised.value.error_class


def test_what_readers_would_have_to_know_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shop.db/orders"
    assert refused(folder) == "PAIMON_TABLE_MISSING"
    create_table(folder, TYPES, primary_keys=["id"], options={"bucket": "1"})
    append_rows(folder, TYPES, *rows(1, 2))
    assert refused(folder) == "PAIMON_MERGE_UNSUPPORTED"
    for number, options in enumerate(
        ({"file.format": "orc"}, {"data-evolution.enabled": "true", "row-tracking.enabled": "true"})
    ):
        folder = tmp_path / f"shop.db/t{number}"
        create_table(folder, TYPES, options=options)
        append_rows(folder, TYPES, *rows(1))
        assert refused(folder) == "PAIMON_FEATURE_UNSUPPORTED"
    folder = tmp_path / "shop.db/damaged"
    create_table(folder, TYPES)
    append_rows(folder, TYPES, *rows(1))
    next(iter((folder / "manifest").glob("manifest-list-*"))).write_bytes(b"x")
    assert refused(folder) == "PAIMON_SNAPSHOT_UNREADABLE"


def test_tables_with_keys_are_read_by_level(tmp_path: Path) -> None:
    """Levels as a compaction leaves them, which PyPaimon does not do: the manifest says them."""
    folder = tmp_path / "shop.db/orders"
    create_table(
        folder, TYPES, primary_keys=["id"], options={"bucket": "1", "deletion-vectors.enabled": "true"}
    )
    append_rows(folder, TYPES, *rows(1, 2))
    # As in Paimon, rows that no compaction has seen are not read.
    assert paimon_table(folder).newest().files == {}


def test_renamed_columns_have_all_names_and_the_newest_schema_counts(tmp_path: Path) -> None:
    folder = tmp_path / "shop.db/orders"
    create_table(folder, TYPES)
    append_rows(folder, TYPES, *rows(1))
    reader = paimon_table(folder)
    before = reader.newest()
    alter_table(folder, ("rename", "kind", "sort"), ("add", "note", "STRING"))
    newest = reader.newest()
    assert newest.number == before.number
    assert newest.stamp != before.stamp
    named = [(each.name, each.stored_name, each.other_names) for each in newest.fields]
    assert named == [("id", "id", ()), ("sort", "kind", ("sort",)), ("note", "note", ())]
    # The name comes again and means another column, while a file has the former one.
    alter_table(folder, ("add", "kind", "STRING"))
    assert refused(folder) == "PAIMON_COLUMN_AMBIGUOUS"
    row = {"id": 1, "sort": "s", "note": "n", "kind": "k"}
    types = {"id": "int64", "sort": "string", "note": "string", "kind": "string"}
    append_rows(folder, types, row, overwrites=True)
    assert [each.stored_name for each in reader.newest().fields] == ["id", "sort", "note", "kind"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("TIMESTAMP(6) WITH LOCAL TIME ZONE", "timestamptz"),
        ("TIMESTAMP(4) NOT NULL", "timestamp"),
        ("TIMESTAMP", "timestamp"),
        ("TIMESTAMP(3) NOT NULL", None),
        ("TIMESTAMP(0) WITH LOCAL TIME ZONE", None),
        ("DECIMAL(12, 2)", "decimal(12, 2)"),
        ("VARCHAR(9) NOT NULL", "string"),
        ("TIMESTAMP(9)", None),
        ("TIME(0)", None),
        ("VARIANT", None),
    ],
)
def test_types(kind: str, expected: str | None) -> None:
    schema = Schema(0, tuple(json.loads(f'[{{"id": 0, "name": "a", "type": "{kind}"}}]')), (), (), {})
    source = ForeignSource("paimon", "/t")
    if expected is not None:
        assert columns_of(source, [schema], frozenset())[0].type == expected
        return
    with pytest.raises(ForeignTableError, match="PAIMON_TYPE_UNSUPPORTED"):
        columns_of(source, [schema], frozenset())
