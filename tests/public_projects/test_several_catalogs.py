"""Datasets whose names begin with other catalogs than the lake's."""

from __future__ import annotations

import pytest

from tautochrone.errors import DefinitionError

from .conftest import Survey

pytestmark = pytest.mark.spark

BRONZE = """
from pyspark import pipelines as dp


@dp.table(name="bronze.sales.orders")
def orders():
    return spark.readStream.schema("id BIGINT, amount INT").json("@IN@/orders")


@dp.materialized_view(name="silver.sales.orders")
def clean():
    return spark.read.table("bronze.sales.orders").where("amount > 0")
"""
GOLD = """
CREATE VIEW gold.sales.large AS SELECT id FROM silver.sales.orders WHERE amount > 5;
CREATE MATERIALIZED VIEW gold.sales.total AS
SELECT sum(o.amount) AS amount, count(l.id) AS large
FROM silver.sales.orders o LEFT JOIN gold.sales.large l USING (id);
"""
SETTINGS = """
spark.sql.catalog.gold: org.apache.iceberg.spark.SparkCatalog
spark.sql.catalog.gold.type: hadoop
spark.sql.catalog.gold.warehouse: gold
"""


def test_catalogs_without_settings_are_databases_of_the_lake(survey: Survey) -> None:
    survey.define("bronze.py", BRONZE)
    survey.define("gold.sql", GOLD)
    survey.json("orders/1.json", {"id": 1, "amount": 3}, {"id": 2, "amount": 7}, {"id": 3, "amount": -1})
    mapped = {event["catalog"]: event for event in survey.build().of("catalog_mapped")}
    assert set(mapped) == {"bronze", "silver", "gold"}
    assert mapped["gold"]["location"] == "definitions/gold.sql:2"
    assert {event["reason_code"] for event in mapped.values()} == {"CATALOG_MAPPED"}
    survey.json("orders/2.json", {"id": 4, "amount": 6})
    survey.build()
    assert survey.rows("SELECT * FROM gold.sales.total") == [(16, 2)]
    assert survey.rows("SELECT id FROM gold.sales.large ORDER BY id") == [(2,), (4,)]
    assert survey.rows("SELECT count(*) FROM lake.bronze.sales.orders") == [(4,)]


def test_configured_catalog_is_mapped_when_asked(survey: Survey) -> None:
    survey.define("gold.sql", "CREATE MATERIALIZED VIEW gold.sales.two AS SELECT 2 AS n")
    conf = "".join(f'"{key}" = "{value}"\n' for key, value in _settings())
    survey.pipeline.write("tautochrone.toml", f"[spark.conf]\n{conf}")
    with pytest.raises(DefinitionError) as caught:
        survey.pipeline.run()
    assert caught.value.error_class == "SEVERAL_CATALOGS"
    assert 'mapped_catalogs = ["gold"]' in str(caught.value.hint)
    survey.pipeline.write("tautochrone.toml", f'[lake]\nmapped_catalogs = ["gold"]\n[spark.conf]\n{conf}')
    ignored = survey.build().of("setting_ignored")
    assert [(event["setting"], event["reason_code"]) for event in ignored] == [
        ("spark.sql.catalog.gold", "CATALOG_MAPPED")
    ]
    assert survey.rows("SELECT * FROM lake.gold.sales.two") == [(2,)]


def test_setting_forbids_other_catalogs(survey: Survey) -> None:
    survey.define("gold.sql", "CREATE MATERIALIZED VIEW gold.sales.two AS SELECT 2 AS n")
    survey.pipeline.write("tautochrone.toml", '[lake]\nother_catalogs = "fail"\n')
    with pytest.raises(DefinitionError) as caught:
        survey.pipeline.run()
    assert caught.value.error_class == "SEVERAL_CATALOGS"
    assert caught.value.location == "definitions/gold.sql:1"


def _settings() -> list[tuple[str, str]]:
    pairs = (line.split(": ") for line in SETTINGS.strip().splitlines())
    return [(key, value) for key, value in pairs]
