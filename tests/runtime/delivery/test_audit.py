"""A sink is compared with the lake at the checkpoint that was asked for, or at its own with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason
from tautochrone.model.reason_codes import ReasonCode
from tautochrone.model.sink import Intent, Published, SinkDeclaration, TransactionId
from tautochrone.runtime.delivery.audit import SinkVerdict, verify_sink
from tautochrone.sinks import register_sink
from tautochrone.testing.sink_conformance import COLUMNS, ORDERS, Columns, begin
from tautochrone.testing.sqlite_sink import ListRows, SqliteSink

ROWS = {"o1": [(1, "one")], "o2": [(1, "one"), (2, "two")]}


class HistoricSink(SqliteSink):
    """Tells checkpoint 1 too, of which it shows the rows that it has."""

    older: Published | None = None
    unknown: Mapping[str, Reason] = {}

    def audit(self, table: TableName, checkpoint: CheckpointNumber) -> Any:
        shown = self.published()
        assert shown is not None
        return super().audit(table, shown.checkpoint if self.older else checkpoint)

    def published_at(self, checkpoint: CheckpointNumber) -> Published | None:
        return self.older if self.older and self.older.checkpoint == checkpoint else None

    def unknown_parts(self, table: TableName, checkpoint: CheckpointNumber) -> Mapping[str, Reason]:
        assert (table, checkpoint) == (ORDERS, CheckpointNumber(1))
        return self.unknown


def transaction(checkpoint: int) -> TransactionId:
    return TransactionId(
        incarnation="store", sink="mirror", checkpoint=CheckpointNumber(checkpoint), fence=Fence(1)
    )


class Comparison:
    """A sink that shows checkpoint 2, beside a lake with the rows of 1 and 2."""

    def __init__(self, folder: Path, kind: type[SqliteSink]) -> None:
        self.path = str(folder / "mirror.db")
        sink = SqliteSink("mirror", self.path)
        sink.fence(Fence(1))
        sink.ensure(ORDERS, Columns(*COLUMNS), (), Fence(1))
        begin(sink, Intent(transaction=transaction(2), versions={ORDERS: Version("o2")}, replaced=(ORDERS,)))
        sink.prepare(transaction(2), sink.replace(transaction(2), ORDERS, self.rows("o2")))
        sink.commit(transaction(2), Fence(1))
        register_sink("toy-audited", lambda name, options: kind(name, options["path"]))

    def rows(self, version: str) -> ListRows:
        return ListRows(list(COLUMNS), ROWS[version])

    def verdicts(self, number: int | None) -> list[SinkVerdict]:
        states = {2: CheckpointState.PUBLISHED, 1: CheckpointState.PUBLISHED, 3: CheckpointState.REVOKED}
        store: Any = SimpleNamespace(
            checkpoints=SimpleNamespace(
                get=lambda number: SimpleNamespace(state=states[number]),
                versions_at=lambda number: {ORDERS: Version(f"o{number}")},
            )
        )
        table = SimpleNamespace(read=lambda _session, version: self.rows(version))
        lake: Any = SimpleNamespace(load=lambda _name: table)
        declaration = SinkDeclaration(
            name="mirror", format="toy-audited", tables=(ORDERS,), options={"path": self.path}
        )
        return list(verify_sink(None, store, lake, declaration, (), number))


def test_a_sink_without_history_is_compared_at_its_checkpoint(tmp_path: Path) -> None:
    comparison = Comparison(tmp_path, SqliteSink)
    (verdict,) = comparison.verdicts(1)
    assert (verdict.equal, verdict.checkpoint, verdict.lake_rows) == (True, 2, 2)
    assert verdict.reason == Reason.of(ReasonCode.SINK_CHECKPOINT_NOT_SHOWN, checkpoint=1, shown=2)
    for number in (None, 2):
        (verdict,) = comparison.verdicts(number)
        assert (verdict.equal, verdict.checkpoint, verdict.reason) == (True, 2, None)
    with pytest.raises(CheckpointUnavailableError) as refused:
        comparison.verdicts(3)
    assert refused.value.error_class == "CHECKPOINT_NOT_PUBLISHED"


@pytest.mark.parametrize(
    ("version", "equal", "checkpoint", "code"),
    [
        ("o1", False, 1, None),
        ("of another store", True, 2, ReasonCode.SINK_CHECKPOINT_OF_ANOTHER_STORE),
        (None, True, 2, ReasonCode.SINK_CHECKPOINT_NOT_SHOWN),
    ],
)
def test_an_older_checkpoint_is_compared_if_it_is_the_same_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    equal: bool,
    checkpoint: int,
    code: ReasonCode | None,
) -> None:
    if version is not None:
        older = Published(transaction=transaction(1), versions={ORDERS: Version(version)})
        monkeypatch.setattr(HistoricSink, "older", older)
    if code is not None:
        monkeypatch.setattr(HistoricSink, "unknown_parts", lambda *_: {})
    (verdict,) = Comparison(tmp_path, HistoricSink).verdicts(1)
    assert (verdict.equal, verdict.checkpoint) == (equal, checkpoint)
    assert (None if verdict.reason is None else verdict.reason.code) == code


def test_parts_that_a_sink_cannot_tell_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = Reason.of(ReasonCode.SINK_RECORDS_REMOVED, topic="t", partitions=[0], checkpoint=1)
    older = Published(transaction=transaction(1), versions={ORDERS: Version("o1")})
    monkeypatch.setattr(HistoricSink, "older", older)
    comparison = Comparison(tmp_path, HistoricSink)
    (parts,) = SqliteSink("mirror", comparison.path).audit(ORDERS, CheckpointNumber(2))
    monkeypatch.setattr(HistoricSink, "unknown", {parts: reason})
    (verdict,) = comparison.verdicts(1)
    assert (verdict.equal, verdict.parts, verdict.unknown_parts) == (None, (), (parts,))
    assert verdict.reason == reason
