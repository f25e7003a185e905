"""Which tables take the bad records of AUTO CDC flows, and which settings are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tautochrone.errors import DefinitionError, SettingsError
from tautochrone.model.names import TableName
from tautochrone.model.source import BadRecords
from tautochrone.project.analyse import analyse
from tautochrone.project.graph import Graph
from tautochrone.project.loading import with_quarantines
from tautochrone.project.settings import BadRecordsSetting
from tautochrone.runtime.streams.flow_settings import check_bad_records

from .conftest import ProjectMaker

pytestmark = pytest.mark.spark

Name = Callable[[str], TableName]

FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
SCHEMA = "id BIGINT, seq BIGINT"

@dp.table
def stored():
    return spark.readStream.schema(SCHEMA).parquet("@IN@")

@dp.temporary_view
def once():
    return spark.readStream.schema(SCHEMA).json("@IN@")

@dp.temporary_view
def twice():
    rows = spark.readStream.schema(SCHEMA).json("@IN@")
    return rows.union(rows.where("id > 5"))

@dp.temporary_view
def parquet():
    return spark.readStream.schema(SCHEMA).parquet("@IN@")

@dp.temporary_view
def in_ranges():
    return spark.readStream.schema(SCHEMA).csv("@IN@").repartitionByRange("id")

SOURCES = {"users": ("once", "parquet", "twice", "in_ranges"), "stored_users": ("stored",)}
for target in SOURCES:
    dp.create_streaming_table(target)
    for source in SOURCES[target]:
        name = target if source == "once" else f"of_{source}"
        dp.create_auto_cdc_flow(
            name=name, target=target, source=source, keys=["id"], sequence_by="seq", stored_as_scd_type=1
        )
"""


def quarantining(*flows: str) -> Mapping[str, BadRecordsSetting]:
    return {flow: BadRecordsSetting(BadRecords.QUARANTINE, "tautochrone.toml:2") for flow in flows}


def analysed(project: ProjectMaker, *flows: str, more: str = "") -> Graph:
    (project.folder / "in").mkdir(exist_ok=True)
    text = (FLOWS + more).replace("@IN@", str(project.folder / "in"))
    definitions = with_quarantines(project.load({"defs/a.py": text}), quarantining(*flows))
    return analyse(definitions, project.spark, "lake", lambda _: None)


def test_each_flow_of_auto_cdc_has_its_own_table(project: ProjectMaker, name: Name) -> None:
    graph = analysed(project, "users", "of_parquet", "of_stored")
    tables = {
        table.table: dataset.bad_records_of
        for table, dataset in graph.definitions.datasets.items()
        if dataset.bad_records_of is not None
    }
    assert tables == {
        "users__quarantine": name("users__events"),
        "of_parquet__quarantine": name("of_parquet__events"),
    }
    assert {name(table) for table in tables} <= set(graph.order)


def test_flows_of_auto_cdc_whose_records_cannot_be_set_aside_are_refused(project: ProjectMaker) -> None:
    flows = {
        "users": None,
        "of_parquet": None,
        "of_stored": None,
        "of_twice": "the same files more than once",
        "of_in_ranges": "into ranges",
    }
    graph = analysed(project, *flows)
    for flow, why in flows.items():
        if why is None:
            check_bad_records(quarantining(flow), graph)
            continue
        with pytest.raises(SettingsError, match="QUARANTINE_NOT_SUPPORTED") as caught:
            check_bad_records(quarantining(flow), graph)
        assert why in caught.value.message


def test_a_name_that_two_quarantine_tables_would_have_is_refused(project: ProjectMaker) -> None:
    more = """
dp.create_streaming_table("of_parquet")

@dp.append_flow(target="of_parquet", name="more")
def more():
    return spark.readStream.schema(SCHEMA).json("@IN@")
"""
    with pytest.raises(DefinitionError, match="QUARANTINE_NAME_TAKEN"):
        analysed(project, "of_parquet", "more", more=more)
