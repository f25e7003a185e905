"""A dashboard over two mirrored tables: whatever is delivered meanwhile, it sees whole checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.runtime.delivery.test_delivery import LINES, ORDERS, World, bag, net
from tests.sinks.clickhouse.dashboards import Dashboard
from tests.sinks.clickhouse.test_server import Server
from tests.support.harness import Pipeline

from tautochrone.meta import MetaStore
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.delivery import deltas
from tautochrone.runtime.delivery.delivery import Delivery
from tautochrone.runtime.revision.plan import RevisionRequest
from tautochrone.runtime.revision.revise import revise, survey

SCHEMA = StructType([StructField("id", LongType()), StructField("word", StringType())])
ROWS = 24
TOTAL = sum(range(ROWS))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("dashboard") / "engine")
    yield server
    server.stop()


# -- a lake of lists: rows move between two tables, and their sum over both stays ------------------


@dataclass
class Mirrored:
    """A lake of lists that is delivered to the server, by a thread of its own."""

    world: World
    server: Server
    delivery: Delivery
    dashboard: Dashboard
    sums: dict[int, tuple[str, str]] = field(default_factory=dict)

    def publish(self, first: int, parents: list[Version | None] | None = None) -> None:
        """Rows up to a number are in one table, the others in the other."""
        number = self.world.publish([bag(*range(first)), bag(*range(first, ROWS))], parents)
        self.sums[number] = str(sum(range(first))), str(sum(range(first, ROWS)))

    def versions(self) -> list[Version | None]:
        return [self.world.tables[name].main for name in (ORDERS, LINES)]

    def deliver_while_paused(self, statement: str, check: Callable[[], None]) -> None:
        """Deliver, and check something while a statement of the delivery waits in the server."""
        late = self.server.folder.with_suffix(".late")
        late.touch()
        self.server.plan("late", statement)
        with ThreadPoolExecutor(1) as pool:
            delivered = pool.submit(self.delivery.deliver)
            try:
                self.dashboard.wait_for(lambda: not self.server.is_planned())
                check()
            finally:
                late.unlink()
            assert delivered.result()


@pytest.fixture
def mirrored(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirrored]:
    monkeypatch.setattr(deltas, "consolidated", net)
    monkeypatch.setattr(deltas, "net_rows", lambda *_: Reason.of(ReasonCode.ROWS_CARRIED_OVER))
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as store:
        world = World(tmp_path, store)
        world.take_over()
        delivery = world.delivery()
        url = f"clickhouse://127.0.0.1:{server.port}/shop"
        delivery.declaration = replace(delivery.declaration, format="clickhouse", options={"url": url})
        for table in world.tables.values():
            table.schema = SCHEMA
        dashboard = Dashboard(server.port, "shop", {"orders": "id", "lines": "id"})
        yield Mirrored(world, server, delivery, dashboard)
        delivery.close()


def test_a_dashboard_never_sees_half_of_a_checkpoint(mirrored: Mirrored) -> None:
    dashboard = mirrored.dashboard
    mirrored.publish(3)
    assert mirrored.delivery.deliver()

    def half_arrived() -> None:
        # What the readers are protected from is there: of one table the new rows arrived.
        assert dashboard.unpublished_sum() != str(TOTAL)
        dashboard.read_more()

    with dashboard.reading():
        mirrored.publish(9)
        before = mirrored.versions()
        mirrored.deliver_while_paused("TO TABLE `shop`.`taut_rows_orders`", half_arrived)
        mirrored.publish(14)
        assert mirrored.delivery.deliver()
        dashboard.read_more()
        # A revision: both tables go on from older versions.
        mirrored.publish(20, before)
        mirrored.deliver_while_paused("INTO `shop`.taut_published", dashboard.read_more)
        dashboard.read_more()
    assert dashboard.seen.keys() == {(number, *sums) for number, sums in mirrored.sums.items()}
    assert all(int(first) + int(second) == TOTAL for _, first, second in dashboard.seen)


# -- a pipeline that runs, with a revision ---------------------------------------------------------


DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.table
def entries():
    schema = "account INT, kind STRING, amount DECIMAL(12, 2)"
    return spark.readStream.schema(schema).json("@IN@")

def balances(kind):
    query = "SELECT account, sum(amount) AS balance FROM entries WHERE kind = '{}' GROUP BY account"
    return spark.sql(query.format(kind))

@dp.materialized_view(table_properties={"tautochrone.sinks": "mirror"})
def checking():
    return balances("checking")

@dp.materialized_view(table_properties={"tautochrone.sinks": "mirror"})
def savings():
    return balances("savings")

dp.create_sink("mirror", "clickhouse", {"url": "clickhouse://127.0.0.1:@PORT@/bank"})
"""
ACCOUNTS = 7
DEPOSIT = 100
SUMS = "SELECT (SELECT sum(balance) FROM checking), (SELECT sum(balance) FROM savings)"


