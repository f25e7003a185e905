"""Which queries over files are followed file by file."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.file_relations import FileReads, obstacle_to_following

pytestmark = pytest.mark.spark

_SETTING = "spark.sql.columnNameOfCorruptRecord"


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_a_corrupt_column_that_a_setting_names_is_left_to_the_query(
    spark: SparkSession, tmp_path: Path, file_format: str
) -> None:
    (tmp_path / "a").write_text("")
    rows = spark.read.schema("id INT, broken STRING").format(file_format).load(str(tmp_path))

    def obstacle(**conf: str) -> str | None:
        reads = FileReads(catalog="lake", pipeline="shop", flow="orders", conf=conf)
        return obstacle_to_following(analyzed_plan(rows), reads)

    assert obstacle() is None
    assert "malformed" in (obstacle(**{_SETTING: "Broken"}) or "")
    before = spark.conf.get(_SETTING)
    spark.conf.set(_SETTING, "broken")
    try:
        assert "malformed" in (obstacle() or "")
    finally:
        spark.conf.set(_SETTING, before)
