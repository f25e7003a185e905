"""Light captures: the first copy is written once, into the captured tables, which are the same as ever."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Strike, StrikingEffects
from tests.support.harness import Pipeline

from tautochrone.errors import DefinitionError
from tautochrone.model.effects import Step
from tautochrone.runtime.maintenance.maintain import Maintenance

from .captured_bank import CapturedBank
from .test_capture import crash_at_every_step

CAPTURE = """
from tautochrone.sources import postgresql

postgresql.capture("db", url="{url}", mode="light", invalid_values="null"{more})
"""
DDL = """
CREATE TABLE plain (id bigint PRIMARY KEY, price numeric(10, 2), at timestamptz, ok boolean, raw bytea);
INSERT INTO plain SELECT i, i / 8.0, now(), i % 3 = 0, decode(repeat('0f', i % 4), 'hex')
FROM generate_series(1, 500) i;
INSERT INTO plain (id) VALUES (0);
CREATE TABLE days (id int PRIMARY KEY, day date);
INSERT INTO days VALUES (1, '2026-01-01'), (2, 'infinity'), (3, '10000-01-01');
CREATE TABLE lists (id int PRIMARY KEY, tags text[]);
INSERT INTO lists VALUES (1, '{a,b}');
CREATE TABLE equal (x int);
ALTER TABLE equal REPLICA IDENTITY FULL;
INSERT INTO equal VALUES (1), (1), (2);
CREATE TABLE empty (id int PRIMARY KEY);
CREATE TABLE "odd [1].{x}*?\\y" (id int PRIMARY KEY);
INSERT INTO "odd [1].{x}*?\\y" VALUES (7);
"""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def bank(spark: SparkSession, tmp_path: Path, database: psycopg.Connection) -> Iterator[CapturedBank]:
    # Crashes are meant: neither side shall write a stack for each.
    py4j = logging.getLogger("py4j.clientserver")
    spark.sparkContext.setLogLevel("OFF")
    py4j.disabled = True
    bank = CapturedBank.of(spark, tmp_path / "bank", database)
    definition = bank.folder / "transformations" / "bank.py"
    definition.write_text(definition.read_text().replace("tables=", 'mode="light", tables='))
    yield bank
    py4j.disabled = False
    spark.sparkContext.setLogLevel("ERROR")


@pytest.mark.slow
def test_first_copy_is_written_into_the_tables(bank: CapturedBank) -> None:
    """Also where the run is killed behind it, maintenance looks for orphans then, and rows of it changed."""
    bank.run(Strike(Step.META_OPEN, "before", "crash"))
    assert bank.operations() == {"copied file": 2, "completed": 2}
    warehouse = bank.folder / "storage" / "warehouse"
    files = [*warehouse.glob("default/bank_accounts/data/*"), *warehouse.glob("default/bank_savings/data/*")]
    assert len(files) == 2
    long_ago = time.time() - 30 * 86_400
    for file in files:
        os.utime(file, (long_ago, long_ago))
    with bank.open(StrikingEffects(None), lambda _event: None) as project:
        Maintenance(project.job()).run()
    bank.work(10)
    attempt = bank.run()
    attempt.require_completed()
    assert all(file.exists() for file in files)
    modes = {event["dataset"]: event["mode"] for event in attempt.named("refresh")}
    assert modes["lake.default.bank_accounts"] == "full"
    # Changes of built tables are in files too, beside those that leave a long note as it is.
    bank.work(30)
    attempt = bank.run()
    attempt.require_completed()
    bank.check()
    through_log = attempt.named("changes_through_log")
    assert bank.operations()["change file"]
    assert {event["relation"] for event in through_log} == {"public.accounts"}
    assert {event["reason_code"] for event in through_log} == {"VALUES_LEFT_UNCHANGED"}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashes(bank: CapturedBank, when: str) -> None:
    crash_at_every_step(bank, when)


def test_rows_that_files_cannot_take_go_through_the_log(
    database: psycopg.Connection, tmp_path: Path, spark: SparkSession
) -> None:
    database.execute(DDL)
    info = database.info
    url = f"host={info.host} dbname={info.dbname} user=postgres"
    pipeline = Pipeline(tmp_path, spark)
    pipeline.write("definitions/db.py", CAPTURE.format(url=url, more=""))

    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]
    plain = database.execute("SELECT id, price, extract(epoch FROM at)::float8, ok, raw FROM plain")
    shown = pipeline.query("SELECT id, price, CAST(at AS DOUBLE), ok, raw FROM db_plain")
    assert sorted(shown) == sorted(plain.fetchall())
    assert sorted(pipeline.query("SELECT id, CAST(day AS STRING) FROM db_days")) == [
        (1, "2026-01-01"),
        (2, None),
        (3, "+10000-01-01"),
    ]
    assert pipeline.query("SELECT id, tags FROM db_lists") == [(1, ["a", "b"])]
    assert sorted(pipeline.query("SELECT x FROM db_equal")) == [(1,), (1,), (2,)]
    assert pipeline.query("SELECT * FROM db_empty") == []
    assert pipeline.query("SELECT * FROM `db_odd [1]_{x}*?\\y`") == [(7,)]
    kinds = "SELECT relation, operation, count(*) FROM db_log GROUP BY ALL ORDER BY ALL"
    assert [row for row in pipeline.query(kinds) if row[1] != "completed"] == [
        ("public.days", "copy", 3),
        ("public.equal", "copied", 1),
        ("public.equal", "copy", 3),
        ("public.lists", "copy", 1),
        ("public.odd [1].{x}*?\\y", "copied file", 1),
        ("public.plain", "copied file", 1),
    ]
    pipeline.write("definitions/changes.sql", "CREATE MATERIALIZED VIEW changes AS SELECT point FROM db_log")
    with pytest.raises(DefinitionError) as raised, pipeline.opened():
        pass
    assert raised.value.error_class == "LIGHT_CAPTURE_LOG_READ"
    pipeline.write("definitions/db.py", CAPTURE.format(url=url, more=', log_retention="1d"'))
    with pytest.raises(DefinitionError) as raised, pipeline.opened():
        pass
    assert raised.value.error_class == "INVALID_LOG_RETENTION"
    pipeline.close()
