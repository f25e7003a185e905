"""Every SQL construct as a view: correct after each of several changes, and its mode is as documented."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .constructs import CONSTRUCTS
from .small_tables import SmallTables
from .sql_support import DOCUMENT, SEED, Measured, define, document, measure, modes
from .testbed import PROPERTIES, ViewTestbed

pytestmark = pytest.mark.spark


SAMPLE = {
    "linear_posexplode", "time_group", "set_except_all", "top_below", "group_rollup", "window_range",
    "files_grouped",
}  # fmt: skip
"""One of each chapter that the queries of TPC-H leave out."""


@pytest.mark.timeout(1800)
def test_some_constructs(testbed: ViewTestbed) -> None:
    """The sample and one change; `make soak` tests all constructs with three."""
    sample = [construct for construct in CONSTRUCTS if construct.name in SAMPLE]
    tables = SmallTables(testbed, SEED)
    define(testbed, sample)
    measured = measure(testbed, tables, checkpoints=1)
    assert set(measured) == SAMPLE
    assert sum(view.changed for view in measured.values()) > len(sample) / 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_construct(testbed: ViewTestbed) -> None:
    tables = SmallTables(testbed, SEED)
    define(testbed, CONSTRUCTS)
    measured = measure(testbed, tables)
    assert set(measured) == {construct.name for construct in CONSTRUCTS}
    unchanged = [name for name, view in measured.items() if not view.changed]
    assert not unchanged, f"these never changed, which proves nothing: {unchanged}"
    documented = modes(DOCUMENT.read_text())
    assert modes(document(measured)) == documented, "run `python -m tests.sql.sql_support`"
    assert len(documented) == len(CONSTRUCTS)


@pytest.mark.slow
def test_row_with_a_hundred_matches_costs_two_hundred_rows(testbed: ViewTestbed) -> None:
    """A changed row that joins n rows changes 2n rows of the view."""
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        "CREATE TABLE lake.src.shops USING iceberg TBLPROPERTIES ('format-version' = '3', "
        "'write.update.mode' = 'merge-on-read') AS SELECT id, concat('n', id) AS name FROM range(50)",
        "CREATE TABLE lake.src.sales USING iceberg TBLPROPERTIES ('format-version' = '3') AS "
        "SELECT id, id % 50 AS shop, id * 3 AS amount FROM range(5000)",
    )
    testbed.view("sold", "SELECT s.id, s.amount, p.name FROM src.sales s JOIN src.shops p ON s.shop = p.id")
    testbed.view("named", "SELECT name, sum(amount) AS amount FROM sold GROUP BY name")
    testbed.checkpoint()
    testbed.sql("UPDATE lake.src.shops SET name = 'other' WHERE id = 7")
    happened = testbed.checkpoint(restart=False)
    refresh = happened.refresh("sold")
    assert refresh["rows_inserted"] + refresh["rows_deleted"] == 200
    refresh = happened.refresh("named")
    assert (refresh["rows_inserted"], refresh["rows_deleted"]) == (1, 1)
    assert Measured.of(happened, "sold").mode in ("incremental", "diff" if not PROPERTIES else "")


def test_reason_names_the_node_that_decides_the_mode(testbed: ViewTestbed) -> None:
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        "CREATE TABLE lake.src.t USING iceberg TBLPROPERTIES ('format-version' = '3') AS "
        "SELECT id, id % 7 AS x FROM range(50)",
    )
    testbed.view(
        "placed",
        "SELECT id, lead(id) OVER (ORDER BY x, id) AS following FROM src.t",
        "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')",
    )
    testbed.view(
        "rounded",
        "SELECT id, sum(CAST(x + 0.0000000001BD AS DECIMAL(30,10))) OVER (ORDER BY x, id) AS y FROM src.t",
        "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')",
    )
    testbed.checkpoint()
    testbed.sql("INSERT INTO lake.src.t VALUES (50, 3)")
    happened = testbed.checkpoint(allowed={"placed", "rounded"}, restart=False)
    assert happened.refresh("rounded")["mode"] == "diff", "two such sums cannot be added without rounding"
    refresh = happened.refresh("placed")
    assert refresh["mode"] == "diff"
    assert refresh["reason_code"] == "NODE_NEEDS_MODE"
    assert refresh["reason_params"]["node"] == "window"
    assert refresh["reason"].startswith("window needs diff: ")


_INCREMENTAL = "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')"
RUNNING_ORDERS = ("x, id", "x DESC, id", "x NULLS LAST, id", "d DESC NULLS FIRST, id", "s, id")
RUNNING_FUNCTIONS = (
    "row_number()",
    "count(x)",
    "count(*)",
    "sum(x)",
    "sum(amount)",
    "min(s)",
    "max(amount)",
    "min(d)",
)


@pytest.mark.parametrize(
    ("orders", "changes"), [(RUNNING_ORDERS[3:4], 1), pytest.param(RUNNING_ORDERS, 4, marks=pytest.mark.slow)]
)
def test_running_windows_without_partitions_follow_changes(
    testbed: ViewTestbed, orders: Sequence[str], changes: int
) -> None:
    """Changes at the first rows of the order, in the middle and at its end, with NULLs and ties."""
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        "CREATE TABLE lake.src.t USING iceberg TBLPROPERTIES ('format-version' = '3') AS SELECT id, "
        "CAST(CASE WHEN id % 11 <> 0 THEN id % 19 END AS INT) AS x, concat('s', id % 23) AS s, "
        "CAST(if(id % 7 = 0, NULL, id * 1.25) AS DECIMAL(12,2)) AS amount, "
        "date_add(DATE'2026-01-01', CAST(id % 40 AS INT)) AS d FROM range(300)",
    )
    views = []
    for number, order in enumerate(orders):
        peers = order.partition(",")[0]
        functions = [f"{call} OVER (ORDER BY {order})" for call in RUNNING_FUNCTIONS]
        functions += [f"rank() OVER (ORDER BY {peers})", f"sum(x) OVER (ORDER BY {peers})"]
        columns = ", ".join(f"{function} AS f{index}" for index, function in enumerate(functions))
        views.append(f"running_{number}")
        testbed.view(views[-1], f"SELECT id, {columns} FROM src.t", _INCREMENTAL)
    testbed.checkpoint()
    statements = (
        (
            "INSERT INTO lake.src.t VALUES (300, 99, 'z', 7, DATE'2027-01-01'), (301, 99, NULL, NULL, NULL)",
            "DELETE FROM lake.src.t WHERE id IN (150, 18)",
        ),
        ("INSERT INTO lake.src.t VALUES (302, NULL, NULL, 1, NULL), (303, -5, '', -1, DATE'1990-01-01')",),
        ("UPDATE lake.src.t SET amount = amount + 1 WHERE id IN (17, 299)",),
        ("DELETE FROM lake.src.t WHERE x IS NULL OR id >= 300",),
    )
    for change in statements[:changes]:
        testbed.sql(*change)
        outcome = testbed.checkpoint(restart=False)
        assert {outcome.refresh(view)["mode"] for view in views} == {"incremental"}


def test_windows_without_partitions_over_few_rows_are_incremental(testbed: ViewTestbed) -> None:
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        "CREATE TABLE lake.src.t USING iceberg TBLPROPERTIES ('format-version' = '3') AS "
        "SELECT id, id % 7 AS x FROM range(50)",
    )
    testbed.view(
        "first_rows",
        "SELECT id, x, n, r FROM (SELECT *, row_number() OVER w AS n, rank() OVER w AS r FROM src.t "
        "WINDOW w AS (PARTITION BY 1 ORDER BY x DESC, id)) WHERE n <= 3 AND id > 20",
    )
    testbed.view(
        "of_limit",
        "SELECT id, sum(x) OVER (ORDER BY id) AS running, lead(x) OVER (ORDER BY id) AS next "
        "FROM (SELECT * FROM src.t ORDER BY x, id LIMIT 4)",
    )
    testbed.view(
        "of_key", "SELECT x, first(x) AS a, last(x + 1) AS b, collect_list(x) AS c FROM src.t GROUP BY x"
    )
    testbed.view(
        "correlated",
        "SELECT id, (SELECT row_number() OVER (ORDER BY id) FROM src.t i WHERE i.id = o.id) AS n "
        "FROM src.t o",
    )
    testbed.checkpoint()
    testbed.sql(
        "INSERT INTO lake.src.t VALUES (50, 9), (51, 6), (-1, 0), (52, 9)",
        "DELETE FROM lake.src.t WHERE id IN (0, 6, 48)",
    )
    testbed.checkpoint(restart=False)


def test_limit_1_without_columns_follows_an_input_that_becomes_empty(testbed: ViewTestbed) -> None:
    """Of such rows only their number counts, which a global aggregate would make 1 over no rows."""
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        "CREATE TABLE lake.src.a USING iceberg AS SELECT id FROM range(3)",
        "CREATE TABLE lake.src.flags USING iceberg AS SELECT * FROM VALUES ('x', true), ('y', true) "
        "AS flags(name, is_on)",
    )
    testbed.view("any_row", "SELECT count(*) AS n FROM (SELECT name FROM src.flags LIMIT 1)")
    testbed.view("allowed", "SELECT a.* FROM src.a CROSS JOIN (SELECT 1 FROM src.flags WHERE is_on LIMIT 1)")
    testbed.checkpoint()
    for statement in (
        "DELETE FROM lake.src.flags",
        "INSERT INTO lake.src.flags VALUES ('x', false), ('y', true)",
    ):
        testbed.sql(statement)
        testbed.checkpoint(restart=False)
