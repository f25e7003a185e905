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

from tautochrone.model.foreign import ForeignTable, ForeignVersion, ShownVersion

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


@pytest.mark.parametrize("partition", [None, "kind"])
@pytest.mark.parametrize("version", [6, 8, 9])
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
    older = reader.newest()
    for number in range(1, 16):
        before = rows_of(folder)
        what = pick.choice(CHANGES)
        change(writer, what, pick, number)
        # One that goes on, and one that reads the timeline for the first time.
        newest, anew = reader.newest(), hudi_table(folder).newest()
        assert newest == anew
        assert shown(newest) == rows_of(folder), what
        if not moves_rows(older, reader):
            assert shown(newest) == before
        elif what in ("cluster", "clean", "fail"):
            raise AssertionError(what)
        older = newest
