"""Definitions that ask for other table formats than the lake's."""

from __future__ import annotations

import pytest

from tautochrone.errors import DefinitionError

from .conftest import Survey

pytestmark = pytest.mark.spark

BRONZE = """
from pyspark import pipelines as dp

dp.create_streaming_table("raw", format="delta", partition_cols=["kind"])


@dp.append_flow(target="raw")
def read_files():
    return spark.readStream.schema("id BIGINT, kind STRING").json("@IN@/raw")


@dp.materialized_view(format="Parquet", table_properties={"delta.enableChangeDataFeed": "true"})
def clean():
    return spark.read.table("raw").where("id > 1")
"""
GOLD = """
CREATE MATERIALIZED VIEW totals USING DELTA PARTITIONED BY (kind) TBLPROPERTIES ('k' = 'v')
AS SELECT kind, count(*) AS n FROM clean GROUP BY kind;
CREATE MATERIALIZED VIEW plain USING iceberg AS SELECT kind FROM totals;
"""


def test_other_formats_become_lake_tables(survey: Survey) -> None:
    survey.define("bronze.py", BRONZE)
    survey.define("gold.sql", GOLD)
    survey.json("raw/1.json", {"id": 1, "kind": "a"}, {"id": 2, "kind": "b"}, {"id": 3, "kind": "b"})
    happened = survey.build()
    assert survey.rows("SELECT * FROM totals") == [("b", 2)]
    mapped = {event["dataset"]: event for event in happened.of("table_format_mapped")}
    assert {name: event["format"] for name, event in mapped.items()} == {
        "lake.default.raw": "delta", "lake.default.clean": "parquet", "lake.default.totals": "delta",
    }  # fmt: skip
    assert {event["reason_code"] for event in mapped.values()} == {"TABLE_FORMAT_MAPPED"}
    assert mapped["lake.default.totals"]["location"] == "definitions/gold.sql:2"
    survey.json("raw/2.json", {"id": 4, "kind": "a"})
    assert len(survey.build().of("table_format_mapped")) == 3
    assert survey.rows("SELECT * FROM totals") == [("a", 1), ("b", 2)]


def test_setting_forbids_other_formats(survey: Survey) -> None:
    survey.define("gold.sql", "\nCREATE MATERIALIZED VIEW m USING orc AS SELECT 1 AS a")
    survey.pipeline.write("tautochrone.toml", '[lake]\nother_formats = "fail"\n')
    with pytest.raises(DefinitionError) as caught:
        survey.pipeline.run()
    assert caught.value.error_class == "TABLE_FORMAT_NOT_WRITTEN"
    assert caught.value.location == "definitions/gold.sql:2"
