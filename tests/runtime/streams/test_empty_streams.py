"""A stream over a table to which no row has come yet waits for the first one, and then takes all."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

DEFINITIONS = """
    from pyspark import pipelines as dp
    from pyspark.sql import SparkSession

    def files(folder):
        spark = SparkSession.active()
        return spark.readStream.schema("word STRING, val BIGINT").json("{source}/" + folder)

    @dp.table
    def early():
        return files("early")

    @dp.table
    def late():
        return files("late")

    @dp.table
    def clean():
        return SparkSession.active().readStream.table("late").where("val > 0")

    @dp.table
    def both():
        spark = SparkSession.active()
        return spark.readStream.table("early").union(spark.readStream.table("late"))
"""


def test_streams_over_tables_without_rows(tmp_path: Path, spark: SparkSession) -> None:
    for folder in ("early", "late"):
        (tmp_path / folder).mkdir()
    pipeline = Pipeline(tmp_path / "p", spark)
    pipeline.write("definitions/streams.py", DEFINITIONS.format(source=tmp_path))
    happened = pipeline.run()
    assert happened.state == "COMPLETED", happened.of("refresh_failed") + happened.of("flow_failed")
    assert pipeline.query("SELECT * FROM both") == []

    (tmp_path / "early/1.json").write_text('{"word": "a", "val": 1}\n')
    happened = pipeline.run()
    assert happened.state == "COMPLETED", happened.of("refresh_failed") + happened.of("flow_failed")
    assert pipeline.query("SELECT * FROM both") == [("a", 1)]

    (tmp_path / "late/1.json").write_text('{"word": "b", "val": 2}\n')
    happened = pipeline.run()
    assert happened.state == "COMPLETED", happened.of("refresh_failed") + happened.of("flow_failed")
    assert pipeline.query("SELECT * FROM both") == [("a", 1), ("b", 2)]
    assert pipeline.query("SELECT * FROM clean") == [("b", 2)]

    (tmp_path / "late/2.json").write_text('{"word": "c", "val": 3}\n')
    happened = pipeline.run()
    assert happened.state == "COMPLETED", happened.of("refresh_failed") + happened.of("flow_failed")
    assert pipeline.query("SELECT * FROM both") == [("a", 1), ("b", 2), ("c", 3)]
    assert pipeline.query("SELECT * FROM clean") == [("b", 2), ("c", 3)]
    pipeline.close()
