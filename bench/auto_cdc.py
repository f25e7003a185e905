"""What AUTO CDC keeps of each key: events of many keys are merged, then deletions of a tenth of them, then
late events of these."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

__all__ = ["measure"]

_DEFINITIONS = """
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

INPUT = Path(__file__).resolve().parents[1] / "input"
SCHEMA = "id BIGINT, name STRING, at TIMESTAMP, operation STRING"


@dp.table
def events():
    return SparkSession.active().readStream.schema(SCHEMA).parquet(str(INPUT))


for scd_type in (1, 2):
    dp.create_streaming_table(f"type_{scd_type}")
    dp.create_auto_cdc_flow(
        target=f"type_{scd_type}",
        source="events",
        keys=["id"],
        sequence_by="at",
        apply_as_deletes=expr("operation = 'delete'"),
        except_column_list=["at", "operation"],
        stored_as_scd_type=scd_type,
    )
"""


def measure(spark: SparkSession, folder: Path, keys: int = 1_000_000) -> dict[str, Any]:
    """Bytes and rows of the states and tables, of both types of history.

    Args:
        spark: a warm session.
        folder: of the pipeline.
        keys: one event each; a tenth of them is deleted then.
    """
    folder = folder / "auto_cdc"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pipeline = Pipeline(folder, spark)
    pipeline.write("definitions/events.py", _DEFINITIONS)
    deleted = f"FROM range({keys}) WHERE id % 10 = 3"
    batches = {
        "events of all keys": f"SELECT id, 'name ' || id, {_at('2026-01-01')}, 'update' FROM range({keys})",
        "deletions": f"SELECT id, CAST(NULL AS STRING), {_at('2026-02-01')}, 'delete' {deleted}",
        "late events of the deleted keys": f"SELECT id, 'late', {_at('2026-01-15')}, 'update' {deleted}",
    }
    measured = {}
    try:
        for name, query in batches.items():
            spark.sql(query).toDF("id", "name", "at", "operation").coalesce(1).write.mode("append").parquet(
                str(folder / "input")
            )
            happened = pipeline.run()
            _require_completed(happened)
            measured[name] = {f"type_{number}": _sizes(pipeline, happened, number) for number in (1, 2)}
        alive = keys - keys // 10
        for number, condition in ((1, "true"), (2, "__END_AT IS NULL")):
            stored = pipeline.query(
                f"SELECT count(*), count_if(name = 'late') FROM type_{number} WHERE {condition}"
            )
            if stored != [(alive, 0)]:
                raise RuntimeError(f"type {number} holds {stored} instead of {alive} rows")
    finally:
        pipeline.close()
    return {"keys": keys, "deleted": keys // 10, "after": measured}


def _at(day: str) -> str:
    return f"TIMESTAMP '{day} 00:00:00' + make_dt_interval(0, 0, 0, id / 1000)"


def _sizes(pipeline: Pipeline, happened: Happened, scd_type: int) -> dict[str, Any]:
    """Of the newest versions."""
    name = f"type_{scd_type}"
    tables = {"table": f"default.{name}", "state": f"_tautochrone.default__{name}__0"}
    sizes: dict[str, Any] = {"merge_s": happened.refresh(name)["duration_ms"] / 1000}
    for role, table in tables.items():
        (row,) = pipeline.session.sql(
            "SELECT sum(file_size_in_bytes) AS bytes, "
            f"sum(IF(content = 0, record_count, -record_count)) AS rows FROM lake.{table}.files"
        ).collect()
        sizes[role] = row.asDict()
    return sizes


def _require_completed(happened: Happened) -> None:
    if happened.state != "COMPLETED":
        raise RuntimeError("; ".join(str(event["error"]) for event in happened if "error" in event))
