"""The store's tests run over every place where it can be; over HTTP only in the long form.

In CI `test_model` and the service's `test_lost_answers` are over HTTP, and `test_wire` says that all crosses.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.stores import KINDS, Backing, Clock

from tautochrone.meta import Store

_MARKS = {"postgresql": pytest.mark.server, "http": pytest.mark.slow}
_KINDS = {kind: pytest.param(kind, marks=_MARKS.get(kind, ())) for kind in KINDS}


@pytest.fixture(params=_KINDS.values())
def backing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backing]:
    new_backing = Backing(request.param, tmp_path)
    yield new_backing
    new_backing.close()


@pytest.fixture(params=[kind for name, kind in _KINDS.items() if name != "http"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backing]:
    """For what only concerns the database itself."""
    new_backing = Backing(request.param, tmp_path)
    yield new_backing
    new_backing.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(backing: Backing, clock: Clock) -> Iterator[Store]:
    with backing.open(clock) as opened:
        yield opened
