"""The sample project that `taut init` writes: word for word what `spark-pipelines init` writes."""

from __future__ import annotations

from pathlib import Path

from tautochrone.errors import SpecError

__all__ = ["init_project"]

_SPEC = """
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""

_PYTHON = """from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()

@dp.materialized_view
def example_python_materialized_view() -> DataFrame:
    return spark.range(10)
"""

_SQL = """CREATE MATERIALIZED VIEW example_sql_materialized_view AS
SELECT id FROM example_python_materialized_view
WHERE id % 2 = 0
"""


def init_project(folder: Path, name: str) -> Path:
    """Write the sample as `folder/name` and return that path.

    Raises:
        SpecError: PROJECT_ALREADY_EXISTS, the directory is there.
    """
    project = folder / name
    if project.exists():
        raise SpecError(
            "PROJECT_ALREADY_EXISTS",
            f"Directory `{name}` already exists.",
            hint="Choose a different name or remove the existing directory.",
            location=str(project),
        )
    storage = project / "pipeline-storage"
    transformations = project / "transformations"
    storage.mkdir(parents=True)
    transformations.mkdir()
    spec = _SPEC.format(name=name, storage=f"file://{storage.resolve()}")
    (project / "spark-pipeline.yml").write_text(spec, encoding="utf-8")
    (transformations / "example_python_materialized_view.py").write_text(_PYTHON, encoding="utf-8")
    (transformations / "example_sql_materialized_view.sql").write_text(_SQL, encoding="utf-8")
    return project
