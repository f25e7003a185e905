"""A damaged table is noticed by its sink, set aside whole, and begun anew by the next delivery."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("hudi")

from tests.crash.faults import Crash
from tests.sinks.publications.test_commits import OTHERS
from tests.sinks.publications.toy_lake import LINES, ORDERS, ToyLake

from tautochrone.errors import SinkError, SinkFencedError
from tautochrone.model.names import Fence
from tautochrone.model.reason import ReasonCode
from tautochrone.sinks.common.publication import listed_versions
from tautochrone.sinks.common.publication_state import StateFolder

LOGS = {"delta": "_delta_log/0*.json", "hudi": ".hoodie/*.commit", "paimon": "snapshot/snapshot-*"}
NEXT = {
    "delta": "_delta_log/00000000000000000002.json",
    "hudi": OTHERS["hudi"],
    "paimon": "snapshot/snapshot-3",
}


@pytest.fixture(params=["delta", "hudi", "paimon"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> ToyLake:
    lake = ToyLake(tmp_path, request.param)
    for _ in range(2):
        lake.add()
        lake.deliver()
    return lake


def damage(lake: ToyLake, what: str) -> None:
    folder = lake.table_folder(LINES)
    if what == "commit":
        (folder / NEXT[lake.format]).write_text('{"commitInfo": {}}\n')
    elif what == "log":
        max(folder.glob(LOGS[lake.format])).write_text("{")
    else:
        for path in folder.rglob("*.parquet"):
            path.unlink()


@pytest.mark.parametrize("what", ["commit", "log", "files"])
def test_a_damaged_table_is_begun_anew(lake: ToyLake, what: str) -> None:
    sink = lake.open()
    assert sink.damage(LINES, lake.checkpoints[2][LINES]) is None
    damage(lake, what)
    sink = lake.open()
    reason = sink.damage(LINES, lake.checkpoints[2][LINES])
    is_by_files = what == "files" and lake.format != "paimon"
    assert reason is not None
    assert is_by_files or what == "files" or reason.code is ReasonCode.PUBLISHED_LOG_DAMAGED
    assert sink.damage(ORDERS, lake.checkpoints[2][ORDERS]) is None
    before = sorted(path.name for path in lake.table_folder(LINES).rglob("*"))
    with pytest.raises(SinkFencedError):
        sink.set_aside(LINES, Fence(lake.fence - 1))
    folder = Path(sink.set_aside(LINES, Fence(lake.fence)))
    # Who dies here has lost nothing. Who asks again finds nothing to set aside.
    assert sorted(path.name for path in folder.rglob("*")) == before
    assert sink.set_aside(LINES, Fence(lake.fence)) == ""
    assert all(LINES not in tables for tables in listed(lake))
    lake.deliver()
    assert (lake.shown(LINES), lake.shown(ORDERS)) == (lake.rows(LINES, 2), lake.rows(ORDERS, 2))
    lake.add()
    lake.deliver()
    assert (lake.shown(LINES), lake.shown(ORDERS)) == (lake.rows(LINES, 3), lake.rows(ORDERS, 3))
    sink = lake.open()
    assert [sink.damage(table, lake.checkpoints[3][table]) for table in (LINES, ORDERS)] == [None, None]


def listed(lake: ToyLake) -> list[set[str]]:
    folder = lake.published_folder
    return [
        {*listed_versions("mirror", {"folder": str(folder)}, number, "store")} for number in lake.checkpoints
    ]


def test_a_decided_checkpoint_is_no_damage_and_survives_it(lake: ToyLake) -> None:
    lake.add()
    sink = lake.open()
    intent = lake.prepare(sink, 3)
    damage(lake, "commit")
    # Hudi's timeline takes both instants: it is noticed afterwards.
    with nullcontext() if lake.format == "hudi" else pytest.raises(SinkError, match="PUBLICATION_DIVERGED"):
        sink.commit(intent.transaction, Fence(lake.fence))
    again = lake.open()
    assert again.damage(LINES, lake.checkpoints[2][LINES]) is not None
    # The other table has its commit already, which is not shown yet.
    assert again.damage(ORDERS, lake.checkpoints[3][ORDERS]) is None
    again.set_aside(LINES, Fence(lake.fence))
    lake.deliver()
    assert (lake.shown(LINES), lake.shown(ORDERS)) == (lake.rows(LINES, 3), lake.rows(ORDERS, 3))


def dies(*_: object, **__: object) -> None:
    raise Crash


def test_a_rename_that_dies_is_completed(lake: ToyLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder has its new name, and the state not yet."""
    moved = replace(LINES, table="moved")
    sink = lake.open()
    with monkeypatch.context() as patched:
        patched.setattr(StateFolder, "change", dies)
        with pytest.raises(Crash):
            sink.rename_mirror(LINES, moved)
    assert not lake.table_folder(LINES).exists()
    sink = lake.open()
    assert sink.mirror_of(LINES) is not None
    for _ in range(2):
        sink.rename_mirror(LINES, moved)
    assert sink.mirror_of(LINES) is None
    assert lake.shown(moved) == lake.rows(LINES, 2)
    shown = lake.open().published()
    assert shown is not None
    assert shown.versions.keys() == {ORDERS, moved}


def test_a_disk_that_is_away_is_no_damage(lake: ToyLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a repair would set a whole table aside for it."""

    def checked_head(*_arguments: object) -> str:
        raise PermissionError(13, "not for this user")

    sink = lake.open()
    monkeypatch.setattr(sink, "_checked_head", checked_head)
    with pytest.raises(SinkError, match="PUBLICATION_FILE_FAILED"):
        sink.damage(LINES, lake.checkpoints[2][LINES])
