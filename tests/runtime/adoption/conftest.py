"""One real `spark-pipelines` project; every test starts from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from .world import Built, Original


@pytest.fixture(scope="session")
def original(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("adopt") / "shop", spark)


@pytest.fixture
def built(original: Original) -> Iterator[Built]:
    project = original.again()
    yield project
    project.pipeline.close()
