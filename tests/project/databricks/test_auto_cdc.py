"""AUTO CDC end to end, with the sample of Databricks' documentation and the results that it shows."""

from __future__ import annotations

from typing import Any

import pytest

from tautochrone.errors import DefinitionError

from .conftest import DialectProject

pytestmark = pytest.mark.spark

PYTHON = """
import dlt
from pyspark.sql.functions import col, expr, struct

EVENTS = "userId INT, name STRING, city STRING, operation STRING, sequenceNum BIGINT"

@dlt.table
def cdc_events():
    return spark.readStream.schema(EVENTS).json("@IN@/users")

@dlt.view
def users_in_files():
    return spark.readStream.schema(EVENTS).json("@IN@/users")

dlt.create_streaming_table("newest")
dlt.create_auto_cdc_flow(
    target="newest",
    source="cdc_events",
    keys=["userId"],
    sequence_by=col("sequenceNum"),
    apply_as_deletes=expr("operation = 'DELETE'"),
    apply_as_truncates=expr("operation = 'TRUNCATE'"),
    except_column_list=["operation", "sequenceNum"],
    stored_as_scd_type=1,
)

dlt.create_streaming_table("names")
dlt.apply_changes(
    target="names",
    source="users_in_files",
    keys=[col("userId")],
    sequence_by=struct("sequenceNum", "operation"),
    apply_as_deletes=col("operation") == "DELETE",
    column_list=["userId", "name", "city"],
    stored_as_scd_type="2",
    track_history_except_column_list=["city"],
)
"""

SQL = """
CREATE OR REFRESH STREAMING TABLE history;

CREATE FLOW history_flow AS AUTO CDC INTO history
FROM STREAM(cdc_events)
KEYS (userId)
APPLY AS DELETE WHEN operation = "DELETE"
SEQUENCE BY sequenceNum
COLUMNS * EXCEPT (operation, sequenceNum)
STORED AS SCD TYPE 2;

CREATE MATERIALIZED VIEW cities AS
SELECT city, count(*) AS users, min(__START_AT) AS since FROM history WHERE __END_AT IS NULL GROUP BY city;
"""


def event(user: int | None, name: str | None, city: str | None, operation: str, n: int) -> dict[str, Any]:
    return {"userId": user, "name": name, "city": city, "operation": operation, "sequenceNum": n}


EVENTS = [
    event(124, "Raul", "Oaxaca", "INSERT", 1),
    event(123, "Isabel", "Monterrey", "INSERT", 1),
    event(125, "Mercedes", "Tijuana", "INSERT", 2),
    event(126, "Lily", "Cancun", "INSERT", 2),
    event(123, None, None, "DELETE", 6),
    event(125, "Mercedes", "Guadalajara", "UPDATE", 6),
    # These arrive late.
    event(125, "Mercedes", "Mexicali", "UPDATE", 5),
    event(123, "Isabel", "Chihuahua", "UPDATE", 5),
]


def test_published_sample(project: DialectProject) -> None:
    spec = project.pipeline.folder / "spark-pipeline.yml"
    spec.write_text(f"{spec.read_text()}configuration:\n  layer: default\n  key: userId\n")
    project.define("users.py", PYTHON)
    with_parameters = SQL.replace("INTO history", "INTO ${layer}.history").replace("(userId)", "(${key})")
    project.define("history.sql", with_parameters)
    project.json("users/1.json", *EVENTS[:6])
    assert project.pipeline.run().state == "COMPLETED"
    newest = [
        (124, "Raul", "Oaxaca"),
        (125, "Mercedes", "Guadalajara"),
        (126, "Lily", "Cancun"),
    ]
    assert project.rows("SELECT * FROM newest") == newest
    project.json("users/2.json", *EVENTS[6:])
    happened = project.run()
    assert project.rows("SELECT * FROM newest") == newest
    history = [
        (123, "Isabel", "Chihuahua", 5, 6),
        (123, "Isabel", "Monterrey", 1, 5),
        (124, "Raul", "Oaxaca", 1, None),
        (125, "Mercedes", "Guadalajara", 6, None),
        (125, "Mercedes", "Mexicali", 5, 6),
        (125, "Mercedes", "Tijuana", 2, 5),
        (126, "Lily", "Cancun", 2, None),
    ]
    assert sorted(project.rows("SELECT * FROM history"), key=str) == history
    assert project.rows(
        "SELECT userId, name, city, __START_AT.sequenceNum, __END_AT.sequenceNum FROM names ORDER BY userId"
    ) == [
        (123, "Isabel", "Chihuahua", 1, 6),
        (124, "Raul", "Oaxaca", 1, None),
        (125, "Mercedes", "Guadalajara", 2, None),
        (126, "Lily", "Cancun", 2, None),
    ]
    assert project.verdicts == {"cities": True, "newest": True, "history": True, "names": True}
    modes = {table: happened.mode(table)[0] for table in ("newest", "history", "names")}
    assert modes == {"newest": "no_data", "history": "incremental", "names": "incremental"}
    assert project.rows("SELECT count(*) FROM names__events") == [(8,)]


