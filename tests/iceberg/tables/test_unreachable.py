"""A catalog that does not answer is no defect of ours."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tautochrone.errors import EnvironmentProblemError
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model.names import TableName
from tautochrone.runtime.job.effects import DirectEffects

pytestmark = pytest.mark.spark


def test_hive_metastore_that_is_not_there(spark: SparkSession) -> None:
    session = spark.newSession()
    prefix = "spark.sql.catalog.away"
    session.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"{prefix}.type", "hive")
    session.conf.set(f"{prefix}.uri", "thrift://127.0.0.1:1")
    lake = IcebergLake(session, "away", DirectEffects())
    with pytest.raises(EnvironmentProblemError) as refused:
        lake.exists(TableName("away", ("default",), "orders"))
    assert refused.value.error_class == "CATALOG_NOT_REACHABLE"
    assert "away does not answer: Failed to connect to Hive Metastore" in str(refused.value)
