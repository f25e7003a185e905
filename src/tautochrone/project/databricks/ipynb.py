"""Notebooks in Jupyter's format (`.ipynb`) as definition files, cell by cell.

Cells keep their own lines, so that a message names the cell and its line: `a.ipynb#3:2`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import DefinitionError

__all__ = ["Cell", "Magic", "Notebook", "parse_notebook"]

_METADATA = "application/vnd.databricks.v1+notebook"
_CELL_MAGIC = re.compile(r"\s*(%{1,2}(?:md|md-sandbox|sql|python|scala|r|sh|fs|run)\b)(.*)")
_LINE_MAGIC = re.compile(r"\s*(?:%\w|!(?!=))")
_LANGUAGES = ("python", "sql")


@dataclass(frozen=True, slots=True)
class Magic:
    """A magic command without effect: the number of its cell, its line there, its text."""

    cell: int
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Cell:
    """The code of a cell; lines that are no code are blank. `number` counts all cells from 1."""

    number: int
    code: str


@dataclass(frozen=True, slots=True)
class Notebook:
    """What a notebook defines with: its `language` is `python` or `sql`."""

    language: str
    cells: tuple[Cell, ...]
    magic: tuple[Magic, ...]


def parse_notebook(text: str, shown: str) -> Notebook:
    """The code of a notebook's own language.

    Cells of other languages do not run in a pipeline of Databricks either; those that would run something
    are in `magic`.

    Args:
        text: the content of the file.
        shown: what people call the file.

    Raises:
        DefinitionError: `NOTEBOOK_UNREADABLE`, the text is no notebook or its language cannot define.

    >>> cell = {"cell_type": "code", "source": ["%pip install x\\n", "import dlt"]}
    >>> parse_notebook(json.dumps({"cells": [cell]}), "a.ipynb").cells
    (Cell(number=1, code='\\nimport dlt'),)
    """
    try:
        notebook = json.loads(text)
        language = _language(notebook.get("metadata", {}))
        sources = [_source(cell) for cell in notebook["cells"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unreadable_error(shown, "It is no notebook of the format 4") from error
    if language not in _LANGUAGES:
        raise _unreadable_error(shown, f"Its language is {language}")
    cells: list[Cell] = []
    magic: list[Magic] = []
    for number, source in enumerate(sources, 1):
        code = _code(source, language, number, magic)
        if code.strip():
            cells.append(Cell(number, code))
    return Notebook(language, tuple(cells), tuple(magic))


def _language(metadata: dict[str, Any]) -> str:
    by_key = (
        metadata.get(_METADATA, {}).get("language"),
        metadata.get("language_info", {}).get("name"),
        metadata.get("kernelspec", {}).get("language"),
    )
    return str(next((name for name in by_key if name), "python")).lower()


def _source(cell: dict[str, Any]) -> str:
    """The text of a code cell; empty for other cells."""
    if cell["cell_type"] != "code":
        return ""
    source: str | Sequence[str] = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _code(source: str, language: str, number: int, magic: list[Magic]) -> str:
    lines = source.split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return ""
    command = _CELL_MAGIC.fullmatch(lines[first])
    if command is not None:
        of_cell = command[1].lstrip("%")
        if of_cell != language:
            if not of_cell.startswith("md"):
                magic.append(Magic(number, first + 1, lines[first].strip()))
            return ""
        lines[first] = command[2]
    if language == "python":
        for index, line in enumerate(lines):
            if _LINE_MAGIC.match(line):
                magic.append(Magic(number, index + 1, line.strip()))
                # A block of magic commands alone stays a block.
                lines[index] = line[: len(line) - len(line.lstrip())] + "pass" if line[:1].isspace() else ""
    return "\n".join(lines)


def _unreadable_error(shown: str, why: str) -> DefinitionError:
    return DefinitionError(
        "NOTEBOOK_UNREADABLE",
        f"The notebook cannot be a definition file: {why}",
        location=shown,
        hint="Save it as a notebook in Python or SQL, or move it out of the folder that `libraries` names.",
        sqlstate="42000",
    )
