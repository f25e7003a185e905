"""What the store records of sinks, and what `taut sinks` shows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.stores import Clock

from tautochrone.cli.main import main
from tautochrone.errors import FencedError, MetaError, SinkFencedError
from tautochrone.meta import DatasetEntry, MetaStore, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import (
    DeliveryPolicy,
    DeliveryState,
    Intent,
    Published,
    SinkDeclaration,
    SinkFlow,
    TransactionId,
)

ORDERS = TableName("lake", ("default",), "orders")
MIRROR = SinkDeclaration(name="mirror", format="toy", tables=(ORDERS,), policy=DeliveryPolicy.HOLD_BACK)


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with MetaStore.open(f"sqlite:///{tmp_path}/storage/meta.db", clock=clock) as opened:
        yield opened


def owner(store: Store, job: str = "job", pipeline: str = "shop") -> Fence:
    table = TableName("lake", ("default",), f"of_{job}") if job != "job" else ORDERS
    store.jobs.start_run(pipeline, job, [DatasetEntry(table, "streaming table", "x", is_root=True)])
    return store.jobs.take_over(job, lease_ms=10_000)


def transaction(store: Store, checkpoint: int, fence: Fence) -> TransactionId:
    return TransactionId(
        incarnation=store.incarnation, sink="mirror", checkpoint=CheckpointNumber(checkpoint), fence=fence
    )


def publish(store: Store, fence: Fence, version: str) -> CheckpointNumber:
    number = store.checkpoints.open("job", fence, NewCheckpoint({ORDERS: Version(version)}, 1)).number
    store.checkpoints.publish("job", fence, number, store.now_ms())
    return number


def test_a_delivery_moves_the_position(store: Store, clock: Clock) -> None:
    fence = owner(store)
    number = publish(store, fence, "v1")
    sink_fence = store.deliveries.claim("job", fence, MIRROR, Fence(0))
    (status,) = store.deliveries.sinks()
    assert (status.state, status.newest, status.behind_since_ms) == (DeliveryState.NEW, number, 1_000)
    intent = Intent(transaction=transaction(store, number, sink_fence), versions={ORDERS: Version("v1")})
    store.deliveries.record_intent("job", fence, intent)
    (status,) = store.deliveries.sinks()
    assert (status.intent, status.work(is_running=True)) == (intent, f"writing checkpoint {number}")
    assert status.work(is_running=False) == f"unfinished: checkpoint {number}"
    store.deliveries.record_intent("job", fence, replace(intent, chunks=()))
    assert store.deliveries.sinks()[0].work(is_running=True) == f"committing checkpoint {number}"
    store.deliveries.record_failure("job", fence, "mirror", sink_fence, "away", failures=1)
    assert (store.deliveries.sinks()[0].state, store.deliveries.sinks()[0].error) == (
        DeliveryState.FAILING,
        "away",
    )
    clock.now_ms = 2_000
    store.deliveries.record_delivered(
        "job",
        fence,
        "mirror",
        sink_fence,
        Published(transaction=intent.transaction, versions=intent.versions),
    )
    (status,) = store.deliveries.sinks()
    assert status.delivered is not None
    assert status.delivered.versions == intent.versions
    assert (status.intent, status.failures, status.error) == (None, 0, None)
    assert (status.state, status.behind_since_ms) == (DeliveryState.ACTIVE, None)


def test_a_sink_of_spark_has_batches_by_flow(store: Store, clock: Clock) -> None:
    fence = owner(store)
    number = publish(store, fence, "v1")
    sink_fence = store.deliveries.claim("job", fence, MIRROR, Fence(0))
    clock.now_ms = 2_000
    flow = SinkFlow(batch=0, rows=2)
    for _ in range(2):
        store.deliveries.record_streamed(
            "job", fence, "mirror", sink_fence, {"copy": flow}, number, {ORDERS: Version("v1")}
        )
    (status,) = store.deliveries.sinks()
    assert status.flows == {"copy": SinkFlow(batch=0, rows=2, at_ms=2_000)}
    assert status.delivered is not None
    assert (status.delivered.checkpoint, status.delivered.versions) == (number, {ORDERS: Version("v1")})
    assert (status.state, status.behind_since_ms) == (DeliveryState.ACTIVE, None)


def test_a_claim_fences_the_last_one_off(store: Store) -> None:
    fence = owner(store)
    first = store.deliveries.claim("job", fence, MIRROR, Fence(0))
    assert store.deliveries.claim("job", fence, MIRROR, Fence(7)) == 8
    with pytest.raises(SinkFencedError):
        store.deliveries.end_intent("job", fence, "mirror", first)


def test_an_older_owner_of_the_job_is_refused(store: Store) -> None:
    fence = owner(store)
    sink_fence = store.deliveries.claim("job", fence, MIRROR, Fence(0))
    store.jobs.take_over("job")
    with pytest.raises(FencedError):
        store.deliveries.end_intent("job", fence, "mirror", sink_fence)
    with pytest.raises(FencedError):
        store.deliveries.claim("job", fence, MIRROR, Fence(0))


@pytest.mark.parametrize("pipeline", ["shop", "other"])
def test_a_name_is_taken_while_its_job_runs(store: Store, clock: Clock, pipeline: str) -> None:
    store.deliveries.claim("job", owner(store), MIRROR, Fence(0))
    second_fence = owner(store, "second", pipeline)
    with pytest.raises(MetaError) as refused:
        store.deliveries.claim("second", second_fence, MIRROR, Fence(0))
    assert refused.value.error_class == "SINK_NAME_TAKEN"
    clock.now_ms = 60_000
    if pipeline == "shop":
        assert store.deliveries.claim("second", second_fence, MIRROR, Fence(0)) == 2
    else:
        with pytest.raises(MetaError):
            store.deliveries.claim("second", second_fence, MIRROR, Fence(0))


def test_a_retired_sink_is_free(store: Store) -> None:
    fence = owner(store)
    store.deliveries.claim("job", fence, MIRROR, Fence(0))
    store.deliveries.retire_others("job", fence, [])
    assert store.deliveries.sinks()[0].state is DeliveryState.RETIRED
    assert store.deliveries.claim("second", owner(store, "second", "other"), MIRROR, Fence(0)) == 2


def test_the_command_lists_and_forgets(
    store: Store, clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorage: storage\nlibraries: []\n")
    fence = owner(store)
    publish(store, fence, "v1")
    store.deliveries.claim("job", fence, MIRROR, Fence(0))
    spec = str(tmp_path / "spark-pipeline.yml")
    assert main(["sinks", "--spec", spec, "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["sink"], line["state"], line["policy"]) == ("mirror", "new", "hold_back")
    assert (line["checkpoint"], line["newest"], line["tables"]) == (None, 1, [str(ORDERS)])
    assert main(["sinks", "--spec", spec, "--forget", "nobody"]) == 1
    assert "SINK_NOT_FOUND" in capsys.readouterr().err
    store.jobs.end_run("job", fence)
    assert main(["sinks", "--spec", spec, "--forget", "mirror", "--json"]) == 0
    assert not capsys.readouterr().out
    assert not store.deliveries.sinks()
