"""A bank is mirrored in four systems: the sum of all balances is 0 in each of them, whatever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.sinks.kafka.benches import committed_messages, newest_values
from tests.support.crash import fault
from tests.support.harness import Pipeline
from tests.support.kafka import KafkaBroker
from tests.support.mariadb import SINK_PASSWORD, is_installed, open_connection, sink_url
from tests.support.postgresql import fresh_database

from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.effects import Step
from tautochrone.runtime.delivery.audit import verify_sink
from tautochrone.runtime.job.effects import FAULT_VARIABLE
from tautochrone.runtime.job.topology import declared_sinks
from tautochrone.sinks import open_sink

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.crash]

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def entries():
    return spark.readStream.schema("account INT, amount DECIMAL(12, 2)").json("@IN@")

@dp.materialized_view(table_properties={"tautochrone.sinks": "columns, feed, reports, shop"})
def accounts():
    return spark.sql("SELECT account, sum(amount) AS balance FROM entries GROUP BY account")

dp.create_sink("columns", "clickhouse", {"url": "clickhouse://embedded/@OUT@", "database": "bank"})
feed = {"kafka.bootstrap.servers": "@BROKER@", "key": "account", "topic": "@TOPIC@"}
dp.create_sink("feed", "kafka-transactional", {**feed, "control_topic": "@TOPIC@.control"})
dp.create_sink("reports", "postgresql", {"url": "@URL@", "schema": "bank", "key": "account"})
dp.create_sink("shop", "mariadb", {"url": "@MARIADB@", "password": "@PASSWORD@", "key": "account"})
"""


class Bank:
    """The project, its entries, and its four mirrors."""

    def __init__(self, folder: Path, spark: SparkSession, broker: KafkaBroker) -> None:
        self._folder = folder
        self._broker = broker
        self._url = fresh_database()
        # The module has one broker, and a topic belongs to one pipeline.
        self._topic = f"bank-{uuid.uuid4().hex[:8]}"
        self._files = 0
        (folder / "in").mkdir()
        self.pipeline = Pipeline(folder / "project", spark)
        text = DEFINITIONS.replace("@IN@", f"{folder}/in").replace("@OUT@", f"{folder}/clickhouse")
        text = text.replace("@BROKER@", broker.bootstrap).replace("@URL@", self._url)
        text = text.replace("@TOPIC@", self._topic)
        self._database = f"mirror_bank_{folder.name}"
        text = text.replace("@MARIADB@", sink_url(self._database)).replace("@PASSWORD@", SINK_PASSWORD)
        self.pipeline.write("definitions/bank.py", text)

    def transfer(self) -> None:
        """Some money goes from each of three accounts to another one, in one file."""
        self._files += 1
        lines = []
        for index in range(3):
            amount = f"{self._files}.{index}5"
            giver, taker = index, (index + self._files) % 7
            lines += [{"account": giver, "amount": f"-{amount}"}, {"account": taker, "amount": amount}]
        text = "\n".join(map(json.dumps, lines))
        (self._folder / f"in/{self._files}.json").write_text(text)

    def kill(self, step: Step, moment: str) -> None:
        killed = subprocess.run(
            [sys.executable, "-m", "tautochrone.cli.main", "run"],
            cwd=self.pipeline.folder,
            env={**os.environ, FAULT_VARIABLE: fault(step, moment, "kill")},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr

    def balances(self) -> dict[str, dict[int, Decimal]]:
        """By system the balance of each account, as a reader sees it now."""
        options = {"url": f"clickhouse://embedded/{self._folder}/clickhouse", "database": "bank"}
        with contextlib.closing(open_sink("columns", "clickhouse", options)) as opened:
            sink: Any = opened
            columns = sink._engine.rows("SELECT account, toString(balance) FROM bank.accounts")
        feed = newest_values(committed_messages(self._broker.bootstrap, self._topic))
        with psycopg.connect(self._url) as connection:
            reports = connection.execute("SELECT account, balance FROM bank.accounts").fetchall()
        with open_connection() as server, server.cursor() as cursor:
            cursor.execute(f"SELECT account, balance FROM `{self._database}`.accounts")
            shop = cursor.fetchall()
        return {
            "clickhouse": {int(account): Decimal(balance) for account, balance in columns},
            "kafka": {row["account"]: Decimal(row["balance"]) for row in feed.values()},
            "postgresql": dict(reports),
            "mariadb": dict(shop),
        }

    def check_sums(self) -> None:
        """What readers see is some checkpoint: the sum of each is 0."""
        for system, balances in self.balances().items():
            assert balances, system
            assert sum(balances.values()) == 0, system

    def check_same(self) -> None:
        """All systems show the lake."""
        lake = dict(self.pipeline.query("SELECT account, balance FROM accounts"))
        assert sum(lake.values()) == 0
        for system, balances in self.balances().items():
            assert balances == lake, system

    def check_verified(self) -> None:
        job = self.pipeline.job
        for declaration in declared_sinks(job.topology, job.settings.sinks):
            verdicts = list(verify_sink(job.base, job.store, job.lake, declaration, (), None))
            assert [verdict.equal for verdict in verdicts] == [True], declaration.name


@pytest.fixture
def bank(tmp_path: Path, spark: SparkSession, broker: KafkaBroker) -> Iterator[Bank]:
    bank = Bank(tmp_path, spark, broker)
    yield bank
    bank.pipeline.close()


@pytest.mark.skipif(not is_installed(), reason="MariaDB is not installed")
def test_the_sum_of_all_balances_is_zero_in_every_system(bank: Bank) -> None:
    bank.transfer()
    happened = bank.pipeline.run()
    assert happened.state == "COMPLETED", happened.of("sink_failed")
    bank.check_same()
    for step, moment in (
        (Step.SINK_WRITE, "after"),
        (Step.SINK_PREPARE, "after"),
        (Step.SINK_COMMIT, "before"),
        (Step.SINK_COMMIT, "after"),
    ):
        bank.transfer()
        bank.kill(step, moment)
        bank.check_sums()
        happened = bank.pipeline.run()
        assert happened.state == "COMPLETED", happened.of("sink_failed")
        bank.check_same()
    bank.check_verified()


@pytest.mark.skipif(not is_installed(), reason="MariaDB is not installed")
def test_every_checkpoint_is_compared_in_every_system(bank: Bank) -> None:
    for _ in range(3):
        bank.transfer()
        happened = bank.pipeline.run()
        assert happened.state == "COMPLETED", happened.of("sink_failed")
        bank.check_same()
        bank.check_verified()
    job = bank.pipeline.job
    published = [c.number for c in job.store.checkpoints.newest() if c.state is CheckpointState.PUBLISHED]
    for declaration in declared_sinks(job.topology, job.settings.sinks):
        has_history = declaration.name in ("columns", "feed")
        for number in published:
            (verdict,) = verify_sink(job.base, job.store, job.lake, declaration, (), number)
            assert verdict.equal, (declaration.name, number)
            assert verdict.checkpoint == (number if has_history else published[0])
            assert (verdict.reason is None) == (verdict.checkpoint == number)
