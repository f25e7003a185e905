"""The project's folder in texts: a clone of a project in another folder has the same definitions."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["ProjectFolder"]

_PLACEHOLDER = "\0project\0"


class ProjectFolder:
    """Leaves a project's folder out of texts.

    Attributes:
        path: the folder, if a text had it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        # `/data/p` is not in `/data/p2` and `/data/p.old`.
        self._pattern = re.compile(re.escape(self._folder) + r"(?![\w.-])")
        self.path = ""

    def left_out(self, text: str) -> str:
        """The text with a mark in place of the folder."""
        if self._folder == "/" or self._folder not in text:
            return text
        result, count = self._pattern.subn(_PLACEHOLDER, text)
        if count:
            self.path = self._folder
        return result
