"""Events of AUTO CDC without a key or a sequence value: they stop their table, or are set aside."""

from __future__ import annotations

import json

import pytest
from tests.support.harness import Happened, Pipeline

from tautochrone.cli.main import main

pytestmark = pytest.mark.spark

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
SCHEMA = "id BIGINT, part STRING, name STRING, seq BIGINT"

@dp.table
def events():
    return spark.readStream.schema(SCHEMA).json("{input}")

@dp.temporary_view
def files():
    return spark.readStream.schema(SCHEMA).json("{input}")

TARGETS = (("newest", "events", 1), ("from_files", "files", 2))
for target, source, scd_type in TARGETS:
    dp.create_streaming_table(target)
    dp.create_auto_cdc_flow(
        target=target, source=source, keys=["id", "part"], sequence_by="seq", stored_as_scd_type=scd_type
    )
"""
TARGETS = ("newest", "from_files")
QUARANTINE = "".join(f'[flows.{name}]\nbad_records = "quarantine"\n' for name in TARGETS)


def write(pipeline: Pipeline, name: str, *events: tuple[object, ...]) -> None:
    lines = [json.dumps(dict(zip(("id", "part", "name", "seq"), event, strict=True))) for event in events]
    pipeline.write(f"input/{name}.json", "\n".join(lines))


def set_aside(happened: Happened) -> dict[str, tuple[int, str]]:
    last = (event["dataset"].rpartition(".")[2] for event in happened.of("events_set_aside"))
    said = ((e["records"], e["input"].rpartition(".")[2]) for e in happened.of("events_set_aside"))
    return dict(zip(last, said, strict=True))


def test_events_are_set_aside(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.write("definitions/p.py", DEFINITIONS.format(input=pipeline.folder / "input"))
    write(pipeline, "a", (1, "x", "Ada", 1), (2, "x", "Bo", 1))
    assert pipeline.run().state == "COMPLETED"
    # What is ingested stops the tables, and the error says how they go on.
    bad = ((1, None, "no part", 2), (None, "x", "no id", 2), (2, "x", "Bob", None))
    write(pipeline, "b", *bad, (1, "x", "Eve", 3))
    happened = pipeline.run()
    for name in TARGETS:
        assert "[AUTO_CDC_EVENT_INVALID]" in happened.failure(name)
    hints = {event["dataset"].rpartition(".")[2]: event["hint"] for event in happened.of("refresh_failed")}
    assert all(f"[flows.{name}]" in hints[name] for name in TARGETS)
    pipeline.write("tautochrone.toml", QUARANTINE)
    pipeline.reload()
    happened = pipeline.run()
    assert happened.state == "COMPLETED"
    read = {"newest": "events", "from_files": "from_files__events"}
    assert set_aside(happened) == {name: (3, table) for name, table in read.items()}
    assert pipeline.query("SELECT id, name FROM newest") == [(1, "Eve"), (2, "Bo")]
    history = pipeline.query("SELECT id, name, __START_AT FROM from_files")
    assert history == [(1, "Ada", 1), (1, "Eve", 3), (2, "Bo", 1)]
    assert [verdict.equal for verdict in pipeline.verify()] == [True, True]
    # They are counted on, also over a full refresh.
    write(pipeline, "c", (None, None, "nothing", 4), (3, "x", "Cy", 5))
    assert set_aside(pipeline.run()) == {name: (1, table) for name, table in read.items()}
    assert set_aside(pipeline.run(full=["newest"])) == {"newest": (4, "events")}
    capsys.readouterr()
    assert main(["status", "--spec", str(pipeline.folder / "spark-pipeline.yml")]) == 0
    shown = capsys.readouterr().out
    for name in TARGETS:
        assert f"lake.default.{name}: 4 events without a key or a sequence value" in shown
    # What was set aside stays so without the setting.
    pipeline.write("tautochrone.toml", "")
    pipeline.reload()
    assert pipeline.run().state == "COMPLETED"
    assert [verdict.equal for verdict in pipeline.verify()] == [True, True]


TWO_FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
dp.create_streaming_table("newest")
for name in ("first", "second"):

    @dp.temporary_view(name=f"files_of_{name}")
    def files(name=name):
        return spark.readStream.schema("id BIGINT, v BIGINT, seq BIGINT").json(f"@IN@/{name}")

    dp.create_auto_cdc_flow(
        name=name, target="newest", source=f"files_of_{name}", keys=["id"], sequence_by="seq",
        stored_as_scd_type=1,
    )
"""


def test_malformed_records_of_each_flow_are_set_aside(pipeline: Pipeline) -> None:
    """Also where another flow into the table has no such setting."""
    pipeline.write("definitions/p.py", TWO_FLOWS.replace("@IN@", str(pipeline.folder / "input")))
    for number, name in enumerate(("first", "second")):
        good = json.dumps({"id": number, "v": 1, "seq": 1})
        malformed = f'{{"id": {number}, "v": "x", "seq": 2}}'
        pipeline.write(f"input/{name}/a.json", f"{good}\n{malformed}\n")
    pipeline.write("tautochrone.toml", '[flows.second]\nbad_records = "quarantine"\n')
    pipeline.reload()
    happened = pipeline.run()
    assert happened.state == "COMPLETED"
    assert pipeline.query("SELECT id, v FROM newest") == [(0, None), (1, 1)]
    (quarantined,) = happened.of("quarantined")
    assert (quarantined["flow"], quarantined["beside"]) == ("second", "lake.default.second__quarantine")
    assert pipeline.query("SELECT flow FROM second__quarantine") == [("second",)]
    pipeline.write(
        "tautochrone.toml",
        "".join(f'[flows.{name}]\nbad_records = "quarantine"\n' for name in ("first", "second")),
    )
    pipeline.reload()
    for number, name in enumerate(("first", "second")):
        pipeline.write(f"input/{name}/b.json", f'{{"id": {number}, "v": "y", "seq": 3}}\n')
    assert pipeline.run().state == "COMPLETED"
    assert pipeline.query("SELECT id, v FROM newest") == [(0, None), (1, 1)]
    counts = "SELECT (SELECT count(*) FROM first__quarantine), (SELECT count(*) FROM second__quarantine)"
    assert pipeline.query(counts) == [(1, 2)]
