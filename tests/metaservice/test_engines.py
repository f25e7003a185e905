"""Other people's engines read one checkpoint from `taut serve`, with a token, as the documentation tells."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import UnauthorizedError
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from .test_process import started

pytestmark = pytest.mark.spark

TOKEN = "a-token-that-may-read"
SETTINGS = '[meta.tokens.read]\nengines = { env = "READ_TOKEN" }\n'
EVENTS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

@dp.table
def events():
    return SparkSession.active().readStream.schema("id BIGINT").json("{input}")
"""
TOTALS = "CREATE MATERIALIZED VIEW totals AS SELECT count(*) AS n, max(id) AS newest FROM events"


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[str]:
    """A service beside a project with two checkpoints. The tests only read it."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("READ_TOKEN", TOKEN)
        pipeline = Pipeline(folder, spark, settings=SETTINGS)
        pipeline.write("definitions/events.py", EVENTS.format(input=folder / "input"))
        pipeline.write("definitions/totals.sql", TOTALS)
        for number in (1, 2):
            pipeline.write(f"input/{number}.json", json.dumps({"id": number}))
            assert pipeline.run().checkpoints == [number]
        pipeline.close()
        with started(folder) as (address, _):
            yield address


@pytest.mark.parametrize(
    ("read_point", "row"), [("checkpoint-1", (1, 1)), ("strong", (2, 2)), ("weak", (2, 2))]
)
def test_with_a_token(uri: str, spark: SparkSession, read_point: str, row: tuple[int, int]) -> None:
    lake = load_catalog("lake", type="rest", uri=uri, warehouse=read_point, token=TOKEN)
    assert lake.load_table("default.totals").scan().to_arrow().to_pylist() == [
        {"n": row[0], "newest": row[1]}
    ]
    assert lake.load_table("default.totals").scan().count() == 1

    session = spark.newSession()
    name = f"engine_{read_point.replace('-', '_')}"
    session.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in {"type": "rest", "uri": uri, "warehouse": read_point, "token": TOKEN}.items():
        session.conf.set(f"spark.sql.catalog.{name}.{key}", value)
    assert [tuple(result) for result in session.sql(f"SELECT * FROM {name}.default.totals").collect()] == [
        row
    ]
    assert session.sql(f"SELECT count(*) FROM {name}.default.events").collect()[0][0] == row[0]


@pytest.mark.parametrize("token", [None, "a-wrong-one"])
def test_without_the_right_token(uri: str, token: str | None) -> None:
    with pytest.raises(UnauthorizedError):
        load_catalog("lake", type="rest", uri=uri, warehouse="strong", **({"token": token} if token else {}))
