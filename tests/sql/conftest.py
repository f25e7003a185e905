"""The stand of the SQL tests: a pipeline and a writer of its input tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.sql.stand import Stand


@pytest.fixture
def stand(tmp_path: Path, spark: SparkSession) -> Iterator[Stand]:
    """Empty. Tests override it to create tables and views."""
    stand = Stand(tmp_path, spark)
    yield stand
    stand.close()
