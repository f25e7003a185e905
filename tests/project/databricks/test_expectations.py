"""Expectations end to end: rows dropped, counted, refused; over changes of every kind and after failures."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from tests.crash.faults import Strike, StrikingEffects

from tautochrone.errors import DefinitionError
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY as KEY
from tautochrone.model.definitions import ViolationAction
from tautochrone.model.effects import Step

from .conftest import DialectProject

pytestmark = pytest.mark.spark

ORDERS = """
from pyspark import pipelines as dp

@dp.table(cluster_by=["id"])
@dp.expect("cheap", "amount < 100")
@dp.expect_or_drop("known", "id IS NOT NULL")
def orders():
    return spark.readStream.schema("id INT, amount DOUBLE, kind STRING").json("@IN@/orders")
"""


def counts(project: DialectProject, table: str) -> dict[str, tuple[int, int]]:
    """Violations and their change by expectation, as the store tells them."""
    (status,) = (s for s in project.pipeline.job.store.datasets.statuses() if s.dataset.table == table)
    return {count.name: (count.violations, count.change) for count in status.expectations}


def totals(project: DialectProject, table: str) -> dict[str, int]:
    """Violations by expectation, whatever changed last."""
    return {name: violations for name, (violations, _) in counts(project, table).items()}


def refresh_counts(event: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {count["name"]: (count["violations"], count["change"]) for count in event["expectations"]}


def test_streaming_table_counts_each_batch_once(project: DialectProject) -> None:
    """Also one after which the run dies."""
    project.define("orders.py", ORDERS)
    project.json("orders/1.json", {"id": 1, "amount": 500.0}, {"amount": 1.0}, {"amount": 200.0})
    events = project.build()
    assert project.rows("SELECT id FROM orders") == [(1,)]
    assert refresh_counts(events.of("batch")[-1]) == {"cheap": (2, 2), "known": (2, 2)}
    assert counts(project, "orders") == {"cheap": (2, 2), "known": (2, 2)}
    # A batch of which every row is dropped moves the position and the counts alone.
    project.json("orders/2.json", {"amount": 1.0})
    project.build()
    assert counts(project, "orders") == {"cheap": (2, 0), "known": (3, 1)}
    project.json("orders/3.json", {"id": 3, "amount": 101.0}, {"amount": 1.0})
    die(project, Strike(Step.LAKE_COMMIT, "after", "crash", on="orders"))
    project.build()
    assert project.rows("SELECT id FROM orders") == [(1,), (3,)]
    assert totals(project, "orders") == {"cheap": 3, "known": 4}
    project.build(full=["orders"])
    assert totals(project, "orders") == {"cheap": 3, "known": 4}
    assert project.rows("SELECT id FROM orders") == [(1,), (3,)]


def test_derived_streaming_table_counts_what_its_flows_took_in(project: DialectProject) -> None:
    project.define("orders.py", ORDERS)
    project.define(
        "copy.py",
        """
        import dlt

        rules = {"paid": "amount > 0"}
        dlt.create_streaming_table(
            "copies", expect_all_or_drop=rules, expect_all={"k": "kind = 'a'"}, cluster_by=["id"]
        )

        @dlt.append_flow(target="copies")
        def first():
            return dlt.read_stream("orders").where("id < 10")

        @dlt.append_flow(target="copies", name="second")
        def rest():
            return dlt.read_stream("orders").where("id >= 10")
        """,
    )
    project.json("orders/1.json", {"id": 1, "amount": 5, "kind": "a"}, {"id": 11, "amount": 0, "kind": "b"})
    events = project.build()
    assert project.rows("SELECT id FROM copies") == [(1,)]
    assert refresh_counts(events.refresh("copies")) == {"k": (1, 1), "paid": (1, 1)}
    project.json("orders/2.json", {"id": 12, "amount": 1, "kind": "b"}, {"id": 2, "amount": -1, "kind": "a"})
    events = project.build()
    assert project.rows("SELECT id FROM copies") == [(1,), (12,)]
    assert refresh_counts(events.refresh("copies")) == {"k": (2, 1), "paid": (2, 1)}
    assert counts(project, "copies") == {"k": (2, 1), "paid": (2, 1)}


VIEWS = """
import dlt

