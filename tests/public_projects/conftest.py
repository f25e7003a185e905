"""Projects like those that people publish, each run twice."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline


class Survey:
    """A project whose texts name the folder of its input as `@IN@`."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.pipeline = Pipeline(folder, spark)
        self.inputs = folder / "in"
        self.inputs.mkdir()

    def define(self, file: str, text: str) -> None:
        """Write a definition file, or a module next to one."""
        self.pipeline.write(f"definitions/{file}", textwrap.dedent(text).replace("@IN@", str(self.inputs)))

    def forget(self, file: str) -> None:
        (self.pipeline.folder / "definitions" / file).unlink()

    def data(self, file: str, text: str) -> None:
        """Write an input file. It appears atomically, as streams require."""
        path = self.inputs / file
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"_{path.name}")
        draft.write_text(textwrap.dedent(text))
        draft.rename(path)

    def json(self, file: str, *rows: dict[str, Any]) -> None:
        self.data(file, "".join(json.dumps(row) + "\n" for row in rows))

    def build(self, **options: Any) -> Happened:
        """A run that must succeed. Rows that a first one gets wrong are still there when `run` looks."""
        happened = self.pipeline.run(**options)
        assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]
        return happened

    def run(self, **options: Any) -> Happened:
        """A run that must succeed, and whose views must be right."""
        happened = self.build(**options)
        self.verdicts = {verdict.dataset.table: verdict.equal for verdict in self.pipeline.verify()}
        return happened

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.pipeline.query(sql)


@pytest.fixture
def survey(tmp_path: Path, spark: SparkSession) -> Iterator[Survey]:
    survey_project = Survey(tmp_path, spark)
    yield survey_project
    survey_project.pipeline.close()
