"""The testbed of the SQL tests: a pipeline and a writer of its input tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.sql.testbed import ViewTestbed


@pytest.fixture
def testbed(tmp_path: Path, spark: SparkSession) -> Iterator[ViewTestbed]:
    """Empty. Tests override it to create tables and views."""
    testbed = ViewTestbed(tmp_path, spark)
    yield testbed
    testbed.close()
