"""Ends a publication at each file that it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.sinks.publications.toy_lake import ToyLake

from tautochrone.sinks.common import exclusive_files, publication, publication_state
from tautochrone.sinks.delta import commits, log
from tautochrone.sinks.hudi import timeline
from tautochrone.sinks.hudi.sink import HudiTable
from tautochrone.sinks.paimon import snapshots

__all__ = ["LAST", "WRITES", "CrashError", "Crashes", "crash_at_each_file"]

WRITES: list[tuple[Any, str]] = [
    (publication_state, "put_if_absent"),
    (publication, "replace_file"),
    (log, "put_if_absent"),
    (log, "replace_file"),
    (commits, "write_synced"),
    (timeline, "put_if_absent"),
    (exclusive_files, "link_file"),
    (HudiTable, "_without_rows"),
    (snapshots, "put_if_absent"),
    (snapshots, "replace_file"),
    (snapshots, "write_synced"),
]
"""All functions by which a publication writes a file."""


LAST = {"delta": 0, "hudi": 10, "paimon": 0}
"""So many versions have all of their files; 0: all have."""


class CrashError(Exception):
    """The process ended."""


class Crashes:
    """Ends the process before or after the n-th file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.is_before = -1, True
        for module, name in WRITES:
            monkeypatch.setattr(module, name, self._counting(getattr(module, name)))

    def at(self, number: int, *, before: bool) -> None:
        self.left, self.is_before = number, before

    def _counting(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.left -= 1
            if self.left == 0 and self.is_before:
                raise CrashError
            written = write(*arguments)
            if self.left == 0:
                raise CrashError
            return written

        return counted


def crash_at_each_file(lake: ToyLake, monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
    """A delivery that dies at its first file, the next one at its second, until one writes them all. Each
    checkpoint has one version then.

    Args:
        before: the process ends before it writes the file, not behind it.
    """
    crashes = Crashes(monkeypatch)
    number = 0
    while True:
        number += 1
        lake.add()
        crashes.at(number, before=before)
        try:
            lake.deliver()
            break
        except CrashError:
            crashes.at(-1, before=True)
            lake.deliver()
    # Claim, fence, vectors of two tables, decision, two logs, pointer and list.
    assert number > 7
    lake.check(last=LAST[lake.format])
