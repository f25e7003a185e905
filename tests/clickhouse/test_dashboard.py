"""A dashboard over two mirrored tables: whatever is delivered meanwhile, it sees whole checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.clickhouse.dashboards import Dashboard
from tests.clickhouse.test_server import Server
from tests.sinks.test_delivery import LINES, ORDERS, World, bag, net

from tautochrone.meta import MetaStore
from tautochrone.model.names import Version
from tautochrone.runtime.delivery import deltas
from tautochrone.runtime.delivery.delivery import Delivery

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
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as store:
        world = World(tmp_path, store)
        world.take_over()
        delivery = world.delivery()
        url = f"clickhouse://127.0.0.1:{server.port}/shop"
        delivery.declaration = replace(delivery.declaration, format="clickhouse", options={"url": url})
        job: Any = delivery.job
        job.graph = SimpleNamespace(schemas=dict.fromkeys(world.tables, SCHEMA))
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
        for first in (14, 5):
            mirrored.publish(first)
            assert mirrored.delivery.deliver()
            dashboard.read_more()
        # A revision: both tables go on from older versions.
        mirrored.publish(20, before)
        mirrored.deliver_while_paused("INTO `shop`.taut_published", dashboard.read_more)
        dashboard.read_more()
    assert dashboard.seen.keys() == {(number, *sums) for number, sums in mirrored.sums.items()}
    assert all(int(first) + int(second) == TOTAL for _, first, second in dashboard.seen)
