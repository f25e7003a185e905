"""Keys of every type: of outer joins below an aggregate, computed on one side or on both, and of partitions.

An outer join reads the other side twice in one plan, at both cuts, by the keys of the changed rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .small_tables import SmallTables
from .testbed import ViewTestbed

pytestmark = pytest.mark.spark

KEYS = {
    "tinyint": ("CAST(x AS TINYINT)", "CAST(y AS TINYINT)"),
    "smallint": ("CAST(x AS SMALLINT)", "CAST(y AS SMALLINT)"),
    "widened": ("x", "CAST(y AS BIGINT)"),
    "decimal": ("CAST(x AS DECIMAL(30,10))", "y"),
    "double": ("CASE WHEN x < 0 THEN -0D WHEN x > 9 THEN double('NaN') ELSE 0D + x END", "0D + y"),
    "boolean": ("x > 3", "y > 3"),
    "text": ("concat(g, x)", "concat(s, y)"),
    "bytes": ("CAST(g AS BINARY)", "CAST(s AS BINARY)"),
    "date": ("day", "date_add(DATE '2024-01-01', y * 4)"),
    "timestamp": (
        "date_trunc('HOUR', timestamp_seconds(x * 3600 + id))",
        "timestamp_seconds(y * 3600)",
    ),
    "timestamp_old": (
        "timestamp_seconds(x * 3600 - 4000000000)",
        "timestamp_seconds(y * 3600 - 4000000000)",
    ),
    "timestamp_of_ntz": (
        "date_trunc('DAY', CAST(day AS TIMESTAMP_NTZ))",
        "CAST(date_add(DATE '2024-01-01', y * 4) AS TIMESTAMP_NTZ)",
    ),
    "timestamp_ntz": (
        "CAST(timestamp_seconds(x * 3600) AS TIMESTAMP_NTZ)",
        "CAST(timestamp_seconds(y * 3600) AS TIMESTAMP_NTZ)",
    ),
    "interval": ("make_dt_interval(x)", "make_dt_interval(y)"),
    "array": ("array(k, x)", "array(k, y)"),
    "struct": ("struct(k AS a, CAST(day AS TIMESTAMP) AS b)", "struct(k AS a, TIMESTAMP '2024-01-10' AS b)"),
}


SAMPLE = ("double", "struct", "timestamp_of_ntz", "timestamp")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("types", "checkpoints"), [(SAMPLE, 1), pytest.param(tuple(KEYS), 2, marks=pytest.mark.slow)]
)
def test_keys_of_every_type(testbed: ViewTestbed, types: Sequence[str], checkpoints: int) -> None:
    tables = SmallTables(testbed, seed=11)
    for index, name in enumerate(types):
        left, right = KEYS[name]
        kind = ("LEFT", "RIGHT", "FULL")[index % 3]
        testbed.view(
            name,
            f"WITH l AS (SELECT *, {left} AS at FROM src.a), r AS (SELECT *, {right} AS since FROM src.b) "
            f"SELECT l.g, r.s, count(*) AS n, count(r.id) AS hits, sum(l.x) AS x "
            f"FROM l {kind} JOIN r ON l.at = r.since AND (l.k = r.k OR l.id > r.id) GROUP BY l.g, r.s",
        )
    partitioned = types if types == tuple(KEYS) else ("double",)
    for name in partitioned:
        key = KEYS[name][0]
        testbed.view(
            f"by_{name}",
            f"SELECT id, x, count(*) OVER (PARTITION BY {key}) AS n, "
            f"rank() OVER (PARTITION BY {key}, k ORDER BY id) AS r FROM src.a",
        )
    testbed.view("latest", "SELECT k, max(x) AS x, max(day) AS day FROM src.a GROUP BY k")
    testbed.view(
        "above_a_view",
        "SELECT b.s, count(*) AS n, count(h.k) AS hits, min(h.x) AS x FROM src.b LEFT JOIN latest h "
        "ON timestamp_seconds(b.y) = date_trunc('MINUTE', timestamp_seconds(h.x)) GROUP BY b.s",
    )
    testbed.checkpoint()
    changed = set[str]()
    for _ in range(checkpoints):
        tables.change()
        happened = testbed.checkpoint(restart=False)
        changed |= {
            refresh["dataset"].rsplit(".", 1)[-1]
            for refresh in happened.of("refresh")
            if refresh["rows_inserted"]
        }
    assert changed == {*types, *(f"by_{name}" for name in partitioned), "latest", "above_a_view"}


def test_column_names_in_another_case(testbed: ViewTestbed) -> None:
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        "CREATE TABLE lake.src.t USING iceberg TBLPROPERTIES ('format-version' = '3') AS "
        "SELECT id AS Key, id % 5 AS value FROM range(40)",
    )
    queries = {
        "grouped": "SELECT VALUE, count(*) AS n FROM src.t GROUP BY VALUE",
        "both": "SELECT VALUE FROM src.t UNION ALL SELECT value FROM src.t WHERE KEY > 3",
        "joined": "SELECT a.KEY, b.Value FROM src.t a JOIN src.t b ON a.key = b.VALUE",
    }
    for name, query in queries.items():
        testbed.view(name, query)
    testbed.checkpoint()
    testbed.sql(
        "INSERT INTO lake.src.t VALUES (100, 9), (101, NULL)", "DELETE FROM lake.src.t WHERE value = 3"
    )
    testbed.checkpoint(restart=False)
