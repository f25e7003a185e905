"""Published tables read as foreign tables: one more program that writes Hudi and Paimon tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("hudi")

from tests.sinks.publications.toy_lake import ORDERS, READERS, ToyLake
from tests.support.foreign import hudi_table, paimon_table

from tautochrone.model.foreign import ForeignTable, ForeignVersion, ShownVersion


def rows_of(table: ForeignTable, version: ForeignVersion) -> list[str]:
    names = [field.name for field in version.fields]
    rows: list[dict[str, Any]] = []
    for location, file in version.files.items():
        deleted = {*table.deleted_positions(file)} if file.deletes else set()
        stored = pq.read_table(location.removeprefix("file:")).to_pylist()
        rows += [row for number, row in enumerate(stored) if number not in deleted]
    return sorted(repr({name: row.get(name) for name in names}) for row in rows)


@pytest.mark.parametrize(("name", "opened"), [("hudi", hudi_table), ("paimon", paimon_table)])
def test_rows_are_those_of_the_formats_reader(
    tmp_path: Path, name: str, opened: Callable[[Path], ForeignTable]
) -> None:
    lake = ToyLake(tmp_path, name)
    lake.add()
    lake.deliver()
    table = opened(lake.table_folder(ORDERS))
    for _ in range(4):
        older = table.newest()
        lake.add()
        lake.deliver()
        version = table.newest()
        expected = [repr(row) for row in READERS[name](lake.table_folder(ORDERS), None).to_pylist()]
        assert rows_of(table, version) == sorted(expected)
        steps = table.steps_since(ShownVersion.of(older), has_same_columns=True)
        files = dict(older.files)
        for step in steps or ():
            files = {} if step.is_complete else files
            files |= {location: file for location, file in step.files.items() if file is not None}
            files = {path: file for path, file in files.items() if step.files.get(path, file) is not None}
        assert files == version.files
