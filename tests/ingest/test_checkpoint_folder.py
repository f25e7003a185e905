"""Whether a flow's state is there: the layouts in which Spark keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from tautochrone.ingest.checkpoint_folder import CheckpointFolder, Files
from tautochrone.model.source_position import SparkPosition


class Listed:
    """Names in folders, from the paths of files."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = list(paths)

    def names(self, folder: str) -> list[str]:
        below = (path.removeprefix(f"{folder}/") for path in self._paths if path.startswith(f"{folder}/"))
        return sorted({path.split("/")[0] for path in below})


class MemoryFiles(Listed):
    """Files with their content; a folder is deleted with all files in it."""

    def __init__(self, *paths: str) -> None:
        self.content = dict.fromkeys(paths, "")

    @property
    def _paths(self) -> list[str]:  # type: ignore[override]
        return list(self.content)

    def stamps(self, folder: str) -> dict[str, tuple[int, int]]:
        below = (path for path in self.content if path.startswith(f"{folder}/"))
        return {path.removeprefix(f"{folder}/"): (0, 0) for path in below}

    def exists(self, path: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for name in self.content)

    def read(self, path: str) -> str | None:
        return self.content.get(path)

    def write(self, path: str, text: str) -> None:
        self.content[path] = text

    def delete(self, path: str) -> None:
        deleted = [name for name in self.content if name == path or name.startswith(f"{path}/")]
        for name in deleted:
            del self.content[name]


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
def test_state_is_present(state: tuple[str, ...]) -> None:
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
def test_state_is_missing(state: tuple[str, ...]) -> None:
    assert not folder(*state).has_state(2)


def test_rewrite_deletes_later_state() -> None:
    state = ["0/0/2.delta", "0/0/3.delta", "0/1/10.snapshot", "1/0/left/3_4a1c.changelog", "0/0/_metadata/9"]
    files: Any = MemoryFiles(*(f"f/state/{path}" for path in state), "f/offsets/7")
    position = SparkPosition(query_id="q", batch_id=1, offsets="o", commit="c", stateful=True)
    CheckpointFolder(cast("Files", files), "f", "archive").rewrite(position)
    assert {path for path in files.content if "/state/" in path} == {
        "f/state/0/0/2.delta",
        "f/state/0/0/_metadata/9",
    }
    assert "f/offsets/7" not in files.content
    assert "f/_rewriting" not in files.content
