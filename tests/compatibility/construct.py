"""What is compared: a small project, and what each of the two engines made of it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql.types import VariantVal

_CLASS = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]")
_EXCEPTION = re.compile(r"(\w+): ")

SPEC = """\
name: shop
storage: file://@PROJECT@/storage
libraries:
  - glob:
      include: definitions/**
"""
SAME_ROWS = "same rows"
SAME_REFUSAL = "same refusal"
OTHER_CLASS = "both refuse"
ONLY_TAUT = "only taut runs it"
ONLY_VANILLA = "only Spark runs it"
OTHER_ROWS = "other rows"
"""The verdicts. All but the first two need an entry in `suite.remarks`."""

SAME = (SAME_ROWS, SAME_REFUSAL)


@dataclass(frozen=True)
class Construct:
    """A project of one construct.

    Args:
        name: the folder's name; its first word is the chapter.
        title: what it shows, in the table of the documentation.
        files: definition files and others, by their paths in the project. In every text `@PROJECT@` is the
            project's folder.
        inputs: for each run, the files that appear before it below `in`.
        datasets: the tables to compare, as SQL names.
        outputs: folders of files to compare, by their paths in the project, with their format.
        arguments: of the last run, such as `--full-refresh a`.
        prepare: SQL that Spark's own pipelines need before the run. `taut` gets it only where
            `prepare_both` says so.
    """

    name: str
    title: str
    files: dict[str, str]
    datasets: tuple[str, ...] = ()
    inputs: tuple[dict[str, str], ...] = ({},)
    spec: str = SPEC
    outputs: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    prepare_both: bool = False
    command: str = "run"

    @property
    def chapter(self) -> str:
        return self.name.split("_")[0]

    def write(self, folder: Path) -> None:
        """Create the project, without its inputs."""
        for path, text in {"spark-pipeline.yml": self.spec, **self.files}.items():
            _write(folder / path, text, folder)
        (folder / "in").mkdir(parents=True, exist_ok=True)

    def add_inputs(self, folder: Path, number: int) -> None:
        """Create the files that appear before a run. They appear atomically, as streams require."""
        for path, text in self.inputs[number].items():
            target = folder / "in" / path
            draft = target.with_name(f"_{target.name}")
            _write(draft, text, folder)
            draft.rename(target)

    def arguments_of(self, number: int) -> tuple[str, ...]:
        """Of one of its runs, by its number from 0."""
        return self.arguments if number == len(self.inputs) - 1 else ()


@dataclass(frozen=True)
class Table:
    """The rows of a dataset, in no order, as text."""

    columns: str
    rows: tuple[str, ...]

    @classmethod
    def of(cls, columns: str, rows: Iterable[Iterable[object]]) -> Table:
        return cls(columns, tuple(sorted(repr(tuple(map(_plain, row))) for row in rows)))


@dataclass(frozen=True)
class Outcome:
    """What an engine made of a construct."""

    tables: dict[str, Table] = field(default_factory=dict)
    error: str = ""

    @property
    def error_class(self) -> str:
        """Of the text: `[CLASS] sentence`, also in the middle, or the type of an exception of Python."""
        match = _CLASS.search(self.error) or _EXCEPTION.match(self.error)
        return match.group(1) if match else ""


def compare(vanilla: Outcome, taut: Outcome) -> str:
    """The verdict over a construct."""
    if vanilla.error and taut.error:
        # Exceptions of Python have no class; `taut` names their type in its text.
        is_same = vanilla.error_class == taut.error_class or f" {vanilla.error_class}:" in taut.error
        return SAME_REFUSAL if is_same else OTHER_CLASS
    if vanilla.error:
        return ONLY_TAUT
    if taut.error:
        return ONLY_VANILLA
    return SAME_ROWS if vanilla.tables == taut.tables else OTHER_ROWS


def _plain(value: object) -> object:
    """The value in a form that does not tell which client read it."""
    return value.toJson() if isinstance(value, VariantVal) else value


def _write(path: Path, text: str, folder: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).replace("@PROJECT@", str(folder)), "utf-8")
