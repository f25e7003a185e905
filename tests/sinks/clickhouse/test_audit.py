"""An audit at an older checkpoint compares only with the store whose checkpoint it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import ReasonCode
from tautochrone.model.sink import CheckpointHistory, Intent, Sink, SinkDeclaration, TransactionId
from tautochrone.runtime.delivery.audit import SinkVerdict, verify_sink
from tautochrone.sinks import open_sink
from tautochrone.testing.sink_conformance import begin
from tautochrone.testing.sqlite_sink import ListRows

TABLE = TableName("lake", ("default",), "orders")
SCHEMA = StructType([StructField("id", LongType())])


def rows(*numbers: int) -> ListRows:
    return ListRows(["id"], [(number,) for number in numbers])


def deliver(sink: Sink, checkpoint: int, incarnation: str, version: str, *numbers: int) -> None:
    transaction = TransactionId(
        incarnation=incarnation, sink="mirror", checkpoint=CheckpointNumber(checkpoint), fence=Fence(1)
    )
    begin(sink, Intent(transaction=transaction, versions={TABLE: Version(version)}))
    sink.prepare(transaction, sink.write(transaction, TABLE, RowChange(added=rows(*numbers), rows=1)))
    sink.commit(transaction, Fence(1))


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    url = f"clickhouse://embedded/{tmp_path}/engine"
    sink = open_sink("mirror", "clickhouse", {"url": url})
    sink.fence(Fence(1))
    sink.ensure(TABLE, SCHEMA, (), Fence(1))
    # The store was put back to checkpoint 1, went on, and delivered 2 and 3 as one change.
    deliver(sink, 1, "first", "v1", 1)
    deliver(sink, 2, "first", "v2 of the lost store", 2)
    deliver(sink, 3, "second", "v3", 3)
    yield url
    sink.close()


def verdict(url: str, checkpoint: int) -> SinkVerdict:
    store: Any = SimpleNamespace(
        checkpoints=SimpleNamespace(
            get=lambda _number: SimpleNamespace(state=CheckpointState.PUBLISHED),
            versions_at=lambda number: {TABLE: Version(f"v{number}")},
        )
    )
    lake_rows = {"v1": rows(1), "v2": rows(1, 22), "v3": rows(1, 2, 3)}
    lake: Any = SimpleNamespace(
        load=lambda _name: SimpleNamespace(read=lambda _session, version: lake_rows[version])
    )
    declaration = SinkDeclaration(name="mirror", format="clickhouse", tables=(TABLE,), options={"url": url})
    (compared,) = verify_sink(None, store, lake, declaration, (), checkpoint)
    return compared


def test_a_checkpoint_of_a_store_that_was_put_back_is_not_compared(url: str) -> None:
    with_history = open_sink("mirror", "clickhouse", {"url": url})
    assert isinstance(with_history, CheckpointHistory)
    assert with_history.published_at(CheckpointNumber(9)) is None
    with_history.close()
    own = verdict(url, 1)
    assert (own.equal, own.checkpoint, own.reason) == (True, 1, None)
    other = verdict(url, 2)
    assert (other.equal, other.checkpoint) == (True, 3)
    assert other.reason is not None
    assert other.reason.code is ReasonCode.SINK_CHECKPOINT_OF_ANOTHER_STORE
