"""The timeline of a Hudi table as Hudi's own Java client writes it, compared with what hudi-rs reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from tests.support.foreign import hudi_table
from tests.support.hudi_writer import HudiJvm, HudiWriter

from tautochrone.errors import ForeignTableError
from tautochrone.model.foreign import (
    ForeignList,
    ForeignMap,
    ForeignSource,
    ForeignTable,
    ForeignType,
    ForeignVersion,
    ShownVersion,
)
from tautochrone.sources.hudi.schema import columns_of

hudi = pytest.importorskip("hudi")

SCHEMA = {
    "type": "record",
    "name": "orders",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": ["null", "string"], "default": None},
        {"name": "n", "type": "int"},
    ],
}


@pytest.fixture(scope="module")
def jvm() -> Iterator[HudiJvm]:
    with HudiJvm() as jvm:
        yield jvm


def rows(*ids: int, n: int = 0) -> list[dict[str, Any]]:
    return [{"id": i, "kind": {"string": f"k {i % 3}"}, "n": n} for i in ids]


def rows_of(folder: Path) -> list[tuple[Any, ...]]:
    """The rows as hudi-rs reads them."""
    batches = hudi.HudiTableBuilder.from_base_uri(str(folder)).build().read(hudi.HudiReadOptions())
    columns = ("id", "kind", "n", "_hoodie_commit_time")
    return sorted(tuple(row[name] for name in columns) for batch in batches for row in batch.to_pylist())


def shown(version: ForeignVersion) -> list[tuple[Any, ...]]:
    tables = [pq.read_table(path.removeprefix("file:")) for path in version.files]
    columns = ("id", "kind", "n", "_hoodie_commit_time")
    return sorted(tuple(row[name] for name in columns) for table in tables for row in table.to_pylist())


def moves_rows(before: ForeignVersion, table: ForeignTable) -> bool:
    steps = table.steps_since(ShownVersion.of(before), has_same_columns=True)
    assert steps is not None
    assert all(step.is_complete for step in steps)
    return any(step.moves_rows for step in steps)


CHANGES = ("insert", "insert", "upsert", "delete", "overwrite", "cluster", "take back", "fail", "clean")


def change(writer: HudiWriter, what: str, pick: random.Random, number: int) -> None:
    ids = range(number * 10, number * 10 + pick.randrange(1, 9))
    older = pick.sample(range(number * 10 + 1), min(number * 5 + 1, 6))
    if what == "insert":
        writer.insert(rows(*ids))
    elif what == "upsert":
        writer.upsert(rows(*older, n=number))
    elif what == "delete":
        writer.delete(rows(*older))
    elif what == "overwrite":
        writer.overwrite(rows(*ids))
    elif what == "fail":
        writer.fail(rows(*ids))
    elif what == "take back":
        with suppress(Py4JJavaError):
            # Not while something is under way.
            writer.take_back()
    else:
        {"cluster": writer.cluster, "clean": writer.clean}[what]()


@pytest.mark.parametrize(
    ("version", "partition"),
    [
        (6, None),
        (9, "kind"),
        *(
            pytest.param(version, partition, marks=pytest.mark.slow)
            for version, partition in ((6, "kind"), (8, None), (8, "kind"), (9, None))
        ),
    ],
)
def test_rows_are_those_that_hudi_rs_reads(
    tmp_path: Path, jvm: HudiJvm, version: int, partition: str | None
) -> None:
    folder, pick = tmp_path / "my orders", random.Random(version)
    options = {
        "hoodie.clean.commits.retained": "2",
        "hoodie.keep.min.commits": "4",
        "hoodie.keep.max.commits": "5",
        "hoodie.archive.automatic": "true",
    }
    writer = HudiWriter(jvm, folder, SCHEMA, version=version, partition=partition, options=options)
    writer.insert(rows(*range(10)))
    reader = hudi_table(folder)
    older, failed = reader.newest(), False
    for number in range(1, 10):
        before = rows_of(folder)
        what = pick.choice(CHANGES)
        change(writer, what, pick, number)
        # One that goes on, and one that reads the timeline for the first time.
        newest, anew = reader.newest(), hudi_table(folder).newest()
        assert newest == anew
        assert shown(newest) == rows_of(folder), what
        if not moves_rows(older, reader):
            assert shown(newest) == before
        else:
            # The next write takes one back that failed.
            assert failed or what not in ("cluster", "clean", "fail"), (number, what)
        failed = what == "fail"
        older = newest


def refused(folder: Path) -> str:
    with pytest.raises(ForeignTableError) as raised:
        hudi_table(folder).newest()
    return raised.value.error_class


@pytest.mark.parametrize("version", [6, 9])
def test_merge_on_read_is_followed_without_log_files(tmp_path: Path, jvm: HudiJvm, version: int) -> None:
    folder = tmp_path / "orders"
    options = {"hoodie.compact.inline": "false", "hoodie.compact.inline.max.delta.commits": "1"}
    writer = HudiWriter(jvm, folder, SCHEMA, version=version, kind="MERGE_ON_READ", options=options)
    writer.insert(rows(*range(5)))
    assert [row[0] for row in shown(hudi_table(folder).newest())] == list(range(5))
    writer.upsert(rows(3, n=9))
    assert refused(folder) == "HUDI_LOG_FILES_UNSUPPORTED"
    writer.compact()
    assert [row[2] for row in shown(hudi_table(folder).newest())] == [0, 0, 0, 9, 0]


def test_what_readers_would_have_to_know_is_refused(tmp_path: Path, jvm: HudiJvm) -> None:
    folder = tmp_path / "orders"
    assert refused(folder) == "HUDI_TABLE_MISSING"
    writer = HudiWriter(jvm, folder, SCHEMA, version=6)
    writer.insert(rows(1, 2))
    properties = folder / ".hoodie/hoodie.properties"
    text = properties.read_text()
    for line in (
        "hoodie.table.version=7",
        "hoodie.table.base.file.format=ORC",
        "hoodie.bootstrap.base.path=/elsewhere",
    ):
        properties.write_text(f"{text}{line}\n")
        assert refused(folder) == "HUDI_FEATURE_UNSUPPORTED", line
    # While the properties are written anew.
    properties.write_text(text)
    kept = properties.rename(properties.with_name("hoodie.properties.backup"))
    assert len(shown(hudi_table(folder).newest())) == 2
    kept.rename(properties)
    reader = hudi_table(folder)
    assert len(reader.newest().files) == 1
    properties.write_text(f"{text}hoodie.table.version=7\n")
    for _ in range(2):
        with pytest.raises(ForeignTableError, match="HUDI_FEATURE_UNSUPPORTED"):
            reader.newest()
    properties.write_text(text)
    assert len(shown(hudi_table(folder).newest())) == 2
    # A file that an instant names is gone, though no clean says so.
    (file,) = folder.glob("*.parquet")
    kept = file.rename(tmp_path / file.name)
    assert refused(folder) == "HUDI_TIMELINE_UNREADABLE"
    kept.rename(file)
    (commit,) = (folder / ".hoodie").glob("*.commit")
    commit.write_text("{")
    assert refused(folder) == "HUDI_TIMELINE_UNREADABLE"


def test_values_of_partitions_in_names_of_folders(tmp_path: Path, jvm: HudiJvm) -> None:
    """As Hudi's Spark writes them where files do not have the column."""
    folder = tmp_path / "orders"
    properties = {"hoodie.datasource.write.drop.partition.columns": "true"}
    writer = HudiWriter(jvm, folder, SCHEMA, version=6, partition="kind", properties=properties)
    writer.insert(rows(0, 1, 2, 3))
    version = hudi_table(folder).newest()
    assert version.partition_columns == ("kind",)
    assert sorted(file.partition["kind"] for file in version.files.values()) == ["k 0", "k 1", "k 2"]
    writer = HudiWriter(jvm, tmp_path / "numbers", SCHEMA, version=6, partition="n", properties=properties)
    writer.insert(rows(0, n=7))
    assert [dict(file.partition) for file in hudi_table(tmp_path / "numbers").newest().files.values()] == [
        {"n": 7}
    ]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ('["null", {"type": "long", "logicalType": "timestamp-micros"}]', "timestamptz"),
        ('["null", {"type": "long", "logicalType": "timestamp-millis"}]', None),
        ('{"type": "long", "logicalType": "local-timestamp-millis"}', None),
        ('{"type": "fixed", "name": "f", "size": 6, "logicalType": "decimal", "precision": 12, "scale": 2}',
         "decimal(12, 2)"),
        ('{"type": "array", "items": ["null", "string"]}', ForeignList("string")),
        ('{"type": "map", "values": "long"}', ForeignMap("string", "long")),
        ('["null", "int", "string"]', None),
        ('{"type": "int", "logicalType": "time-millis"}', None),
        ('{"type": "fixed", "name": "f", "size": 6}', None),
    ],
)  # fmt: skip
def test_types(kind: str, expected: ForeignType | None) -> None:
    schema = f'{{"type": "record", "name": "t", "fields": [{{"name": "a", "type": {kind}}}]}}'
    source = ForeignSource("hudi", "/t")
    if expected is not None:
        assert columns_of(source, schema, has_meta_columns=False)[0].type == expected
        return
    with pytest.raises(ForeignTableError, match="HUDI_TYPE_UNSUPPORTED"):
        columns_of(source, schema, has_meta_columns=False)
