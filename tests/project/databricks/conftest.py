"""Projects in Databricks' dialect, run end to end."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline


class DialectProject:
    """A project whose texts name the folder of its input as `@IN@`."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.pipeline = Pipeline(folder, spark)
        self.inputs = folder / "in"
        self.inputs.mkdir()

    def define(self, file: str, text: str) -> None:
        self.pipeline.write(f"definitions/{file}", textwrap.dedent(text).replace("@IN@", str(self.inputs)))

    def data(self, file: str, text: str) -> None:
        """An input file; it appears in one step, because streams read it."""
        path = self.inputs / file
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"_{path.name}")
        draft.write_text(textwrap.dedent(text))
        draft.rename(path)

    def json(self, file: str, *rows: dict[str, Any]) -> None:
        self.data(file, "".join(json.dumps(row) + "\n" for row in rows))

    def build(self, **how: Any) -> Happened:
        """A run that must succeed. Rows that a first one gets wrong are still there when `run` looks."""
        happened = self.pipeline.run(**how)
        assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]
        return happened

    def run(self, **how: Any) -> Happened:
        """A run that must succeed, and whose views must be right."""
        happened = self.build(**how)
        self.verdicts = {verdict.dataset.table: verdict.equal for verdict in self.pipeline.verify()}
        return happened

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.pipeline.query(sql)


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession) -> Iterator[DialectProject]:
    project = DialectProject(tmp_path, spark)
    yield project
    project.pipeline.close()
