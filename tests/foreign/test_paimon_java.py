"""Views over tables that Paimon's own Java code writes: vectors, keys, compactions, lists and maps."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("hudi")

from tests.sinks.publications import test_paimon_java
from tests.support.harness import Pipeline

jvm = test_paimon_java.jvm
pytestmark = [pytest.mark.slow, pytest.mark.spark]

KEYED = {"bucket": "1", "num-sorted-run.compaction-trigger": "100"}
TABLES: dict[str, tuple[list[str], dict[str, str]]] = {
    "plain": ([], {"bucket": "-1"}),
    "vectors": (["id"], {**KEYED, "deletion-vectors.enabled": "true"}),
    "compacted": (["id"], KEYED),
}


class JavaTable:
    """A table of an INT, a text, a list and a map."""

    def __init__(self, jvm: Any, warehouse: Path, name: str) -> None:
        self._jvm, self._paimon = jvm, jvm.org.apache.paimon
        keys, options = TABLES[name]
        context = self._paimon.catalog.CatalogContext.create(self._paimon.fs.Path(str(warehouse)))
        catalog = self._paimon.catalog.CatalogFactory.createCatalog(context)
        catalog.createDatabase("shop", True)
        types, builder = self._paimon.types.DataTypes, self._paimon.schema.Schema.newBuilder()
        builder.column("id", types.INT()).column("kind", types.STRING())
        builder.column("tags", types.ARRAY(types.INT()))
        builder.column("counts", types.MAP(types.STRING(), types.INT()))
        if keys:
            builder.primaryKey(keys)
        for key, value in options.items():
            builder.option(key, value)
        identifier = self._paimon.catalog.Identifier.create("shop", name)
        catalog.createTable(identifier, builder.build(), True)
        self.table, self._folder = catalog.getTable(identifier), warehouse

    def write(self, ids: list[int], kind: str, *, compacts: bool = False) -> None:
        builder = self._paimon.table.sink.BatchWriteBuilderImpl(self.table)
        write, commit = builder.newWrite(), builder.newCommit()
        write.withIOManager(self._paimon.disk.IOManager.create(str(self._folder / "io")))
        text = self._paimon.data.BinaryString.fromString
        for number in ids:
            row = self._paimon.data.GenericRow(4)
            row.setField(0, number)
            row.setField(1, text(kind))
            row.setField(
                2, self._paimon.data.GenericArray(self._jvm.java.util.ArrayList([number, 7]).toArray())
            )
            row.setField(3, self._paimon.data.GenericMap(self._jvm.java.util.HashMap({text("k"): number})))
            write.write(row)
        if compacts:
            write.compact(self._paimon.data.BinaryRow.EMPTY_ROW, 0, True)
        commit.commit(write.prepareCommit())
        write.close()
        commit.close()

    def rows(self) -> list[tuple[int, str]]:
        return sorted((row["id"], row["kind"]) for row in test_paimon_java.rows_of(self._jvm, self.table))


@pytest.mark.parametrize("name", TABLES)
def test_views_equal_what_paimon_reads(pipeline: Pipeline, jvm: Any, name: str) -> None:
    table, pick = JavaTable(jvm, pipeline.folder / "ext", name), random.Random(name)
    source = f"paimon.`{pipeline.folder}/ext/shop.db/{name}`"
    pipeline.write(
        "definitions/v.sql",
        f"CREATE MATERIALIZED VIEW v AS SELECT id, kind, tags[0] AS tag, counts['k'] AS n FROM {source};",
    )
    for number in range(6):
        if name == "plain":
            table.write([number * 10 + i for i in range(3)], f"k{number}")
        else:
            # Several levels, and rows that no compaction has seen.
            table.write(
                pick.sample(range(8), 4), f"k{number}", compacts=name == "compacted" or number % 2 == 0
            )
        happened = pipeline.run()
        assert happened.state == "COMPLETED", list(happened)
        shown = sorted(tuple(row) for row in pipeline.reader.sql("SELECT id, kind, tag, n FROM v").collect())
        assert [row[:2] for row in shown] == table.rows()
        assert all(tag == n == key for key, _, tag, n in shown)
