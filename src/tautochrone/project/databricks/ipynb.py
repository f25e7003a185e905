"""Notebooks in Jupyter's format (`.ipynb`) as definition files, cell by cell.

Cells keep their own lines, so that a message names the cell and its line: `a.ipynb#3:2`.
"""

from __future__ import annotations

import json
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.errors import DefinitionError

__all__ = ["Cell", "Magic", "Notebook", "parse_notebook"]

_METADATA = "application/vnd.databricks.v1+notebook"
_CELL_MAGIC = re.compile(r"\s*(?:%(?P<ours>md|sql|python|scala|r|sh|fs)\b|%%(?P<theirs>\w+|!))(?P<rest>.*)")
"""With `%` the commands that Databricks gives a whole cell, with `%%` any of Jupyter."""
_RUNS_ITS_CELL = frozenset({"capture", "prun", "time"})
_TIMED = re.compile(r"(\s*)%time\s+(\S.*)")
_HELP = re.compile(r"\s*%{0,2}[^\W\d][\w.]*\?{1,2}\s*")
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
    are in `magic`. A line is a magic command only where a statement begins, as for IPython.

    Args:
        text: the content of the file.
        shown: what people call the file.

    Raises:
        DefinitionError: `NOTEBOOK_UNREADABLE`, the text is no notebook or its language cannot define;
            `MAGIC_RESULT_NOT_SUPPORTED`, code takes the result of a magic command.

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
        code = _code(source, language, number, magic, shown)
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


def _code(source: str, language: str, number: int, magic: list[Magic], shown: str) -> str:
    lines = source.split("\n")
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return ""
    command = _CELL_MAGIC.fullmatch(lines[first])
    if command is not None:
        name = command["ours"] or command["theirs"]
        if name == language:
            lines[first] = command["rest"]
        elif language == "python" and name in _RUNS_ITS_CELL:
            lines[first] = ""
        else:
            if name != "md":
                magic.append(Magic(number, first + 1, lines[first].strip()))
            return ""
    if language == "python":
        return "\n".join(_python_lines(lines, number, magic, shown))
    if lines[first].lstrip().startswith("%"):
        # A statement of SQL cannot begin so: `%pip install x`.
        magic.append(Magic(number, first + 1, lines[first].strip()))
        return ""
    return "\n".join(lines)


def _python_lines(lines: Sequence[str], number: int, magic: list[Magic], shown: str) -> list[str]:
    """The lines of a cell, without its magic commands."""
    text = next((line for line in lines if line.strip()), "")
    # IPython takes the indentation of the first line from all.
    code = [line.removeprefix(_indentation(text)) for line in lines]
    while (row := _first_magic(code, f"{shown}#{number}")) is not None:
        line = code[row]
        timed = _TIMED.fullmatch(line)
        if timed is not None:
            code[row] = timed[1] + timed[2]
            continue
        magic.append(Magic(number, row + 1, line.strip()))
        # A block of magic commands alone stays a block.
        code[row] = f"{_indentation(line)}pass" if line[:1].isspace() else ""
        while line.rstrip("\r").endswith("\\") and row + 1 < len(code):
            row += 1
            line, code[row] = code[row], ""
    return code


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _first_magic(lines: Sequence[str], cell: str) -> int | None:
    """The index of the first line where a statement would begin and a magic command does.

    Raises:
        DefinitionError: `MAGIC_RESULT_NOT_SUPPORTED`, before it code takes the result of one.
    """
    text = iter([f"{line}\n" for line in lines])
    begins, depth, before = True, 0, ""
    try:
        for token in tokenize.generate_tokens(lambda: next(text, "")):
            row = token.start[0] - 1
            if token.type == tokenize.NEWLINE:
                begins = True
            elif token.string.strip() and token.type != tokenize.COMMENT:
                if begins and (token.string in ("%", "!", "?") or _HELP.fullmatch(lines[row])):
                    return row
                if before == "=" and token.string in ("%", "!") and depth == 0:
                    raise _result_error(lines[row].strip(), f"{cell}:{row + 1}")
                depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
                begins, before = False, token.string
    except (tokenize.TokenError, SyntaxError):
        # The compiler says what is wrong, and where.
        pass
    return None


def _result_error(line: str, location: str) -> DefinitionError:
    return DefinitionError(
        "MAGIC_RESULT_NOT_SUPPORTED",
        f"The code takes the result of a magic command: {line}",
        location=location,
        sqlstate="0A000",
        hint="Magic commands do not run here: compute the value in Python.",
    )


def _unreadable_error(shown: str, why: str) -> DefinitionError:
    return DefinitionError(
        "NOTEBOOK_UNREADABLE",
        f"The notebook cannot be a definition file: {why}",
        location=shown,
        hint="Save it as a notebook in Python or SQL, or move it out of the folder that `libraries` names.",
        sqlstate="42000",
    )
