"""Whether a flow's state is there: the layouts in which Spark keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from tautochrone.ingest.files import Files
from tautochrone.ingest.folder import CheckpointFolder


class Listed:
    """Names in folders, from the paths of files."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = list(paths)

    def names(self, folder: str) -> list[str]:
        below = (path.removeprefix(f"{folder}/") for path in self._paths if path.startswith(f"{folder}/"))
        return sorted({path.split("/")[0] for path in below})


def folder(*state: str) -> CheckpointFolder:
    files: Any = Listed(f"f/state/0/{path}" for path in state)
    return CheckpointFolder(cast("Files", files), "f", "archive")


@pytest.mark.parametrize(
    "state",
    [
        ("0/1.delta", "0/2.delta", "1/2.snapshot"),
        # Spark keeps the schema of a state beside the versions of its first partition.
        ("0/_metadata/schema", "0/2.delta", "1/2.delta"),
        ("0/left-keyToNumValues/2.delta", "0/left-keyWithIndexToValue/2.delta"),
        ("0/2.zip", "1/2_4a1c.changelog"),
    ],
)
def test_there(state: tuple[str, ...]) -> None:
    assert folder(*state).has_state(2)


@pytest.mark.parametrize(
    "state",
    [
        (),
        ("0/1.delta",),
        ("0/2.delta", "1/1.delta"),
        ("0/_metadata/2",),
        ("0/left-keyToNumValues/2.delta", "0/left-keyWithIndexToValue/1.delta"),
    ],
)
def test_gone(state: tuple[str, ...]) -> None:
    assert not folder(*state).has_state(2)
