"""Names with any characters, of pipelines, jobs, flows, datasets, columns and folders, end to end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

pytestmark = pytest.mark.spark

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import functions as F

NAMES = {names!r}
TABLE, VIEW, COPY = ("`" + name.replace("`", "``") + "`" for name in NAMES["datasets"])
COLUMN = "`" + NAMES["column"].replace("`", "``") + "`"

FLOW = "`" + NAMES["flow"].replace("`", "``") + "`"

dp.create_streaming_table(TABLE)


@dp.append_flow(target=TABLE, name=FLOW)
def rows():
    raw = spark.readStream.schema("id INT, v INT").json(NAMES["input"])
    return raw.select("id", F.col("v").alias(NAMES["column"]))


@dp.materialized_view(name=VIEW)
def view():
    return spark.read.table(TABLE).groupBy(COLUMN).count()


@dp.table(name=COPY)
def copy():
    return spark.readStream.table(TABLE).where(COLUMN + " > 1")
"""


@dataclass(frozen=True)
class Names:
    pipeline: str = "orders"
    flow: str = "rows"
    datasets: tuple[str, str, str] = ("source", "per_value", "copy")
    column: str = "v"
    folder: str = "project"


def run_with(hostile: Names, folder: Path, spark: SparkSession) -> None:
    project = folder / hostile.folder
    project.mkdir(parents=True)
    spec = {
        "name": hostile.pipeline,
        "storage": "storage",
        "libraries": [{"glob": {"include": "definitions/**"}}],
    }
    pipeline = Pipeline(project, spark, spec=json.dumps(spec))
    values = {
        "flow": hostile.flow,
        "datasets": hostile.datasets,
        "column": hostile.column,
        "input": str(folder / "in"),
    }
    pipeline.write("definitions/all.py", DEFINITIONS.format(names=values))
    source, view, copy = (f"default.`{name.replace('`', '``')}`" for name in hostile.datasets)
    column = f"`{hostile.column.replace('`', '``')}`"
    try:
        pipeline.write("../in/1.json", '{"id": 1, "v": 2}\n{"id": 2, "v": 1}\n')
        assert pipeline.run().state == "COMPLETED"
        pipeline.write("../in/2.json", '{"id": 3, "v": 2}\n')
        assert pipeline.run().state == "COMPLETED"
        assert pipeline.query(f"SELECT id, {column} FROM {source}") == [(1, 2), (2, 1), (3, 2)]
        assert pipeline.query(f"SELECT {column}, count FROM {view}") == [(1, 1), (2, 2)]
        assert pipeline.query(f"SELECT id, {column} FROM {copy}") == [(1, 2), (3, 2)]
        pipeline.verify()
    finally:
        pipeline.close()


HOSTILE = [
    "my first", "a|b", "a/b", "50% off", "%2F", "quote'd", 'double"d', "back`tick", "größe", "日本",
    "e\u0301", "back\\slash", "#1", "a+b=c&d", "$x{y}", "a:b", "-", "a*b", "tab\tbed", "a,b", "-- /* c */",
    "UPPER", "[0]", "{0}", "~", "NULL", "select",
]  # fmt: skip
CHARACTERS = "aZ0 _-|/%'\"`äß日#+=&$(){}[]:;,*?!~^<>@\\\t\u0301\U0001f600"


def names(characters: str = CHARACTERS, longest: int = 20) -> st.SearchStrategy[str]:
    """Names without blanks at their ends, and now and then a very long one. Spark's parser replaces `${…}`
    in any text by a setting."""
    short = st.text(characters, min_size=1, max_size=longest)
    known = st.sampled_from(HOSTILE)
    return (short | known | st.just("x" * 200)).filter(lambda name: name == name.strip() and "${" not in name)


FOLDERS = names(CHARACTERS.replace("?", "")).filter(lambda name: "/" not in name)


@st.composite
def hostile_names(draw: st.DrawFn) -> Names:
    flow, *tables = (draw(names()) for _ in range(4))
    source, view, copy = tables
    # A flow and a table may not share a name, whatever the case of its letters.
    return Names(
        draw(names()), f"f{flow}", (f"s{source}", f"v{view}", f"c{copy}"), draw(names()), draw(FOLDERS)
    )


def check(hostile: Names, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> None:
    run_with(hostile, tmp_path_factory.mktemp("hostile"), spark)


@settings(deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit])
@given(hostile=hostile_names())
@example(hostile=Names("a|b", "back`tick", ("the source", "quote'd", "50% off"), "größe in %", "a folder"))
def test_any_name_works(
    hostile: Names, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> None:
    check(hostile, tmp_path_factory, spark)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(hostile=hostile_names())
def test_any_name_works_wide(
    hostile: Names, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> None:
    check(hostile, tmp_path_factory, spark)
