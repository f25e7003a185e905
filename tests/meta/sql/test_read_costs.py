"""How many questions a read asks of the database: as few when its tables failed at many checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, event
from tests.support.stores import Backing

from tautochrone.meta import DatasetEntry
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.sink import SinkDeclaration

ROOT, *VIEWS = (TableName("lake", ("db",), name) for name in ("root", "a", "b", "c", "d"))
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("x"))


@pytest.fixture
def statements() -> Iterator[list[str]]:
    executed: list[str] = []

    def record(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
        executed.append(statement)

    event.listen(Engine, "before_cursor_execute", record)
    yield executed
    event.remove(Engine, "before_cursor_execute", record)


def test_reasons_are_looked_up_once(database: Backing, statements: list[str]) -> None:
    """Each view fails from another checkpoint on, so the read steps back over each of them."""
    store = database.open()
    entries = [DatasetEntry(ROOT, "streaming table", "r", is_root=True)]
    entries += [DatasetEntry(view, "materialized view", "v", frozenset({ROOT})) for view in VIEWS]
    store.jobs.start_run("shop", "job", entries)
    fence = store.jobs.take_over("job")
    for cut in range(1, len(VIEWS) + 3):
        number = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: Version(str(cut))}, cut)).number
        for index, view in enumerate(VIEWS):
            if cut <= index + 1:
                store.checkpoints.record_version("job", fence, number, view, Version(f"v{cut}"), FULL)
            else:
                store.checkpoints.record_failure(
                    "job", fence, number, view, unclassified(f"{view.table} broke")
                )
        store.checkpoints.publish("job", fence, number, cut)
    statements.clear()
    answer = store.reads.resolve(tables=VIEWS[:1], lease_ms=0)
    assert answer.checkpoint == 1
    assert answer.behind.keys() == set(VIEWS)
    assert sum("FROM failures" in statement for statement in statements) == len(VIEWS)
    assert len(statements) < 40, statements


def test_a_look_and_a_refresh_ask_little(database: Backing, statements: list[str]) -> None:
    """What a job that runs for days asks at each look, and writes for each view at each checkpoint."""
    store = database.open()
    entries = [DatasetEntry(ROOT, "streaming table", "r", is_root=True)]
    entries += [DatasetEntry(view, "materialized view", "v", frozenset({ROOT})) for view in VIEWS]
    store.jobs.start_run("shop", "job", entries)
    fence = store.jobs.take_over("job")
    for cut in range(1, 4):
        number = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: Version(str(cut))}, cut)).number
        for view in VIEWS:
            statements.clear()
            store.checkpoints.record_version("job", fence, number, view, Version(f"v{cut}"), FULL)
            assert len(_of_tables(statements)) <= 8, statements
        store.checkpoints.publish("job", fence, number, cut)
    statements.clear()
    assert store.checkpoints.last_done("job") is not None
    store.jobs.heartbeat("job", fence, observations={ROOT: 1}, checkpoint=number)
    assert len(_of_tables(statements)) <= 9, statements


def _of_tables(statements: list[str]) -> list[str]:
    """Without what a transaction begins with."""
    return [text for text in statements if re.match("SELECT (?!pg_)|INSERT|UPDATE|DELETE", text)]


def test_statuses_ask_as_often_of_many_failing_datasets(database: Backing, statements: list[str]) -> None:
    """A topology that is late costs some questions, whatever the number of its datasets and sinks."""
    store = database.open()
    counts, newest = [], {}
    for views in (2, 30):
        job, root = f"job{views}", TableName("lake", (f"db{views}",), "root")
        names = [TableName("lake", (f"db{views}",), f"view{index}") for index in range(views)]
        entries = [DatasetEntry(root, "streaming table", "r", is_root=True)]
        entries += [DatasetEntry(view, "materialized view", "v", frozenset({root})) for view in names]
        store.jobs.start_run("shop", job, entries)
        fence = store.jobs.take_over(job)
        for cut in (1, 2):
            new = NewCheckpoint({root: Version(str(cut))}, cut)
            number = store.checkpoints.open(job, fence, new).number
            for view in names:
                if cut == 1:
                    store.checkpoints.record_version(job, fence, number, view, Version("v"), FULL)
                else:
                    store.checkpoints.record_failure(job, fence, number, view, unclassified("it broke"))
            store.checkpoints.publish(job, fence, number, cut)
        for view in names:
            sink = SinkDeclaration(name=f"to {view}", format="toy", tables=(view,))
            store.deliveries.claim(job, fence, sink, Fence(0))
        statements.clear()
        statuses = [status for status in store.datasets.statuses() if status.job == job]
        sinks = [sink for sink in store.deliveries.sinks() if sink.job == job]
        counts.append(len(_of_tables(statements)))
        store.jobs.end_run(job, fence)
        assert {(status.checkpoint, status.failing_since_ms) for status in statuses[1:]} == {(number - 1, 2)}
        assert {(sink.newest, sink.behind_since_ms) for sink in sinks} == {(number, 1)}
        newest[job] = number
    # The newest checkpoint of a sink is that of its own job.
    assert {sink.job: sink.newest for sink in store.deliveries.sinks()} == newest
    # The second time there is one more topology that is late.
    assert counts[1] - counts[0] <= 14, counts


def test_states_of_jobs_ask_as_often_of_many(database: Backing, statements: list[str]) -> None:
    store = database.open()
    counts = []
    for index in range(6):
        job, root = f"job{index}", TableName("lake", (f"db{index}",), "root")
        store.jobs.start_run("shop", job, [DatasetEntry(root, "streaming table", "r", is_root=True)])
        fence = store.jobs.take_over(job)
        number = store.checkpoints.open(job, fence, NewCheckpoint({root: Version("1")}, 1)).number
        if index % 2:
            store.checkpoints.publish(job, fence, number, 1)
        statements.clear()
        states = {state.name: state for state in store.jobs.states()}
        counts.append(len(_of_tables(statements)))
        following = store.checkpoints.next_for(job)
        assert states[job].target == (None if following is None else following.number)
        assert states[job].newest_done == (number if index % 2 else None)
    assert counts[-1] <= counts[0] + 1, counts
