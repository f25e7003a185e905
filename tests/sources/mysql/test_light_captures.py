"""Light captures of MariaDB and MySQL: at every checkpoint the tables are a state that the database had."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Strike

from tautochrone.model.effects import Step

from .captured_bank import MariaBank
from .conftest import Schema, on

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def bank(spark: SparkSession, tmp_path: Path, schema: Schema) -> Iterator[MariaBank]:
    # Crashes are meant: neither side shall write a stack for each.
    py4j = logging.getLogger("py4j.clientserver")
    spark.sparkContext.setLogLevel("OFF")
    py4j.disabled = True
    bank = MariaBank.create(spark, tmp_path / "bank", schema)
    definition = bank.folder / "transformations" / "bank.py"
    definition.write_text(definition.read_text().replace("tables=", 'mode="light", tables='))
    yield bank
    py4j.disabled = False
    spark.sparkContext.setLogLevel("ERROR")


@on("mysql")
def test_tables_are_states_of_the_database(bank: MariaBank, schema: Schema) -> None:
    with bank.load():
        bank.run(Strike(Step.META_OPEN, "before", "crash"))
        bank.run().require_completed()
    # Accounts may all be closed before they are copied.
    assert bank.operations()["copied file"]
    assert not bank.operations()["copy"]
    bank.work()
    attempt = bank.run()
    attempt.require_completed()
    assert bank.operations()["change file"]
    assert not attempt.named("changes_through_log")
    # The table is copied again beside the others, through the log.
    schema.run("ALTER TABLE savings MODIFY balance DECIMAL(12, 0) NOT NULL")
    bank.work()
    bank.run()
    bank.run().require_completed()
    bank.check()
