"""Cells of exported notebooks that are comments here and would be code on Databricks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tautochrone.model.definitions import SourceLocation
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.definitions import DefinitionWarning

__all__ = ["magic_warnings"]

_MAGIC = re.compile(r"^(?:#|--)\s*MAGIC\s+(%(?:run|sql|python|pip|sh|fs|scala|r)\b.*)$")


def magic_warnings(file: Path, shown: str) -> Iterator[DefinitionWarning]:
    """A warning for each cell with a magic command that runs something.

    Args:
        file: a definition file.
        shown: what people call it.
    """
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        match = _MAGIC.match(line)
        if match is not None:
            reason = Reason.of(
                ReasonCode.CLAUSE_IGNORED, statement="a notebook cell", clause=match[1].strip()
            )
            yield DefinitionWarning(SourceLocation(shown, number), reason)
