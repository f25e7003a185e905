"""A PostgreSQL database is captured: at every checkpoint the tables are a state that it had."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Strike

from tautochrone.model.effects import Step

from .captured_bank import CapturedBank

IN_THE_BULK = (
    Step.SOURCE_BEGIN,
    Step.LAKE_STAGE,
    Step.LAKE_PREPARE,
    Step.LAKE_COMMIT,
    Step.META_REPORT,
    Step.SOURCE_ACKNOWLEDGE,
)
IN_THE_TAIL = (
    *IN_THE_BULK[1:],
    Step.META_OPEN,
    Step.LAKE_COMMIT_STAGED,
    Step.META_VERSION,
    Step.META_PUBLISH,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def bank(spark: SparkSession, tmp_path: Path, database: psycopg.Connection) -> Iterator[CapturedBank]:
    # Crashes are meant: neither side shall write a stack for each.
    py4j = logging.getLogger("py4j.clientserver")
    spark.sparkContext.setLogLevel("OFF")
    py4j.disabled = True
    yield CapturedBank.of(spark, tmp_path / "bank", database)
    py4j.disabled = False
    spark.sparkContext.setLogLevel("ERROR")


def test_tables_are_states_of_the_database(bank: CapturedBank, database: psycopg.Connection) -> None:
    with bank.load():
        bank.run(Strike(Step.SOURCE_ACKNOWLEDGE, "before", "crash"))
        bank.run().require_completed()
    bank.work()
    bank.run().require_completed()
    bank.check()
    # Large values that an update leaves unchanged are not in the log.
    database.execute("INSERT INTO accounts VALUES (500, 0, repeat('y', 4000))")
    bank.run().require_completed()
    database.execute("UPDATE accounts SET id = 500, note = note WHERE id = 500")
    database.execute("TRUNCATE accounts, savings")
    database.execute("INSERT INTO accounts VALUES (1, 2000, repeat('z', 4000))")
    database.execute("UPDATE accounts SET balance = 1999 WHERE id = 1")
    database.execute("UPDATE accounts SET balance = 2000 WHERE id = 1")
    bank.run().require_completed()
    bank.check()
    attempt = bank.run()
    attempt.require_completed()
    assert not attempt.named("checkpoint"), "there was no news"


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashes(bank: CapturedBank, when: str) -> None:
    """At every durable step, while the database is written to."""
    with bank.load():
        for step in IN_THE_BULK:
            bank.run(Strike(step, when, "crash"))
    bank.run().require_completed()
    with bank.load():
        for step in IN_THE_TAIL:
            bank.run(Strike(step, when, "crash"))
    bank.work()
    bank.run().require_completed()
    bank.check()