class Bank:
    """Money moves between the two kinds of accounts of the same people."""

    def __init__(self, folder: Path, spark: SparkSession, port: int) -> None:
        self._input = folder / "in"
        self._input.mkdir()
        self.pipeline = Pipeline(folder / "project", spark)
        text = DEFINITIONS.replace("@IN@", str(self._input)).replace("@PORT@", str(port))
        self.pipeline.write("definitions/bank.py", text)
        self.expected: dict[int, tuple[Decimal, Decimal]] = {}
        entries = [self._entry(account, "checking", DEPOSIT) for account in range(ACCOUNTS)]
        entries += [self._entry(account, "savings", DEPOSIT) for account in range(ACCOUNTS)]
        self._put("deposits", entries)

    def transfer(self, number: int, amount: int) -> None:
        account = number % ACCOUNTS
        entries = [self._entry(account, "checking", -amount), self._entry(account, "savings", amount)]
        self._put(f"transfer-{number}", entries)

    def transfer_while_running(self, dashboard: Dashboard, numbers: range) -> None:
        """Each transfer is read in a checkpoint of its own."""
        with self.pipeline.running(100) as happened:
            for number in numbers:
                checkpoints = len(happened.checkpoints)
                self.transfer(number, number + 1)
                dashboard.wait_for(lambda past=checkpoints: len(happened.checkpoints) > past)  # type: ignore[misc]
        for checkpoint in happened.checkpoints:
            ((checking, savings),) = self.pipeline.query(SUMS, checkpoint=checkpoint)
            self.expected[checkpoint] = checking, savings

    def correct(self, number: int, amount: int, to: int) -> None:
        """A transfer was of another amount: the tables go back, and its file is read again."""
        self.transfer(number, amount)
        entries = (TableName("lake", ("default",), "entries"),)
        request = RevisionRequest(named=entries, to=CheckpointNumber(to), read_again=True)
        with self.pipeline.opened() as (job, _):
            revise(job, request, survey(job, request))

    def _put(self, name: str, entries: list[dict[str, Any]]) -> None:
        hidden = self._input / f".{name}"
        hidden.write_text("\n".join(map(json.dumps, entries)))
        hidden.rename(self._input / f"{name}.json")

    def _entry(self, account: int, kind: str, amount: int) -> dict[str, Any]:
        return {"account": account, "kind": kind, "amount": str(amount)}


@pytest.mark.slow
@pytest.mark.spark
def test_a_dashboard_over_a_running_pipeline_with_a_revision(
    tmp_path: Path, spark: SparkSession, server: Server
) -> None:
    bank = Bank(tmp_path, spark, server.port)
    dashboard = Dashboard(server.port, "bank", {"checking": "balance", "savings": "balance"}, pause_s=0.01)
    assert bank.pipeline.run().state == "COMPLETED"
    before = int(bank.pipeline.job.store.checkpoints.highest_used_number())
    with dashboard.reading():
        bank.transfer_while_running(dashboard, range(4))
        bank.correct(3, amount=90, to=before)
        bank.transfer_while_running(dashboard, range(4, 7))
        dashboard.read_more()
    ((checking, savings),) = bank.pipeline.query(SUMS)
    bank.pipeline.close()
    seen = {number: (Decimal(first), Decimal(second)) for number, first, second in dashboard.seen}
    assert len(seen) == len(dashboard.seen)
    assert {sum(sums) for sums in seen.values()} == {2 * ACCOUNTS * DEPOSIT}
    bank.expected.setdefault(before, (Decimal(ACCOUNTS * DEPOSIT), Decimal(ACCOUNTS * DEPOSIT)))
    assert {number: bank.expected[number] for number in seen} == seen
    assert seen[max(seen)] == (checking, savings)
    assert len(seen) >= 4, seen
