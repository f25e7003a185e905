"""What the loop decides before it refreshes anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tautochrone.errors import TableMissingError
from tautochrone.model import events
from tautochrone.model.backoff import Backoff
from tautochrone.model.checkpoint import BrokenInvariant, Checkpoint, CheckpointState
from tautochrone.model.lake import ChangeKind, TableChange
from tautochrone.model.names import NOW, CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan
from tautochrone.runtime.loop import checkpoint_loop
from tautochrone.runtime.loop.checkpoint_loop import CheckpointLoop, Outcome
from tautochrone.runtime.loop.cut import Cut
from tautochrone.runtime.revision.revise import _take_over

ORDERS, RATES = (TableName("lake", ("db",), name) for name in ("orders", "rates"))


class Loop(CheckpointLoop):
    """The loop of a job whose store never has news; `done` is what it did."""

    def __init__(
        self, *, invariant_reads: frozenset[TableName] = frozenset(), rates_exist: bool = True
    ) -> None:
        self.done: list[Any] = []
        inputs = SimpleNamespace(unversioned=frozenset())
        query = SimpleNamespace(inputs=inputs)
        invariant = SimpleNamespace(name="fresh", tables=invariant_reads, query=query)
        job: Any = SimpleNamespace(
            name="job",
            graph=SimpleNamespace(invariants=[invariant]),
            topology=SimpleNamespace(root_tables=[ORDERS], clocks=frozenset()),
            external_tables=lambda: frozenset({RATES}),
            lake=SimpleNamespace(load=self._load),
            store=SimpleNamespace(checkpoints=SimpleNamespace(last_done=lambda _job: None)),
            journal=SimpleNamespace(begin_next=lambda: None, abort=lambda *_: None),
            emit=self.done.append,
            input_table=lambda name: None,
            tables={
                ORDERS: SimpleNamespace(current_version=lambda: Version("2"), change_between=self._change)
            },
        )
        synchronized: Any = SimpleNamespace(synchronize=lambda: None, unfollowed={}, unreadable={})
        changes: Any = SimpleNamespace(need_checkpoint=lambda *_: False)
        heartbeat: Any = SimpleNamespace(report_no_news=lambda *_: None)
        aligner: Any = SimpleNamespace(align=lambda cut, _last: cut)
        self._job, self._changes, self._heartbeat, self._aligner = job, changes, heartbeat, aligner
        self._file_tables = self._shadow_tables = synchronized
        self._failed, self._waiting_for_bulk, self._rejected_roots = {}, frozenset(), None
        self._rejections, self._rates_exist = 0, rates_exist
        self._number, self.change = None, ChangeKind.APPEND

    def _change(self, _old: Version, _new: Version) -> TableChange:
        return TableChange(kind=self.change, reason=Reason.of(ReasonCode.NO_ROWS_MOVED, table=str(ORDERS)))

    def _load(self, name: TableName) -> None:
        if not self._rates_exist:
            raise TableMissingError("TABLE_OR_VIEW_NOT_FOUND", f"{name} is not there")

    def _take_cut(self) -> Cut:
        return Cut({ORDERS: Version("1"), NOW: Version("2")}, {}, 2, 2, {})

    def _open(self, cut: Cut) -> Checkpoint | None:
        self.done.append(cut)
        return None

    def _refresh_and_publish(
        self, _checkpoint: Checkpoint, unreadable: Mapping[Any, Any], _last: Any
    ) -> Outcome:
        self.done.append(unreadable)
        return Outcome.DONE


def checkpoint(*tables: TableName) -> Checkpoint:
    return Checkpoint(
        number=CheckpointNumber(1),
        state=CheckpointState.OPEN,
        cut_at_ms=1,
        published_at_ms=None,
        roots={table: Version("1") for table in tables},
    )


@pytest.mark.parametrize(
    ("reads", "is_due"), [({ORDERS, NOW}, True), ({ORDERS, NOW}, False), ({ORDERS}, True)]
)
def test_an_invariant_over_the_time_is_checked_again(
    monkeypatch: pytest.MonkeyPatch, reads: set[TableName], is_due: bool
) -> None:
    wait_s = 0.0 if is_due else 60.0
    monkeypatch.setattr(checkpoint_loop, "_CHECKED_AGAIN", Backoff(first_s=wait_s, longest_s=wait_s))
    loop = Loop(invariant_reads=frozenset(reads))
    broken = BrokenInvariant(name="fresh", location="", rows=1, at_least=False, sample=())
    loop._reject(checkpoint(ORDERS, NOW), [broken])
    is_checked = is_due and NOW in reads
    assert loop._advance() is (Outcome.WAIT if is_checked else Outcome.NOTHING_NEW)
    assert isinstance(loop.done[-1], Cut) is is_checked


def test_an_invariant_that_stays_broken_is_checked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(checkpoint_loop, "time", clock)
    loop = Loop(invariant_reads=frozenset({ORDERS, NOW}))
    broken = BrokenInvariant(name="fresh", location="", rows=1, at_least=False, sample=())
    waits = []
    for _ in range(8):
        loop._reject(checkpoint(ORDERS, NOW), [broken])
        waits.append(loop._rejected_until)
        loop._advance()
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]
    loop._reject(dataclasses.replace(checkpoint(ORDERS, NOW), roots={}), [broken])
    loop._advance()
    loop._reject(checkpoint(ORDERS, NOW), [broken])
    assert loop._rejected_until == 10, "there were other rows meanwhile"


def test_an_open_checkpoint_without_a_table_that_is_read_now_is_aborted() -> None:
    loop = Loop()
    loop._finish_open(checkpoint(ORDERS))
    (aborted,) = loop.done
    assert isinstance(aborted, events.CheckpointAborted)
    assert (aborted.reason.code, aborted.reason.params) == (ReasonCode.ROOT_NOT_IN_CUT, {"table": str(RATES)})


def test_an_open_checkpoint_over_a_table_that_was_emptied_is_aborted() -> None:
    loop = Loop()
    loop.change = ChangeKind.UNKNOWN
    loop._finish_open(checkpoint(ORDERS, RATES))
    (aborted,) = loop.done
    assert isinstance(aborted, events.CheckpointAborted)
    assert (aborted.reason.code, aborted.reason.params) == (ReasonCode.ROOT_REPLACED, {"table": str(ORDERS)})


@pytest.mark.parametrize("is_in_cut", [False, True])
def test_an_open_checkpoint_is_finished_without_a_table_that_is_gone(is_in_cut: bool) -> None:
    loop = Loop(rates_exist=is_in_cut)
    loop._finish_open(checkpoint(ORDERS, RATES) if is_in_cut else checkpoint(ORDERS))
    (unreadable,) = loop.done
    assert [*unreadable] == ([] if is_in_cut else [RATES])


def test_a_dropped_table_does_not_keep_its_job_from_a_takeover() -> None:
    def load(name: TableName) -> Any:
        raise TableMissingError("TABLE_OR_VIEW_NOT_FOUND", f"{name} is not there")

    revised = RevisedTable(table=ORDERS, action=RevisionAction.CLEAR, reason="", job="far")
    taken: list[Fence] = []
    job: Any = SimpleNamespace(
        settings=SimpleNamespace(parallelism=1, lease_ms=1),
        lake=SimpleNamespace(load=load),
        ownership=SimpleNamespace(claim_when_free=lambda _store, _name, _emit, take: take(None)),
        store=SimpleNamespace(
            jobs=SimpleNamespace(take_over=lambda _name, at_least, **_: taken.append(at_least) or Fence(7))
        ),
        effects=SimpleNamespace(perform=lambda _step, _subject, action: action()),
        emit=lambda _event: None,
    )
    assert _take_over(job, "far", RevisionPlan(to=None, tables=(revised,))) == 7
    assert taken == [0]
