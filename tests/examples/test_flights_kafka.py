"""The flights as records: their content, and that definitions over topics agree with those over files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from examples.flights.avro import encode
from examples.flights.produce import broken, observations, reports
from examples.flights.replay import Drop, drops

from .conftest import ROOT, TRANSFORMATIONS

OVER_KAFKA = ROOT / "examples" / "flights" / "over_kafka"


@pytest.fixture(scope="module")
def days() -> list[Drop]:
    return list(drops(days=3))


def test_reports_are_those_of_the_files(days: list[Drop]) -> None:
    rows = next(drop.rows for drop in days if drop.path.startswith("events"))
    sent = list(reports(rows))
    assert [json.loads(line)["flight"] for _, line in sent] == list(rows["flight"])
    for key, line in sent:
        report = json.loads(line)
        assert key == f"{report['carrier']}{report['flight']}"
        assert not set("\t\n") & set(key + line)
    assert broken(rows)[0] == sent[0][0]
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken(rows)[1])


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        # The examples of Avro's specification.
        ("long", 0, "00"), ("long", -1, "01"), ("long", 1, "02"), ("long", -64, "7f"), ("long", 64, "8001"),
        ("string", "foo", "06666f6f"),
        (["null", "string"], None, "00"), (["null", "string"], "a", "020261"),
        ({"type": "record", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]},
         {"a": 27, "b": "foo"}, "3606666f6f"),
    ],
)  # fmt: skip
def test_avro(schema: Any, value: Any, expected: str) -> None:
    assert encode(schema, value).hex() == expected


def test_unknown_avro_type_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes"):
        encode("bytes", b"")


def test_the_definitions_have_the_same_columns() -> None:
    """The views are the same, so their inputs must have the same columns."""
    texts = [(folder / "events.py").read_text() for folder in (TRANSFORMATIONS, OVER_KAFKA)]
    schemas = [text.split('EVENT = """')[1].split('"""')[0] for text in texts]
    assert schemas[0] == schemas[1]


@pytest.mark.spark
def test_weather_is_that_of_the_files(plain_spark: Any, tmp_path: Path, days: list[Drop]) -> None:
    rows = next(drop.rows for drop in days if drop.path.startswith("weather"))
    (tmp_path / "w.json").write_text(rows.to_json(orient="records", lines=True, double_precision=5))
    records = plain_spark.createDataFrame([(r.value,) for r in observations(rows)], "value BINARY")
    observed = definitions(plain_spark)["observed"](records)
    report = (TRANSFORMATIONS / "weather_reports.py").read_text().split('REPORT = """')[1].split('"""')[0]
    expected = plain_spark.read.schema(report).json(str(tmp_path / "w.json"))
    assert observed.schema.simpleString() == expected.schema.simpleString()
    assert observed.exceptAll(expected).isEmpty()
    assert expected.exceptAll(observed).isEmpty()
    assert observed.count() == len(rows) > 0


def definitions(session: Any) -> dict[str, Any]:
    """The names that the file of the weather topic defines, without a pipeline."""
    file = OVER_KAFKA / "weather_reports.py"
    text = file.read_text().replace("SparkSession.active()", "SESSION").replace("@dp.temporary_view", "")
    scope = {"SESSION": session, "__file__": str(file), "__name__": file.stem}
    exec(compile(text, str(file), "exec"), scope)
    return scope
