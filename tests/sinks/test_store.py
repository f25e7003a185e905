"""What the store remembers of sinks, and what the command shows of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tautochrone.cli.main import main
from tautochrone.errors import FencedError, MetaError, SinkFencedError
from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.model.delivery import DeliveryPolicy, DeliveryState, SinkDeclaration
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.sink import Intent, Published, TransactionId

ORDERS = TableName("lake", ("default",), "orders")
MIRROR = SinkDeclaration(name="mirror", format="toy", tables=(ORDERS,), policy=DeliveryPolicy.HOLD_BACK)


class Clock:
    now = 1_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[MetaStore]:
    with MetaStore.open(f"sqlite:///{tmp_path}/storage/meta.db", clock=clock) as opened:
        yield opened


def owner(store: MetaStore, job: str = "job", pipeline: str = "shop") -> Fence:
    table = TableName("lake", ("default",), f"of_{job}") if job != "job" else ORDERS
    store.start_run(pipeline, job, [DatasetEntry(table, "streaming table", "x", is_root=True)])
    return store.take_over(job, lease_ms=10_000)


def transaction(store: MetaStore, checkpoint: int, fence: Fence) -> TransactionId:
    return TransactionId(
        incarnation=store.incarnation, sink="mirror", checkpoint=CheckpointNumber(checkpoint), fence=fence
    )


def publish(store: MetaStore, fence: Fence, version: str) -> CheckpointNumber:
    number = store.open_checkpoint("job", fence, {ORDERS: Version(version)}, 1).number
    store.publish("job", fence, number, store.now_ms())
    return number


def test_a_delivery_moves_the_position(store: MetaStore, clock: Clock) -> None:
    fence = owner(store)
    number = publish(store, fence, "v1")
    mine = store.claim_sink("job", fence, MIRROR, Fence(0))
    (status,) = store.sinks()
    assert (status.state, status.newest, status.behind_since_ms) == (DeliveryState.NEW, number, 1_000)
    intent = Intent(transaction=transaction(store, number, mine), versions={ORDERS: Version("v1")})
    store.intend_delivery("job", fence, intent)
    assert store.sinks()[0].intent == intent
    store.delivery_failed("job", fence, "mirror", mine, "away", failures=1)
    assert (store.sinks()[0].state, store.sinks()[0].error) == (DeliveryState.FAILING, "away")
    clock.now = 2_000
    store.delivered(
        "job", fence, "mirror", mine, Published(transaction=intent.transaction, versions=intent.versions)
    )
    (status,) = store.sinks()
    assert status.delivered is not None
    assert status.delivered.versions == intent.versions
    assert (status.intent, status.failures, status.error) == (None, 0, None)
    assert (status.state, status.behind_since_ms) == (DeliveryState.ACTIVE, None)


def test_a_claim_fences_the_last_one_off(store: MetaStore) -> None:
    fence = owner(store)
    first = store.claim_sink("job", fence, MIRROR, Fence(0))
    assert store.claim_sink("job", fence, MIRROR, Fence(7)) == 8
    with pytest.raises(SinkFencedError):
        store.end_intent("job", fence, "mirror", first)


def test_an_older_owner_of_the_job_is_refused(store: MetaStore) -> None:
    fence = owner(store)
    mine = store.claim_sink("job", fence, MIRROR, Fence(0))
    store.take_over("job")
    with pytest.raises(FencedError):
        store.end_intent("job", fence, "mirror", mine)
    with pytest.raises(FencedError):
        store.claim_sink("job", fence, MIRROR, Fence(0))


@pytest.mark.parametrize("pipeline", ["shop", "other"])
def test_a_name_is_taken_while_its_job_runs(store: MetaStore, clock: Clock, pipeline: str) -> None:
    store.claim_sink("job", owner(store), MIRROR, Fence(0))
    other = owner(store, "second", pipeline)
    with pytest.raises(MetaError) as refused:
        store.claim_sink("second", other, MIRROR, Fence(0))
    assert refused.value.error_class == "SINK_NAME_TAKEN"
    clock.now = 60_000
    if pipeline == "shop":
        assert store.claim_sink("second", other, MIRROR, Fence(0)) == 2
    else:
        with pytest.raises(MetaError):
            store.claim_sink("second", other, MIRROR, Fence(0))


def test_a_retired_sink_is_free(store: MetaStore) -> None:
    fence = owner(store)
    store.claim_sink("job", fence, MIRROR, Fence(0))
    store.retire_sinks("job", fence, [])
    assert store.sinks()[0].state is DeliveryState.RETIRED
    assert store.claim_sink("second", owner(store, "second", "other"), MIRROR, Fence(0)) == 2


def test_the_command_lists_and_forgets(
    store: MetaStore, clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: shop\nstorage: storage\nlibraries: []\n")
    fence = owner(store)
    publish(store, fence, "v1")
    store.claim_sink("job", fence, MIRROR, Fence(0))
    spec = str(tmp_path / "spark-pipeline.yml")
    assert main(["sinks", "--spec", spec, "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["sink"], line["state"], line["policy"]) == ("mirror", "new", "hold_back")
    assert (line["checkpoint"], line["newest"], line["tables"]) == (None, 1, [str(ORDERS)])
    assert main(["sinks", "--spec", spec, "--forget", "nobody"]) == 1
    assert "SINK_NOT_FOUND" in capsys.readouterr().err
    store.end_run("job", fence)
    assert main(["sinks", "--spec", spec, "--forget", "mirror", "--json"]) == 0
    assert not capsys.readouterr().out
    assert not store.sinks()
