"""A MariaDB or MySQL database is captured: at every checkpoint the tables are a state that it had."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Strike
from tests.sources.postgresql.test_capture import IN_THE_BULK, IN_THE_TAIL

from tautochrone.model.effects import Step
from tautochrone.model.reason import ReasonCode

from .captured_bank import MariaBank
from .conftest import Schema, on

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def bank(spark: SparkSession, tmp_path: Path, schema: Schema) -> Iterator[MariaBank]:
    # Crashes are meant: neither side shall write a stack for each.
    py4j = logging.getLogger("py4j.clientserver")
    spark.sparkContext.setLogLevel("OFF")
    py4j.disabled = True
    yield MariaBank.create(spark, tmp_path / "bank", schema)
    py4j.disabled = False
    spark.sparkContext.setLogLevel("ERROR")


@on("mariadb")
def test_tables_are_states_of_the_database(bank: MariaBank, schema: Schema) -> None:
    with bank.load():
        bank.run(Strike(Step.SOURCE_ACKNOWLEDGE, "before", "crash"))
        bank.run().require_completed()
    bank.work()
    bank.run().require_completed()
    schema.run(
        "TRUNCATE TABLE accounts",
        "TRUNCATE savings",
        "INSERT INTO accounts VALUES (1, 2000, REPEAT('z', 4000))",
        "UPDATE accounts SET balance = 1999",
        "UPDATE accounts SET balance = 2000",
    )
    bank.run().require_completed()
    bank.check()
    attempt = bank.run(remembers=True)
    attempt.require_completed()
    assert not attempt.named("checkpoint"), "there was no news"
    assert bank.news().code is ReasonCode.NOTHING_SINCE_LAST_RUN
    schema.run("UPDATE accounts SET balance = 1999")
    assert bank.news().code is ReasonCode.LOG_SINCE_LAST_RUN


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashes(bank: MariaBank, schema: Schema, when: str) -> None:
    """At every durable step, while the database is written to; the server is restarted in the middle."""
    with bank.load():
        for step in IN_THE_BULK:
            bank.run(Strike(step, when, "crash"))
    bank.run().require_completed()
    schema.server.restart_server()
    with bank.load():
        for step in IN_THE_TAIL:
            bank.run(Strike(step, when, "crash"))
    bank.work()
    bank.run().require_completed()
    bank.check()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashes_while_tables_are_copied_again(bank: MariaBank, schema: Schema, when: str) -> None:
    """A statement rewrites a table in the middle of the log, again and again: columns stay as they are."""
    with bank.load():
        bank.run()
        for number, step in enumerate((*IN_THE_BULK, *IN_THE_TAIL)):
            table = "accounts" if number % 2 else "savings"
            schema.run(f"ALTER TABLE {table} ORDER BY id")
            bank.run(Strike(step, when, "crash"))
    bank.work()
    bank.run().require_completed()
    bank.check()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashes_while_columns_are_ignored(bank: MariaBank, schema: Schema, when: str) -> None:
    """Columns come and go behind those that the lake has; at times a table is copied again meanwhile."""
    definition = bank.folder / "transformations" / "bank.py"
    definition.write_text(definition.read_text().replace("tables=", 'schema_changes="ignore", tables='))
    with bank.load():
        bank.run()
        for number, step in enumerate((*IN_THE_BULK, *IN_THE_TAIL)):
            table = "accounts" if number % 2 else "savings"
            schema.run(f"ALTER TABLE {table} ADD COLUMN c{number} INT NOT NULL DEFAULT {number}")
            if number % 3 == 0:
                schema.run(f"ALTER TABLE {table} ORDER BY id")
            attempt = bank.run(Strike(step, when, "crash"))
            assert not attempt.named("columns_added")
            schema.run(f"ALTER TABLE {table} DROP COLUMN c{number}, COMMENT '{number}'")
    bank.work()
    bank.run().require_completed()
    bank.check()
