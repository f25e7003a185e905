"""Streams over Hudi and Paimon tables: they take the rows that are added."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.harness import Pipeline

pytest.importorskip("deltalake")
pytest.importorskip("hudi")

from tests.sinks.publications.toy_lake import COLUMNS, ORDERS, ToyLake, write_file

pytestmark = pytest.mark.spark


def test_a_stream_takes_the_rows_that_are_added(pipeline: Pipeline) -> None:
    lakes = {name: ToyLake(pipeline.folder / name, name) for name in ("hudi", "paimon")}
    for name, lake in lakes.items():
        path = lake.table_folder(ORDERS)
        pipeline.write(
            f"definitions/{name}.py",
            f"""
            from pyspark import pipelines as dp
            from pyspark.sql import SparkSession

            @dp.table
            def {name}_taken():
                return SparkSession.active().readStream.format("{name}").load("{path}").select("id")
            """,
        )
        pipeline.write(
            f"definitions/{name}.sql",
            f"CREATE STREAMING TABLE {name}_also AS SELECT id FROM STREAM {name}.`{path}` WHERE id > 1;",
        )
    files = dict[Path, frozenset[int]]()
    for number in range(1, 4):
        files[write_file(pipeline.folder / "data", COLUMNS, (number, "new"))] = frozenset()
        for lake in lakes.values():
            lake.publish(orders=files, lines={})
            lake.deliver()
        happened = pipeline.run()
        assert happened.state == "COMPLETED", list(happened)
        for name in lakes:
            assert pipeline.query(f"SELECT id FROM {name}_taken") == [(n,) for n in range(1, number + 1)]
            assert pipeline.query(f"SELECT id FROM {name}_also") == [(n,) for n in range(2, number + 1)]