VIEW = """
import dlt

@dlt.view
def known_users():
    return dlt.read_stream("cdc_events").where("userId IS NOT NULL")
"""


@pytest.mark.slow
def test_truncation_and_invalid_events(project: DialectProject) -> None:
    project.define("users.py", PYTHON)
    project.define("history.sql", SQL)
    project.json("users/1.json", *EVENTS)
    project.run()
    # The table is emptied, and what happened before it, too; late events of that time have no effect.
    project.json(
        "users/3.json", event(None, None, None, "TRUNCATE", 3), event(127, "Ana", "Lima", "INSERT", 2)
    )
    project.define("history.sql", SQL.replace("FROM STREAM(cdc_events)", "FROM STREAM(known_users)"))
    project.define("view.py", VIEW)
    project.define(
        "users.py", PYTHON.replace('col("operation") == "DELETE"', "expr(\"operation = 'DELETE'\")")
    )
    failing = project.pipeline.run()
    assert "AUTO_CDC_EVENT_INVALID" in failing.failure("names")
    assert project.rows("SELECT * FROM newest") == [(125, "Mercedes", "Guadalajara")]
    assert (127, "Ana", "Lima", 2, None) in project.rows("SELECT * FROM history")
    # A column that comes later is NULL for the events before it.
    project.define("users.py", PYTHON.replace("city STRING,", "city STRING, age INT,"))
    project.json("users/4.json", {**event(125, "Mercedes", "Lima", "UPDATE", 9), "age": 40})
    project.pipeline.run()
    assert project.rows("SELECT * FROM newest") == [(125, "Mercedes", "Lima", 40)]
    ages = project.rows("SELECT __START_AT, age FROM history WHERE userId = 125 AND __START_AT > 5")
    assert ages == [(6, None), (9, 40)]
    project.define("users.py", PYTHON.replace("stored_as_scd_type=1", "ignore_null_updates=True"))
    project.json("users/5.json", event(125, "Mercedes", "Cusco", "UPDATE", 10))
    assert "AUTO_CDC_CHANGED" in project.pipeline.run().failure("newest")
    project.pipeline.run(full=["newest"])
    assert project.rows("SELECT userId, city FROM newest") == [(125, "Cusco")]


FILES = """
import dlt

@dlt.view
def files():
    return spark.readStream.text("@IN@")
"""


def test_definition_problems_name_the_place(project: DialectProject) -> None:
    flow = "CREATE STREAMING TABLE e AS SELECT 1 AS id, 2 AS n FROM STREAM(files);\n"
    project.define(
        "files.py", "import dlt\n\n@dlt.view\ndef files():\n    return spark.readStream.text('@IN@')\n"
    )
    wrong = {
        "KEYS (ID) SEQUENCE BY n COLUMNS (n)": "AUTO_CDC_COLUMN_NOT_FOUND",
        "KEYS (id) SEQUENCE BY m": "UNRESOLVED_COLUMN.WITH_SUGGESTION",
        "KEYS (id) SEQUENCE BY n TRACK HISTORY ON n": "AUTO_CDC_ONLY_SCD_TYPE_2",
        "KEYS (id) APPLY AS TRUNCATE WHEN n = 1 SEQUENCE BY n STORED AS SCD TYPE 2": (
            "AUTO_CDC_ONLY_SCD_TYPE_1"
        ),
        "SEQUENCE BY n": "AUTO_CDC_WITHOUT_KEYS",
        "KEYS (id) SEQUENCE BY map(n, n)": "AUTO_CDC_SEQUENCE_TYPE",
    }
    for clauses, error_class in wrong.items():
        text = f"{flow}CREATE STREAMING TABLE t;\nAPPLY CHANGES INTO t FROM STREAM(e) {clauses};"
        project.define("a.sql", text)
        with pytest.raises(DefinitionError) as refused:
            project.pipeline.run()
        assert refused.value.error_class == error_class
        assert (refused.value.location or "").startswith("definitions/a.sql:3"), error_class


