"""AUTO CDC from snapshots: a table follows the rows of a source that keeps no history."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import DialectProject

pytestmark = pytest.mark.spark

SOURCE = """
import dlt

CUSTOMERS = "id INT, name STRING, city STRING, visits INT"

@dlt.table
def customers():
    return spark.read.schema(CUSTOMERS).json("@IN@/customers")
"""

TABLES = """
import dlt

@dlt.view
def living():
    return dlt.read("customers").where("city IS NOT NULL").drop("visits")

dlt.create_streaming_table("newest")
dlt.create_auto_cdc_from_snapshot_flow(target="newest", source="living", keys=["id"])

dlt.create_streaming_table("history")
dlt.apply_changes_from_snapshot(
    target="history",
    source="customers",
    keys=["ID"],
    stored_as_scd_type="2",
    track_history_except_column_list=["visits"],
)
"""


def customer(number: int, name: str, city: str | None, visits: int = 0) -> dict[str, Any]:
    return {"id": number, "name": name, "city": city, "visits": visits}


def history(project: DialectProject) -> list[tuple[Any, ...]]:
    """The rows with the numbers of the checkpoints' times in place of the times."""
    sql = "SELECT id, city, visits, __START_AT, __END_AT FROM history ORDER BY 1, 4"
    rows = project.pipeline.reader.sql(sql).collect()
    times = sorted({row[3] for row in rows} | {row[4] for row in rows if row[4] is not None})
    return [(*row[:3], *(None if time is None else times.index(time) for time in row[3:])) for row in rows]


def test_what_changes_between_snapshots_is_merged(project: DialectProject) -> None:
    project.define("source.py", SOURCE)
    project.define("tables.py", TABLES)
    project.json(
        "customers/1.json", customer(1, "Ana", "Lima"), customer(2, "Bo", "Oslo"), customer(3, "Cy", None)
    )
    project.build()
    assert project.rows("SELECT * FROM newest ORDER BY id") == [(1, "Ana", "Lima"), (2, "Bo", "Oslo")]
    changed = [customer(1, "Ana", "Lima", 5), customer(3, "Cy", "Bern"), customer(4, "Di", "Rome")]
    project.json("customers/1.json", *changed)
    happened = project.run()
    assert project.rows("SELECT * FROM newest ORDER BY id") == [
        (1, "Ana", "Lima"), (3, "Cy", "Bern"), (4, "Di", "Rome"),
    ]  # fmt: skip
    # A change of visits alone begins no row.
    assert history(project) == [
        (1, "Lima", 5, 0, None),
        (2, "Oslo", 0, 0, 1),
        (3, None, 0, 0, 1),
        (3, "Bern", 0, 1, None),
        (4, "Rome", 0, 1, None),
    ]
    assert happened.mode("history")[0] == "incremental"
    # Ana stands where she stood for the view, which has no visits.
    inserted = [
        event["rows_inserted"] for event in happened.of("refresh") if event["dataset"].endswith("newest")
    ]
    assert inserted == [2]
    assert project.verdicts == {
        "customers": True, "newest": True, "newest__snapshot": True, "history": True,
    }  # fmt: skip


@pytest.mark.slow
def test_snapshots_after_a_rebuild_and_with_repeated_keys(project: DialectProject) -> None:
    project.define("source.py", SOURCE)
    project.define("tables.py", TABLES)
    project.json("customers/1.json", customer(1, "Ana", "Lima"), customer(2, "Bo", "Oslo"))
    project.run()
    project.json("customers/2.json", customer(4, "Di", "Rome"))
    (project.inputs / "customers/1.json").unlink()
    project.json("customers/1.json", customer(1, "Ana", "Lima"))
    project.run()
    project.json("customers/2.json", customer(2, "Bo", "Nice"))
    project.run(full=["customers"])
    rows = [(1, "Lima", 0, 0, None), (2, "Oslo", 0, 0, 1), (2, "Nice", 0, 2, None), (4, "Rome", 0, 1, 2)]
    assert history(project) == rows
    assert project.run().of("no_news")
    # A key that comes twice is refused, with a row of the snapshot before or with one of this one.
    for file, again in (
        ("3", [customer(1, "Al", "Riga")]),
        ("4", [customer(8, "E", "x"), customer(8, "F", "x")]),
    ):
        project.json(f"customers/{file}.json", *again)
        assert "AUTO_CDC_SNAPSHOT_KEY_NOT_UNIQUE" in project.pipeline.run().failure("history")
        (project.inputs / f"customers/{file}.json").unlink()
    project.run()
    assert history(project) == rows


SQL = """
CREATE STREAMING TABLE names;
CREATE FLOW names_flow AS AUTO CDC INTO names
FROM SNAPSHOT (
  SELECT id, upper(name) AS name
  FROM read_files('@IN@/customers', format => 'json', schema => 'id INT, name STRING')
  WHERE name <> ')'
)
KEYS (id);

CREATE STREAMING TABLE cities FLOW AUTO CDC FROM SNAPSHOT (SELECT id, city FROM customers) KEYS (id)
STORED AS SCD TYPE 2;
"""


@pytest.mark.slow
def test_snapshots_of_queries_in_sql(project: DialectProject) -> None:
    project.define("source.py", SOURCE)
    project.define("tables.sql", SQL)
    project.json(
        "customers/1.json", customer(1, "Ana", "Lima"), customer(2, "Bo", "Oslo"), customer(3, ")", "Rome")
    )
    project.run()
    assert project.rows("SELECT * FROM names ORDER BY id") == [(1, "ANA"), (2, "BO")]
    project.json("customers/1.json", customer(1, "Ana", "Lima"), customer(3, "Cy", None))
    project.run()
    assert project.rows("SELECT * FROM names ORDER BY id") == [(1, "ANA"), (3, "CY")]
    assert project.rows("SELECT id, coalesce(city, 'none'), __END_AT IS NULL FROM cities") == [
        (1, "Lima", True), (2, "Oslo", False), (3, "Rome", False), (3, "none", True),
    ]  # fmt: skip
    assert set(project.verdicts.values()) == {True}
