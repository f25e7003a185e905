"""AUTO CDC from snapshots that a function returns, as Databricks' documentation shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tautochrone.errors import DefinitionError

from .conftest import DialectProject

pytestmark = pytest.mark.spark

BY_NUMBER = """
import os
from pyspark import pipelines as dp

def exist(file_name):
    return os.path.exists(file_name)

def next_snapshot_and_version(latest_snapshot_version):
    latest_snapshot_version = latest_snapshot_version or 0
    next_version = latest_snapshot_version + 1
    file_name = "@IN@/number/filename_" + str(next_version) + ".csv"
    if exist(file_name):
        return (spark.read.option("header", True).schema("id INT, city STRING").csv(file_name), next_version)
    else:
        return None

dp.create_streaming_table("by_number")
dp.create_auto_cdc_from_snapshot_flow(target="by_number", source=next_snapshot_and_version, keys=["ID"])
"""

BY_DATE = """
import dlt
from datetime import datetime, timedelta
from typing import Optional, Tuple
from pyspark.sql import DataFrame

def next_snapshot_and_version(
    latest_snapshot_datetime: Optional[datetime],
) -> Optional[Tuple[DataFrame, Optional[datetime]]]:
    if latest_snapshot_datetime is None:
        names = sorted(info.name for info in dbutils.fs.ls("@IN@/day"))
        moment = datetime.strptime(names[0].strip("/"), "%Y-%m-%d")
    else:
        moment = latest_snapshot_datetime + timedelta(days=1)
    try:
        dbutils.fs.ls(f"@IN@/day/{moment:%Y-%m-%d}")
    except Exception:
        return (None, None)
    return spark.read.json(f"@IN@/day/{moment:%Y-%m-%d}"), moment

dlt.create_streaming_table("by_date")
dlt.apply_changes_from_snapshot(
    target="by_date",
    snapshot_and_version=next_snapshot_and_version,
    keys=["id"],
    stored_as_scd_type=2,
    track_history_except_column_list=["seen"],
)
"""


def by_number(project: DialectProject, number: int, *rows: tuple[int, str]) -> None:
    lines = "".join(f"{number},{city}\n" for number, city in rows)
    project.data(f"number/filename_{number}.csv", f"id,city\n{lines}")


def by_date(project: DialectProject, day: str, *rows: dict[str, Any]) -> None:
    project.json(f"day/{day}/rows.json", *rows)


def person(number: int, city: str, seen: int) -> dict[str, Any]:
    return {"id": number, "city": city, "seen": seen}


def test_functions_of_the_documentation(project: DialectProject) -> None:
    project.define("number.py", BY_NUMBER)
    project.define("date.py", BY_DATE)
    by_number(project, 1, (1, "Lima"), (2, "Oslo"))
    by_number(project, 2, (1, "Lima"), (3, "Rome"))
    by_date(project, "2026-01-30", person(1, "Lima", 1), person(2, "Oslo", 1))
    project.build()
    assert project.rows("SELECT * FROM by_number") == [(1, "Lima"), (3, "Rome")]
    # A deleted key comes back, a snapshot changes nothing, and another one is empty.
    by_number(project, 3, (1, "Bern"), (2, "Oslo"), (3, "Rome"))
    by_number(project, 4, (1, "Bern"), (2, "Oslo"), (3, "Rome"))
    by_number(project, 5)
    by_date(project, "2026-01-31", person(1, "Lima", 2))
    by_date(project, "2026-02-01", person(1, "Bern", 3), person(2, "Oslo", 3))
    happened = project.build()
    assert [batch["rows"] for batch in happened.of("batch") if batch["flow"] == "by_number"] == [2, 0, 3]
    assert project.rows("SELECT * FROM by_number") == []
    first, second, third = (datetime.fromisoformat(day) for day in ("2026-01-30", "2026-01-31", "2026-02-01"))
    assert project.rows("SELECT id, city, seen, __START_AT, __END_AT FROM by_date") == [
        (1, "Bern", 3, third, None), (1, "Lima", 2, first, third),
        (2, "Oslo", 1, first, second), (2, "Oslo", 3, third, None),
    ]  # fmt: skip


RECORDED = """
from decimal import Decimal
import dlt

SNAPSHOTS = {snapshots}

def next_snapshot(latest):
    remaining = SNAPSHOTS if latest is None else SNAPSHOTS[1:]
    if not remaining:
        return None
    rows, version = remaining[0]
    return spark.createDataFrame(rows, "id INT, city STRING"), version