@pytest.mark.slow
def test_events_come_through_a_view(project: DialectProject) -> None:
    project.define(
        "a.py",
        """
        from pyspark import pipelines as dp
        from pyspark.sql import functions as F

        @dp.table
        def events():
            return spark.readStream.schema("id INT, name STRING, ts INT").json("@IN@/a")

        @dp.view
        @dp.expect_or_drop("has an id", "id IS NOT NULL")
        def renamed_events():
            rows = spark.readStream.table("events").withColumn("merged_at", F.current_timestamp())
            return rows.withColumn("name", F.upper("name"))

        dp.create_streaming_table("newest")
        dp.create_auto_cdc_flow(target="newest", source="renamed_events", keys=["id"], sequence_by="ts")
        """,
    )
    project.json("a/1.json", {"id": 1, "name": "a", "ts": 1}, {"name": "x", "ts": 1})
    project.run()
    project.json("a/2.json", {"id": 1, "name": "b", "ts": 2}, {"id": 2, "name": "c", "ts": 1})
    project.run()
    assert project.rows("SELECT id, name FROM newest ORDER BY id") == [(1, "B"), (2, "C")]
    assert project.verdicts == {"newest": None}


ONCE = """
import dlt
from pyspark.sql.functions import lit

ORDERS = "id INT, state STRING, n INT"

@dlt.view
def full_orders():
    return spark.readStream.schema(ORDERS).json("@IN@/full")

@dlt.view
def changed_orders():
    return spark.readStream.schema(ORDERS).json("@IN@/changes")

dlt.create_streaming_table("orders")
dlt.create_auto_cdc_flow(
    flow_name="full_orders_flow",
    once=True,
    target="orders",
    source="full_orders",
    keys=["id"],
    sequence_by=lit(0),
)
dlt.create_auto_cdc_flow(
    flow_name="changed_orders_flow", target="orders", source="changed_orders", keys=["id"], sequence_by="n"
)
"""


@pytest.mark.slow
def test_full_load_by_a_flow_that_runs_once(project: DialectProject) -> None:
    project.define("orders.py", ONCE)
    project.json("full/1.json", {"id": 1, "state": "new"}, {"id": 2, "state": "new"})
    project.json("changes/1.json", {"id": 1, "state": "paid", "n": 1})
    happened = project.run()
    assert project.rows("SELECT id, state FROM orders ORDER BY id") == [(1, "paid"), (2, "new")]
    (warning,) = happened.of("definition_warning")
    assert "once of full_orders_flow has no effect" in str(warning["reason"])
    project.json("changes/2.json", {"id": 2, "state": "paid", "n": 2})
    happened = project.run()
    assert [batch["flow"] for batch in happened.of("batch")] == ["changed_orders_flow"]
    project.run(full=["orders", "full_orders_flow__events", "changed_orders_flow__events"])
    assert project.rows("SELECT id, state FROM orders ORDER BY id") == [(1, "paid"), (2, "paid")]
    project.define(
        "orders.py",
        ONCE.replace(
            'spark.readStream.schema(ORDERS).json("@IN@/full")', 'spark.read.schema(ORDERS).json("@IN@/full")'
        ),
    )
    with pytest.raises(DefinitionError, match="reads a batch once") as refused:
        project.pipeline.run()
    assert refused.value.error_class == "DATABRICKS_ONLY"
