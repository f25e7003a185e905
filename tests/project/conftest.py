"""Writing small projects and resolving them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError
from tautochrone.model.names import TableName
from tautochrone.project.analyse import analyse
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph
from tautochrone.project.loading import load_definitions
from tautochrone.project.spec import load_spec


def lake(text: str) -> TableName:
    """`x` or `db.x` in the lake."""
    parts = text.split(".")
    return TableName("lake", tuple(parts[:-1]) or ("default",), parts[-1])


class ProjectMaker:
    """Writes files and loads or resolves them; paths of files are below the project's folder."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder = folder
        self.spark = spark
        self.external: dict[TableName, StructType] = {}

    def write(self, files: Mapping[str, str], spec: str = "") -> None:
        header = "name: test\nstorage: storage\nlibraries:\n  - glob:\n      include: defs/**\n"
        (self.folder / "spark-pipeline.yml").write_text(header + textwrap.dedent(spec))
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def load(self, files: Mapping[str, str], spec: str = "") -> Definitions:
        self.write(files, spec)
        return load_definitions(load_spec(self.folder / "spark-pipeline.yml"), self.spark)

    def graph(self, files: Mapping[str, str], spec: str = "") -> Graph:
        return analyse(self.load(files, spec), self.spark, "lake", self.external.get)

    def error(self, files: Mapping[str, str], spec: str = "") -> DefinitionError:
        with pytest.raises(DefinitionError) as caught:
            self.graph(files, spec)
        return caught.value

    def sql(self, text: str, spec: str = "") -> Graph:
        return self.graph({"defs/a.sql": text}, spec)

    def sql_error(self, text: str) -> DefinitionError:
        return self.error({"defs/a.sql": text})

    def python(self, text: str, spec: str = "") -> Graph:
        return self.graph(
            {"defs/a.py": "from pyspark import pipelines as dp\n" + textwrap.dedent(text)}, spec
        )

    def python_error(self, text: str) -> DefinitionError:
        return self.error({"defs/a.py": "from pyspark import pipelines as dp\n" + textwrap.dedent(text)})


@pytest.fixture
def project(tmp_path: Path, spark: SparkSession) -> ProjectMaker:
    return ProjectMaker(tmp_path, spark)


@pytest.fixture
def name() -> Callable[[str], TableName]:
    return lake


def schema_of(ddl: str) -> StructType:
    return StructType.fromDDL(ddl)
