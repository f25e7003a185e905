"""An Iceberg REST catalog as the lake: the port's conformance suites, and a project that configures it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.iceberg.rest_service import rest_service
from tests.runtime.commands import taut_in_process
from tests.support.harness import Pipeline
from tests.support.lake_conformance import LakeConformance
from tests.support.maintenance_conformance import MaintenanceConformance

from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.iceberg.sessions.spark_sessions import lake_conf
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.runtime.job.effects import DirectEffects

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPEC = """\
name: shop
storage: storage
catalog: prod
configuration:
  spark.sql.catalog.prod: org.apache.iceberg.spark.SparkCatalog
  spark.sql.catalog.prod.type: rest
  spark.sql.catalog.prod.uri: {address}
libraries:
  - glob: {{include: definitions/**}}
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_service(tmp_path_factory.mktemp("rest")) as address:
        yield address


def rest_session(spark: SparkSession, address: str) -> SparkSession:
    session = spark.newSession()
    for key in [key for key in session.conf.getAll if key.startswith("spark.sql.catalog.lake")]:
        session.conf.unset(key)
    for key, value in lake_conf(CatalogSettings("lake", {"type": "rest", "uri": address})).items():
        session.conf.set(key, value)
    session.sql("CREATE NAMESPACE IF NOT EXISTS lake.conformance")
    return session


class TestRest(LakeConformance):
    """All behaviours of the port."""

    @pytest.fixture
    def spark(self, spark: SparkSession, address: str) -> SparkSession:
        return rest_session(spark, address)

    @pytest.fixture
    def lake(self, spark: SparkSession) -> IcebergLake:
        return IcebergLake(spark, "lake", DirectEffects())


class TestRestMaintenance(MaintenanceConformance):
    """Expiry, compaction and orphans."""

    @pytest.fixture
    def spark(self, spark: SparkSession, address: str) -> SparkSession:
        return rest_session(spark, address)

    @pytest.fixture
    def lake(self, spark: SparkSession) -> IcebergLake:
        return IcebergLake(spark, "lake", DirectEffects())


def test_project_configures_a_rest_catalog(tmp_path: Path, spark: SparkSession, address: str) -> None:
    pipeline = Pipeline(tmp_path, spark, spec=SPEC.format(address=address))
    pipeline.write("in/1.json", '{"id": 1, "kind": "a"}\n{"id": 2, "kind": "b"}\n')
    pipeline.write(
        "definitions/a.py",
        f"""
        from pyspark import pipelines as dp

        @dp.table
        def orders():
            return spark.readStream.schema("id BIGINT, kind STRING").json("{tmp_path}/in")
        """,
    )
    pipeline.write(
        "definitions/b.sql",
        "CREATE MATERIALIZED VIEW totals AS "
        "SELECT kind, count(*) AS n FROM prod.default.orders GROUP BY kind",
    )
    assert pipeline.run().state == "COMPLETED"
    pipeline.write("in/2.json", '{"id": 3, "kind": "b"}\n')
    assert pipeline.run().state == "COMPLETED"
    assert pipeline.query("SELECT * FROM totals") == [("a", 1), ("b", 2)]
    assert pipeline.query("SELECT * FROM totals", checkpoint=1) == [("a", 1), ("b", 1)]
    pipeline.verify()
    # A plan over a column that the streaming table gets, which no other server serves.
    orders = (tmp_path / "definitions/a.py").read_text()
    pipeline.write("definitions/a.py", orders.replace("kind STRING", "kind STRING, note STRING"))
    pipeline.write(
        "definitions/b.sql",
        "CREATE MATERIALIZED VIEW totals AS "
        "SELECT kind, 2 * count(*) AS n, max(note) AS note FROM prod.default.orders GROUP BY kind",
    )
    pipeline.reload()
    built = taut_in_process(tmp_path, pipeline.session, "plan", "--build", "--json")
    assert built.returncode == 0, built.stderr
    identity = json.loads(built.stdout.splitlines()[-1])["build"]
    done = taut_in_process(tmp_path, pipeline.session, "apply", identity)
    assert done.returncode == 0, done.stderr
    assert pipeline.query("SELECT * FROM totals") == [("a", 2, None), ("b", 4, None)]
    assert pipeline.run().state == "COMPLETED"
    pipeline.verify()
    pipeline.close()