@dlt.table(table_properties={"tautochrone.refresh-policy": "@POLICY@"})
@dlt.expect("not large", "total <= 10")
@dlt.expect_or_drop("positive", "total > 0")
def totals():
    return dlt.read("items").groupBy("k").agg({"v": "sum"}).withColumnRenamed("sum(v)", "total")
"""


def external(project: DialectProject, statement: str) -> None:
    """Change the table `items`, which somebody else writes."""
    project.pipeline.session.sql(statement)


@pytest.mark.parametrize(
    "policy", ["incremental", *(pytest.param(policy, marks=pytest.mark.slow) for policy in ("full", "auto"))]
)
def test_view_follows_rows_that_start_and_stop_to_violate(project: DialectProject, policy: str) -> None:
    project.define("views.py", VIEWS.replace("@POLICY@", policy))
    external(project, "CREATE TABLE lake.default.items (k INT, v INT) USING iceberg")
    external(project, "INSERT INTO lake.default.items VALUES (1, 5), (2, -5), (3, 50), (4, NULL)")
    events = project.build()
    assert project.rows("SELECT * FROM totals") == [(1, 5), (3, 50)]
    # NULL violates too.
    assert refresh_counts(events.refresh("totals")) == {"not large": (2, 2), "positive": (2, 2)}
    # One more is dropped, a dropped one comes back, a violating one goes away.
    external(project, "INSERT INTO lake.default.items VALUES (1, -6), (2, 8)")
    external(project, "DELETE FROM lake.default.items WHERE k = 3")
    events = project.build()
    assert project.rows("SELECT * FROM totals") == [(2, 3)]
    assert refresh_counts(events.refresh("totals")) == {"not large": (1, -1), "positive": (2, 0)}
    assert counts(project, "totals") == {"not large": (1, -1), "positive": (2, 0)}
    if policy != "auto":
        assert events.mode("totals")[0] == policy
    # A row that is dropped is deleted from the input, and the run that counts that and a violation dies.
    external(project, "DELETE FROM lake.default.items WHERE k = 4")
    external(project, "INSERT INTO lake.default.items VALUES (5, -5), (6, 60)")
    die(project, Strike(Step.META_VERSION, "before", "crash", on="totals"))
    project.run()
    assert project.rows("SELECT * FROM totals") == [(2, 3), (6, 60)]
    assert totals(project, "totals") == {"not large": 1, "positive": 2}
    assert project.verdicts["totals"] is True


def test_conditions_see_settings_and_datasets_as_the_query_does(project: DialectProject) -> None:
    project.define(
        "limits.sql",
        """
        SET rules.lowest = 3;
        CREATE LIVE TABLE limits AS SELECT 20 AS highest;
        CREATE STREAMING LIVE TABLE taken (CONSTRAINT low EXPECT (v >= ${rules.lowest}) ON VIOLATION DROP ROW)
          AS SELECT * FROM STREAM read_files('@IN@/taken', format => 'json', schema => 'k INT, v INT');
        CREATE LIVE TABLE checked (
          CONSTRAINT low EXPECT (v >= ${rules.lowest}),
          CONSTRAINT high EXPECT (v <= (SELECT max(highest) FROM LIVE.limits)) ON VIOLATION DROP ROW
        ) AS SELECT k, v FROM items;
        """,
    )
    external(project, "CREATE TABLE lake.default.items (k INT, v INT) USING iceberg")
    external(project, "INSERT INTO lake.default.items VALUES (1, 2), (2, 10), (3, 30)")
    project.json("taken/1.json", {"k": 1, "v": 2}, {"k": 2, "v": 4})
    events = project.build()
    assert project.rows("SELECT k FROM taken") == [(2,)]
    assert project.rows("SELECT k FROM checked ORDER BY k") == [(1,), (2,)]
    assert refresh_counts(events.of("batch")[-1]) == {"low": (1, 1)}
    assert refresh_counts(events.refresh("checked")) == {"low": (1, 1), "high": (1, 1)}
    external(project, "INSERT INTO lake.default.items VALUES (4, 1), (5, 99)")
    assert refresh_counts(project.build().refresh("checked")) == {"low": (2, 1), "high": (2, 1)}


def test_linear_view_appends_and_counts_added_rows(project: DialectProject) -> None:
    """Until the table knows no counts, or the condition is another one: then all rows are counted."""
    text = """
    CREATE MATERIALIZED VIEW big (
      CONSTRAINT positive EXPECT (v > 0) ON VIOLATION DROP ROW, CONSTRAINT odd EXPECT (v % 2 = 1)
    ) AS SELECT k, v FROM items WHERE k < 100000
    """
    project.define("view.sql", text)
    external(project, "CREATE TABLE lake.default.items (k INT, v INT) USING iceberg")
    external(project, "INSERT INTO lake.default.items SELECT id, id - 10 FROM range(2000)")
    project.build()
    assert counts(project, "big") == {"positive": (11, 11), "odd": (1005, 1005)}
    external(project, "INSERT INTO lake.default.items VALUES (7, -1), (8, 2)")
    events = project.build()
    assert events.mode("big")[0] == "append"
    assert counts(project, "big") == {"positive": (12, 1), "odd": (1007, 2)}
    # As a table that another program wrote and that was adopted.
    (row,) = project.pipeline.session.sql(f"SHOW TBLPROPERTIES lake.default.big ('{KEY}')").collect()
    fields = json.loads(row.value)
    assert fields.pop("violations") == {"positive": 12, "odd": 1007}
    external(project, f"ALTER TABLE lake.default.big SET TBLPROPERTIES ('{KEY}' = '{json.dumps(fields)}')")
    external(project, "INSERT INTO lake.default.items VALUES (1, 4)")
    events = project.build()
    assert events.refresh("big")["reason_code"] == "VIOLATIONS_NOT_COUNTED"
    assert counts(project, "big") == {"positive": (12, 12), "odd": (1008, 1008)}
    project.define("view.sql", text.replace("v > 0", "v > 4"))
    project.run()
    assert totals(project, "big") == {"positive": 18, "odd": 1008}


def test_batch_and_view_with_failing_rows_are_not_taken(project: DialectProject) -> None:
    project.define("orders.py", ORDERS.replace("expect_or_drop", "expect_or_fail"))
    project.define(
        "view.py",
        """
        import dlt

        @dlt.table
        @dlt.expect_or_fail("positive", "v > 0")
        def checked():
            return spark.read.table("items")
        """,
    )
    external(project, "CREATE TABLE lake.default.items (k INT, v INT) USING iceberg")
    external(project, "INSERT INTO lake.default.items VALUES (1, 5)")
    project.json("orders/1.json", {"id": 1, "amount": 5.0})
    project.build()
    external(project, "INSERT INTO lake.default.items VALUES (2, 0), (3, -1), (4, 4)")
    project.json("orders/2.json", {"amount": 5.0}, {"id": 2, "amount": 5.0})
    events = project.pipeline.run()
    assert events.state == "FAILED"
    error = events.failure("checked")
    assert "[EXPECTATION_FAILED] 2 rows of lake.default.checked violate the expectation 'positive'" in error
    assert '{"k":2,"v":0}' in error
    assert "[EXPECTATION_FAILED] 1 row of lake.default.orders violates" in events.failure("orders")
    assert project.rows("SELECT * FROM checked") == [(1, 5)]
    assert project.rows("SELECT id FROM orders") == [(1,)]
    assert (project.inputs / "orders" / "2.json").exists()
    external(project, "DELETE FROM lake.default.items WHERE v <= 0")
    project.define("orders.py", ORDERS)
    project.build()
    assert project.rows("SELECT * FROM checked") == [(1, 5), (4, 4)]
    assert counts(project, "checked") == {"positive": (0, 0)}
    assert project.rows("SELECT id FROM orders") == [(1,), (2,)]
    assert counts(project, "orders")["known"] == (1, 1)


def test_actions_have_the_names_of_the_documentation() -> None:
    assert [*ViolationAction] == ["warn", "drop", "fail"]


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [Step.LAKE_PREPARE, Step.LAKE_COMMIT, Step.META_REPORT])
def test_batch_is_counted_once_after_a_crash(project: DialectProject, step: Step, when: str) -> None:
    project.define("orders.py", ORDERS)
    project.json("orders/1.json", {"id": 1, "amount": 500.0}, {"amount": 1.0})
    project.run()
    project.json("orders/2.json", {"id": 2, "amount": 500.0}, {"amount": 1.0})
    die(project, Strike(step, when, "crash", on="orders"))
    project.run()
    assert project.rows("SELECT id FROM orders") == [(1,), (2,)]
    assert totals(project, "orders") == {"cheap": 2, "known": 2}


def die(project: DialectProject, strike: Strike) -> None:
    """A run that dies at a step."""
    effects = StrikingEffects(strike)
    with contextlib.suppress(Exception), project.pipeline.opened(effects) as (job, _):
        project.pipeline.execute(job)
    assert effects.struck


def test_condition_sees_columns_that_the_query_renamed(project: DialectProject) -> None:
    project.define(
        "a.py",
        """
        import dlt
        from pyspark.sql import functions as F

        @dlt.table
        def raw():
            return spark.readStream.schema("id INT, amount INT").json("@IN@/a")

        @dlt.table
        @dlt.expect_or_drop("has an id", "id IS NOT NULL")
        @dlt.expect("small", "amount < 10")
        def a():
            return dlt.read("raw").withColumnRenamed("id", "order_id")

        @dlt.table
        @dlt.expect("known", "c.id IS NOT NULL")
        def b():
            names = spark.createDataFrame([(1, "x")], "id INT, name STRING").alias("c")
            rows = dlt.read("a").join(names, F.col("order_id") == F.col("c.id"), "left")
            return rows.select("order_id", "name")
        """,
    )
    project.json("a/1.json", {"id": 1, "amount": 5}, {"amount": 6}, {"id": 2, "amount": 70})
    events = project.build()
    assert project.rows("SELECT * FROM a ORDER BY 1") == [(1, 5), (2, 70)]
    counted = {
        e["name"]: e["violations"] for table in ("a", "b") for e in events.refresh(table)["expectations"]
    }
    assert counted == {"has an id": 1, "small": 1, "known": 1}
    project.json("a/2.json", {"id": 1, "amount": 7}, {"id": None, "amount": 6})
    project.run()
    assert project.verdicts == {"a": True, "b": True}
    assert project.rows("SELECT * FROM a ORDER BY 1, 2") == [(1, 5), (1, 7), (2, 70)]


def test_hidden_column_in_a_condition_of_a_stream_is_refused_early(
    project: DialectProject,
) -> None:
    project.define(
        "a.py",
        """
        import dlt

        @dlt.table
        def orders():
            return spark.readStream.schema("id INT").json("@IN@/orders")

        @dlt.table
        def names():
            return spark.sql("SELECT 1 AS id, 'a' AS name")

        @dlt.table
        @dlt.expect_or_drop("has a name", "names.id IS NOT NULL")
        def named():
            return spark.readStream.table("orders").join(spark.read.table("names"), "id", "left")
        """,
    )
    project.json("orders/1.json", {"id": 1})
    with pytest.raises(DefinitionError, match="The expectation 'has a name'") as refused:
        project.pipeline.run()
    assert refused.value.error_class.startswith("UNRESOLVED_COLUMN")
    assert "without the names of tables" in str(refused.value.hint)
