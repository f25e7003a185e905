"""The first copy by Spark's tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import IngestError
from tautochrone.sources.postgresql import bulk
from tautochrone.sources.postgresql.change_log import Capture, PostgreSQLChangeLog
from tautochrone.sources.postgresql.tables import captured_tables, read_tables

PASSWORD = "correct-horse"
_DDL = """
CREATE TABLE accounts (id int PRIMARY KEY, balance numeric(12, 2), note text);
INSERT INTO accounts SELECT i, NULLIF(i % 7, 0), NULLIF(repeat('n', i % 5), 'nn')
FROM generate_series(1, 900) i;
CREATE TABLE "Odd ""Name" (a text, b int, v text, PRIMARY KEY (a, b));
INSERT INTO "Odd ""Name" SELECT E'é,"\\n\\r\\n' || i, i % 7, E'\\\\.' FROM generate_series(1, 300) i;
CREATE TABLE one (id text PRIMARY KEY);
INSERT INTO one VALUES (''), ('\\N'), ('\\.'), (' '), ('NULL'), ('"'), (','), (E'\\n');
CREATE TABLE empty (id int PRIMARY KEY);
"""


@pytest.fixture
def capture(database: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> Capture:
    monkeypatch.setattr(bulk, "CHUNK_BYTES", 8_000)
    monkeypatch.setattr(bulk, "_BATCH_BYTES", 500)
    for statement in _DDL.split(";\n"):
        if statement.strip():
            database.execute(statement.encode())
    info = database.info
    tables = captured_tables(read_tables(database, "shop"), ["public.*"], (), "shop")
    url = f"host={info.host} dbname={info.dbname} user=postgres password={PASSWORD}"
    return Capture("shop", url, tables, f"c_{info.dbname[-8:]}", "shop", copy_tasks=3)


def _rows_of(frame: DataFrame) -> list[Mapping[str, Any]]:
    return [row.asDict() for row in frame.collect()]


@pytest.mark.spark
def test_tasks_copy_every_row_once(
    spark: SparkSession, database: psycopg.Connection, capture: Capture
) -> None:
    log = PostgreSQLChangeLog(capture)
    position = log.begin("reader")
    assert sum(map(len, position.bulk.pending.values())) > 6
    copied: dict[str, list[dict[str, str | None]]] = {table.name: [] for table in capture.tables}
    while chunks := log.next_chunks(position.bulk):
        rows, pass_at = log.copy_chunks(spark, chunks, _rows_of)
        bulk_left = position.bulk
        for relation, chunk in chunks:
            bulk_left = bulk_left.copied(relation, chunk, pass_at)
        position = replace(position, bulk=bulk_left)
        for row in rows:
            assert row["operation"] == "copy"
            assert row["snapshot"].count(":") == 2
            assert position.point <= row["point"] <= pass_at
            copied[row["relation"]].append(row["columns"])
    for table in capture.tables:
        columns = sql.SQL(", ").join(
            sql.SQL("{}::text").format(sql.Identifier(c.name)) for c in table.columns
        )
        query = sql.SQL("SELECT {} FROM {}").format(columns, table.identifier)
        expected = Counter(database.execute(query).fetchall())
        rows_of_table = (tuple(row[c.name] for c in table.columns) for row in copied[table.name])
        assert Counter(rows_of_table) == expected, table.name
    plans = _plans(spark)
    assert "_ChunkReader" in plans
    assert PASSWORD not in plans
    _failures_say_what_the_driver_sees(spark, database, capture)
    log.close()


def _plans(spark: SparkSession) -> str:
    """What Spark's page and its event log have of all queries."""
    executions: Any = spark._jsparkSession.sharedState().statusStore().executionsList()  # type: ignore[attr-defined]
    return "\n".join(
        f"{execution.description()}\n{execution.details()}\n{execution.physicalPlanDescription()}"
        for execution in (executions.apply(number) for number in range(executions.size()))
    )


def _failures_say_what_the_driver_sees(
    spark: SparkSession, database: psycopg.Connection, capture: Capture
) -> None:
    spark.sparkContext.setLogLevel("OFF")
    wrong = replace(capture, tables=tuple(replace(t, type_names=("no_type",) * 3) for t in capture.tables))
    chunk = [("public.accounts", '{"from": ["1"]}')]
    try:
        with pytest.raises(IngestError) as raised:
            PostgreSQLChangeLog(wrong).copy_chunks(spark, chunk, _rows_of)
        assert raised.value.error_class == "CAPTURE_COPY_FAILED"
        assert raised.value.retryable
        assert "no_type" in raised.value.message
        assert PASSWORD not in str(raised.value)
        database.execute("DROP TABLE accounts")
        with pytest.raises(IngestError) as raised:
            PostgreSQLChangeLog(capture).copy_chunks(spark, chunk, _rows_of)
        assert raised.value.error_class == "CAPTURED_TABLE_CHANGED"
    finally:
        spark.sparkContext.setLogLevel("ERROR")
