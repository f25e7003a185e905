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
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import unclassified

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
