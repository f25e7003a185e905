"""What pages call tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as numbers
from threading import Event

import pytest

from tautochrone.errors import TautochroneError
from tautochrone.metaservice.pages.graph import _outside_texts
from tautochrone.metaservice.pages.rendering import _name_markup
from tautochrone.metaservice.pages.routes import _Count, _Counted
from tautochrone.metaservice.pages.status import Topology
from tautochrone.model.names import TableName, describe_input, file_table

NAME = TableName("lake", ("db",), "orders")


def test_tables_of_files_are_shown_as_their_files() -> None:
    table = file_table("lake", "/data/orders/*", "csv of /data/orders/*", "{}")
    topology = Topology(lines={}, inputs={}, outside=(table, NAME), jobs=())
    assert (topology.file_tables, topology.external_tables) == ([table], [NAME])
    assert describe_input(table) == "the files in orders"
    assert describe_input(NAME) == str(NAME)
    assert "the files in orders" in _name_markup(table)
    assert "files__" not in _name_markup(table)
    assert _outside_texts(table) == ("orders", "files")


def test_page_does_not_wait_for_a_long_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tautochrone.metaservice.pages.routes._PATIENCE_S", 0.01)
    go_on, counts = Event(), iter(range(9))

    def count() -> int:
        assert go_on.wait(60)
        return next(counts)

    counted = _Counted(count, 3_600_000, 3_600_000, numbers().__next__)
    assert counted() is None
    assert counted() is None
    go_on.set()
    monkeypatch.setattr("tautochrone.metaservice.pages.routes._PATIENCE_S", 60)
    assert _value(counted()) == 0
    assert _value(counted()) == 0, "it was counted twice"
    always_old = _Counted(count, -1, 3_600_000, numbers().__next__)
    assert [_value(always_old()), _value(always_old())] == [1, 2]


def test_failed_count_is_said_and_tried_again() -> None:
    answers: Iterator[int | Exception] = iter([ZeroDivisionError(), 7])

    def count() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    counted = _Counted(count, 3_600_000, 3_600_000, numbers().__next__)
    with pytest.raises(ZeroDivisionError):
        counted()
    assert _value(counted()) == 7


def _value(count: _Count[int] | TautochroneError | None) -> int:
    assert isinstance(count, _Count)
    return count.value
