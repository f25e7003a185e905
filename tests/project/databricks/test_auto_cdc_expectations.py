"""Expectations of tables that AUTO CDC flows write: events are checked before they are merged."""

from __future__ import annotations

from typing import Any

import pytest

from tautochrone.errors import DefinitionError

from .conftest import DialectProject
from .test_expectations import counts, refresh_counts

pytestmark = pytest.mark.spark

PYTHON = """
import dlt

EVENTS = "id INT, name STRING, op STRING, n INT"

@dlt.table
def events():
    return spark.readStream.schema(EVENTS).json("@IN@/events")

dlt.create_streaming_table(
    "newest",
    expect_all={"short": "length(name) < 5"},
    expect_all_or_drop={"named": "name IS NOT NULL -- deletions have none"},
)
dlt.apply_changes(
    target="newest",
    source="events",
    keys=["id"],
    sequence_by="n",
    apply_as_deletes="op = 'DELETE'",
    column_list=[],
    except_column_list=["op", "n"],
    flow_name="newest_flow",
)
"""

SQL = """
CREATE OR REFRESH STREAMING TABLE history (
  CONSTRAINT named EXPECT (name IS NOT NULL) ON VIOLATION DROP ROW,
  CONSTRAINT known EXPECT (id < 100) ON VIOLATION FAIL UPDATE
);
CREATE FLOW history_flow AS AUTO CDC INTO history
FROM STREAM read_files('@IN@/events', format => 'json', schema => 'id INT, name STRING, op STRING, n INT')
KEYS (id) APPLY AS DELETE WHEN op = 'DELETE' SEQUENCE BY n COLUMNS * EXCEPT (op, n) STORED AS SCD TYPE 2;
"""


def event(number: int, name: str | None, op: str, n: int) -> dict[str, Any]:
    return {"id": number, "name": name, "op": op, "n": n}


def test_events_are_checked_before_they_are_merged(project: DialectProject) -> None:
    project.define("newest.py", PYTHON)
    project.define("history.sql", SQL)
    project.json(
        "events/1.json",
        event(1, "Ana", "UPSERT", 1),
        event(2, None, "UPSERT", 1),
        event(3, "Clara", "UPSERT", 1),
    )
    happened = project.build()
    assert project.rows("SELECT * FROM newest") == [(1, "Ana"), (3, "Clara")]
    assert refresh_counts(happened.refresh("newest")) == {"short": (2, 2), "named": (1, 1)}
    assert counts(project, "history") == {"named": (1, 1), "known": (0, 0)}
    # A deletion writes no row that could violate a condition. A dropped update leaves the row as it is.
    project.json(
        "events/2.json", event(1, None, "DELETE", 2), event(2, None, "UPSERT", 2), event(3, None, "UPSERT", 2)
    )
    project.build()
    assert project.rows("SELECT * FROM newest") == [(3, "Clara")]
    assert project.rows("SELECT * FROM history") == [(1, "Ana", 1, 2), (3, "Clara", 1, None)]
    assert counts(project, "newest") == {"short": (4, 2), "named": (3, 2)}
    assert counts(project, "history") == {"named": (3, 2), "known": (0, 0)}


@pytest.mark.slow
def test_event_that_violates_keeps_the_table_as_it_is(project: DialectProject) -> None:
    project.define("newest.py", PYTHON)
    project.define("history.sql", SQL)
    project.json("events/1.json", event(1, "Ana", "UPSERT", 1))
    project.run()
    project.json("events/2.json", event(1, "Bea", "UPSERT", 2), event(100, "Cleo", "UPSERT", 1))
    error = project.pipeline.run().failure("history")
    assert "EXPECTATION_FAILED" in error
    assert '{"id":100,"name":"Cleo"}' in error
    project.define("history.sql", SQL.replace("id < 100", "id < 1000"))
    project.run()
    assert project.rows("SELECT * FROM history") == [
        (1, "Ana", 1, 2),
        (1, "Bea", 2, None),
        (100, "Cleo", 1, None),
    ]
    # Events of which none writes a row still move the counts; a run without events keeps them.
    project.json("events/3.json", event(1, None, "UPSERT", 3))
    project.run()
    assert counts(project, "history") == {"named": (1, 1), "known": (0, 0)}
    project.run()
    assert counts(project, "history")["named"][0] == 1
    project.run(full=["history", "newest"])
    assert counts(project, "history")["named"][0] == 1
    assert counts(project, "newest") == {"short": (1, 1), "named": (1, 1)}


SNAPSHOTS = """
import dlt

@dlt.table
def customers():
    return spark.read.schema("id INT, name STRING").json("@IN@/customers")

dlt.create_streaming_table("newest", expect_all={"named": "name IS NOT NULL"})
dlt.apply_changes_from_snapshot(target="newest", source="customers", keys=["id"])
"""


def test_snapshots_have_no_expectations(project: DialectProject) -> None:
    project.define("snapshots.py", SNAPSHOTS)
    project.json("customers/1.json", {"id": 1, "name": "Ana"})
    with pytest.raises(DefinitionError, match="newest takes what changes") as refused:
        project.pipeline.run()
    assert refused.value.error_class == "EXPECTATION_NOT_SUPPORTED"
