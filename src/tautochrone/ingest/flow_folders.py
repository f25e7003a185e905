"""The checkpoint folders of one flow: each owner of the job runs the flow's query in a folder of its own.

    <flow>/<generation>-<fence>-<token>     ours: the job's fence, and a token that no other process has
    <flow>/<generation>                     Spark's own pipelines, and releases that had one folder for all

A full refresh begins a new generation. An owner that was paused, and wakes up when a newer one exists, only
writes where nobody reads. What the newer one needs of an older folder it takes before its query starts: the
state under a new name, where the sources began as a copy; all else comes from the table's position.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tautochrone.ingest.checkpoint_folder import CheckpointFolder, Files

__all__ = ["FlowCheckpointFolders", "FolderName"]

_NAME = re.compile(r"(\d+)(?:-(\d+)-([0-9a-z]+))?")


@dataclass(frozen=True, slots=True, order=True)
class FolderName:
    """The name of a flow's folder. A fence of 0 is that of a folder without an owner.

    >>> str(FolderName.parse("0-12-3f9a"))
    '0-12-3f9a'
    >>> FolderName.parse("1").fence
    0
    """

    generation: int
    fence: int = 0
    token: str = ""

    @classmethod
    def parse(cls, text: str) -> FolderName | None:
        """None for what is no folder of a query."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(int(match[1]), int(match[2] or 0), match[3] or "")

    def __str__(self) -> str:
        return f"{self.generation}-{self.fence}-{self.token}" if self.token else str(self.generation)


class FlowCheckpointFolders:
    """The checkpoint folders of one flow: the owner's own, and those of older owners.

    Args:
        root: the flow's folder; its queries' folders are in it.
        archives: what its sources remember is archived in this one, by generation.
        fence: of the job; 0 for who only reads.
        fresh: a new generation begins.
    """

    def __init__(
        self, files: Files, root: str, archives: str, *, fence: int = 0, token: str = "", fresh: bool = False
    ) -> None:
        self._files = files
        self._root = root
        self._archives = archives
        # A folder may be gone while its archive still exists.
        archived = (FolderName.parse(name) for name in files.names(archives))
        names = [*self._names(), *(name for name in archived if name is not None)]
        newest = max((name.generation for name in names), default=-1)
        self._own = FolderName(newest + 1 if fresh else max(newest, 0), fence, token)

    @property
    def own(self) -> CheckpointFolder:
        return self._folder(self._own)

    @property
    def without_owner(self) -> CheckpointFolder:
        """Where Spark's own pipelines run the flow."""
        return self._folder(FolderName(self._own.generation))

    @property
    def root(self) -> str:
        return self._root

    def highest_fence(self) -> int:
        """The highest fence of all owners that have a folder here; 0 if none has."""
        return max((name.fence for name in self._names()), default=0)

    def older(self) -> list[CheckpointFolder]:
        """The folders of older owners in this generation, the newest first. Never one with the same fence:
        which of two processes with one fence is older is not known."""
        return [self._folder(name) for name in self._older() if name.generation == self._own.generation]

    @property
    def has_leftovers(self) -> bool:
        """Whether there are folders of older owners. They are not needed once `own` is complete."""
        return bool(self._older())

    def delete_leftovers(self) -> None:
        for name in self._older():
            self._files.delete(f"{self._root}/{name}")

    def _older(self) -> list[FolderName]:
        return sorted((name for name in self._names() if name.fence < self._own.fence), reverse=True)

    def _folder(self, name: FolderName) -> CheckpointFolder:
        return CheckpointFolder(self._files, f"{self._root}/{name}", f"{self._archives}/{name.generation}")

    def _names(self) -> Sequence[FolderName]:
        names = (FolderName.parse(text) for text in self._files.names(self._root))
        return [name for name in names if name is not None]