dlt.create_streaming_table("t")
dlt.create_auto_cdc_from_snapshot_flow("t", next_snapshot, ["id"])
"""
FIRST = ([(1, "Lima")], 5)


@pytest.mark.parametrize(
    ("second", "error_class"),
    [
        (([(1, "Oslo")], 5), "AUTO_CDC_SNAPSHOT_VERSION_ORDER"),
        (([(1, "Oslo")], 4), "AUTO_CDC_SNAPSHOT_VERSION_ORDER"),
        (([(1, "Oslo")], "6"), "AUTO_CDC_SNAPSHOT_VERSION_TYPE"),
        (([(1, "Oslo")], None), "AUTO_CDC_SNAPSHOT_VERSION_TYPE"),
        (([(1, "Lima"), (1, "Lima")], 6), "AUTO_CDC_SNAPSHOT_KEY_NOT_UNIQUE"),
        (([(1, "Lima"), (1, "Oslo")], 6), "AUTO_CDC_SNAPSHOT_KEY_NOT_UNIQUE"),
        (([(None, "Oslo")], 6), "AUTO_CDC_EVENT_INVALID"),
    ],
)
@pytest.mark.slow
def test_refused_snapshot_is_not_taken(project: DialectProject, second: Any, error_class: str) -> None:
    project.define("t.py", RECORDED.format(snapshots=[FIRST, second]))
    assert error_class in project.pipeline.run().failure("t")
    assert project.rows("SELECT * FROM t") == [(1, "Lima")]
    project.define("t.py", RECORDED.format(snapshots=[FIRST, ([(2, "Rome")], 6)]))
    assert "AUTO_CDC_SNAPSHOT_VERSION_ORDER" in project.pipeline.run().failure("t")
    assert project.rows("SELECT * FROM t") == [(2, "Rome")]


@pytest.mark.slow
def test_full_refresh_may_change_the_types_of_version_and_columns(project: DialectProject) -> None:
    project.define("t.py", RECORDED.format(snapshots=[FIRST]))
    project.run()
    # With a version of the old type the function would not find its next snapshot.
    changed = RECORDED.format(snapshots=[([(1, "Oslo")], "b")]).replace("id INT", "id BIGINT")
    project.define("t.py", changed.replace("latest is None", "(latest or 'a') <= 'a'"))
    project.run(full=["T", "default.t__events"])
    assert project.rows("SELECT * FROM t") == [(1, "Oslo")]


@pytest.mark.slow
def test_narrower_numbers_of_a_later_snapshot(project: DialectProject) -> None:
    text = RECORDED.replace("SNAPSHOTS[1:]", "[snapshot for snapshot in SNAPSHOTS if snapshot[1] > latest]")
    text = text.replace("id INT, city STRING", "id BIGINT, size DOUBLE")
    first = [(1, 0.5), (2**40, 1.0)], 5
    project.define("t.py", text.format(snapshots=[first]))
    project.run()
    # As a reader that infers types finds them.
    text = text.replace("id BIGINT, size DOUBLE", "id INT, size BIGINT")
    project.define("t.py", text.format(snapshots=[first, ([(1, 3)], 6), ([(1, 3)], 7), ([(2, 4)], 8)]))
    happened = project.run()
    assert [batch["rows"] for batch in happened.of("batch")] == [2, 0, 2]
    assert project.rows("SELECT * FROM t") == [(2, 4.0)]


@pytest.mark.slow
def test_declared_type_that_no_version_has(project: DialectProject) -> None:
    schema = "id INT, city STRING, __START_AT INT, __END_AT INT"
    text = RECORDED.format(snapshots=[]).replace('["id"]', '["id"], 2')
    project.define("t.py", text.replace('table("t")', f'table("t", schema="{schema}")'))
    with pytest.raises(DefinitionError, match="declares __START_AT as int") as refused:
        project.run()
    assert refused.value.error_class == "AUTO_CDC_SNAPSHOT_VERSION_TYPE"
    project.define(
        "t.py", text.replace('table("t")', f'table("t", schema="{schema.replace("AT INT", "AT BIGINT")}")')
    )
    project.run()
    assert project.rows("SELECT * FROM t") == []


TWO_FLOWS = """
CREATE STREAMING TABLE events AS SELECT * FROM STREAM read_files('@IN@/events', format => 'json',
  schema => 'id INT, city STRING, op STRING, n INT');
CREATE TEMPORARY VIEW changes AS SELECT * FROM STREAM(events) WHERE op <> 'DELETE';
CREATE TEMPORARY VIEW deletions AS SELECT * FROM STREAM(events) WHERE op = 'DELETE';
CREATE STREAMING TABLE people;
"""
CHANGES_FLOW = """
APPLY CHANGES INTO LIVE.people FROM STREAM(LIVE.changes) KEYS (id) SEQUENCE BY n
  COLUMNS * EXCEPT (op, n) STORED AS SCD TYPE 2;
"""
DELETIONS_FLOW = """
CREATE FLOW removed AS AUTO CDC INTO people FROM STREAM(deletions) KEYS (id) APPLY AS DELETE WHEN true
  SEQUENCE BY n COLUMNS * EXCEPT (op, n) STORED AS SCD TYPE 2;
"""


@pytest.mark.slow
def test_two_flows_over_one_table(project: DialectProject) -> None:
    project.define("people.sql", TWO_FLOWS + CHANGES_FLOW)
    project.json(
        "events/1.json",
        {"id": 1, "city": "Lima", "op": "INSERT", "n": 1},
        {"id": 1, "city": None, "op": "DELETE", "n": 3},
        {"id": 2, "city": "Oslo", "op": "INSERT", "n": 2},
    )
    project.run()
    assert project.rows("SELECT * FROM people") == [(1, "Lima", 1, None), (2, "Oslo", 2, None)]
    # A flow that is added before the other one takes the older events too.
    project.define("people.sql", TWO_FLOWS + DELETIONS_FLOW + CHANGES_FLOW)
    project.run()
    assert project.rows("SELECT * FROM people") == [(1, "Lima", 1, 3), (2, "Oslo", 2, None)]
    project.json(
        "events/2.json",
        {"id": 1, "city": "Rome", "op": "UPDATE", "n": 2},
        {"id": 2, "city": None, "op": "DELETE", "n": 5},
    )
    project.run()
    assert project.rows("SELECT * FROM people") == [(1, "Lima", 1, 2), (1, "Rome", 2, 3), (2, "Oslo", 2, 5)]
    assert set(project.verdicts.values()) == {True}
