"""What a sink lacks does not expire from the lake, within its budget."""

from __future__ import annotations

from dataclasses import replace

from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Delivered, DeliveryPolicy, DeliveryState, Intent, SinkStatus, TransactionId
from tautochrone.runtime.maintenance.retention import Needs, follow_sinks

ORDERS = TableName("lake", ("default",), "orders")
SHOWN, NEXT, READ = Version("1"), Version("2"), Version("3")
TRANSACTION = TransactionId(
    incarnation="i", sink="mirror", checkpoint=CheckpointNumber(2), fence=Fence(1), attempt=1
)
BEHIND = SinkStatus(
    name="mirror",
    job="job",
    format="toy",
    tables=(ORDERS,),
    policy=DeliveryPolicy.RETRY,
    state=DeliveryState.FAILING,
    fence=Fence(1),
    catch_up_ms=1_000,
    delivered=Delivered(
        incarnation="i", checkpoint=CheckpointNumber(1), versions={ORDERS: SHOWN}, delivered_at_ms=1
    ),
    intent=Intent(transaction=TRANSACTION, versions={ORDERS: NEXT}),
    behind_since_ms=5_000,
)


def kept(sink: SinkStatus, now_ms: int) -> tuple[frozenset[Version], frozenset[Version]]:
    needs = Needs({ORDERS: frozenset({READ})})
    follow_sinks(needs, [sink], now_ms)
    retention = needs.of(ORDERS, 0)
    return retention.readable, retention.followed


def test_what_a_sink_shows_and_what_is_under_way_stay() -> None:
    assert kept(BEHIND, 6_000) == ({SHOWN, NEXT, READ}, {SHOWN, NEXT})


def test_past_its_budget_nothing_is_kept_for_it() -> None:
    assert kept(BEHIND, 6_001) == ({READ}, frozenset())


def test_a_sink_that_lacks_nothing_has_no_budget() -> None:
    assert kept(replace(BEHIND, behind_since_ms=None), 10**9)[1] == {SHOWN, NEXT}


def test_a_retired_sink_keeps_nothing() -> None:
    assert kept(replace(BEHIND, state=DeliveryState.RETIRED), 5_000) == ({READ}, frozenset())


def test_a_new_sink_keeps_nothing() -> None:
    assert kept(replace(BEHIND, delivered=None), 5_000) == ({READ}, frozenset())
