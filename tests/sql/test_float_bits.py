"""Floats to the last bit: the layout of files decides how sums are rounded, and -0.0 is not 0.0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.harness import Happened

from .testbed import ViewTestbed

pytestmark = pytest.mark.spark

FOLLOWED = "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')"
SMALL_SPLITS = "'read.split.target-size' = '9000', 'read.split.open-file-cost' = '1'"
MANY_SPLITS = f"USING iceberg TBLPROPERTIES ({SMALL_SPLITS})"
GROUPS = "SELECT k, skewness(x) AS s FROM src.f GROUP BY k"
ROWS = "SELECT id, CAST(id % 7 AS INT) AS k, pmod(xxhash64(id), 1000003) / 7.0D AS x FROM range({}, {}, 1, 3)"


@pytest.fixture
def testbed(testbed: ViewTestbed) -> ViewTestbed:
    testbed.sql("CREATE NAMESPACE lake.src")
    return testbed


def rows(testbed: ViewTestbed, view: str) -> list[Any]:
    return sorted(map(tuple, testbed.external_session.table(f"lake.default.{view}").collect()))


def modes(happened: Happened, *views: str) -> Mapping[str, str]:
    return {view: happened.refresh(view)["mode"] for view in views}


def test_sums_of_floats_in_another_order(testbed: ViewTestbed) -> None:
    """Statistics are computed again after a compaction; a view over them, and operators that use them, follow
    what was stored."""
    testbed.sql(f"CREATE TABLE lake.src.f {MANY_SPLITS} AS {ROWS.format(0, 4000)}")
    testbed.sql(f"INSERT INTO lake.src.f {ROWS.format(4000, 9000)}")
    testbed.view("stats", GROUPS, FOLLOWED)
    testbed.view("over_view", "SELECT s, count(*) AS n FROM lake.default.stats GROUP BY s", FOLLOWED)
    used = {
        "grouped": f"SELECT s, count(*) AS n FROM ({GROUPS}) GROUP BY s",
        "least": f"SELECT min(s) AS low FROM ({GROUPS})",
        "text": f"SELECT k, CAST(s AS STRING) AS s FROM ({GROUPS})",
    }
    for name, query in used.items():
        testbed.view(name, query, FOLLOWED)
    average = "SELECT k, avg(x) OVER (PARTITION BY k) AS s FROM src.f"
    testbed.view("averages", f"SELECT s, count(*) AS n FROM ({average}) GROUP BY s", FOLLOWED)
    testbed.checkpoint()
    testbed.sql(
        "CALL lake.system.rewrite_data_files(table => 'src.f', options => map('rewrite-all', 'true'), "
        "strategy => 'sort', sort_order => 'x ASC')",
    )
    for change in range(2):
        query = f"{GROUPS} ORDER BY s LIMIT 1".replace("src", "lake.src")
        (lowest,) = testbed.external_session.sql(query).collect()
        testbed.sql(f"INSERT INTO lake.src.f VALUES (-{change}, {lowest.k}, 500000D), (-1{change}, 1, -3D)")
        happened = testbed.checkpoint(allowed=used, restart=False)
        assert modes(happened, "stats", "over_view", "averages") == dict.fromkeys(
            ("stats", "over_view", "averages"), "incremental"
        )
        assert set(modes(happened, *used).values()) == {"diff"}
        assert "skewness(x)" in happened.refresh("least")["reason"]
        stored = sorted(row[1] for row in rows(testbed, "stats"))
        assert [row[0] for row in rows(testbed, "over_view")] == stored
        assert sum(row[1] for row in rows(testbed, "averages")) == 9000 + 2 * (change + 1)
        assert len(rows(testbed, "averages")) == 7


def test_sign_of_zero(testbed: ViewTestbed) -> None:
    testbed.sql(
        "CREATE TABLE lake.src.z (k INT, x DOUBLE, y FLOAT, a ARRAY<DOUBLE>) USING iceberg "
        "TBLPROPERTIES ('format-version' = '3', 'write.update.mode' = 'merge-on-read')",
        "INSERT INTO lake.src.z SELECT *, 0F, array(0D) FROM VALUES (1, -0.0D), (2, 0.0D), (3, 5D)",
    )
    testbed.view("texts", "SELECT k, concat_ws(' ', x, y, CAST(a AS STRING)) AS s FROM src.z")
    testbed.view("counts", "SELECT CAST(x AS STRING) AS s, count(*) AS n FROM src.z GROUP BY 1")
    testbed.checkpoint()
    testbed.sql("UPDATE lake.src.z SET x = -0.0D WHERE k = 2")
    testbed.checkpoint(restart=False)
    assert rows(testbed, "counts") == [("-0.0", 2), ("5.0", 1)]
    testbed.sql("UPDATE lake.src.z SET y = -y, a = array(-0.0D, NULL, double('NaN')) WHERE k = 3")
    testbed.checkpoint(restart=False)
    assert rows(testbed, "texts")[2] == (3, "5.0 -0.0 [-0.0, null, NaN]")
    testbed.sql("DELETE FROM lake.src.z WHERE k = 1")
    testbed.checkpoint(restart=False)
    assert rows(testbed, "counts") == [("-0.0", 1), ("5.0", 1)]


def test_sum_that_overflowed(testbed: ViewTestbed) -> None:
    """Without ANSI mode an overflow is NULL, which no change can be added to."""
    big = f"9{37 * '0'}BD"
    testbed.sql(
        "CREATE TABLE lake.src.d (id INT, k INT, v DECIMAL(38,0)) USING iceberg",
        f"INSERT INTO lake.src.d VALUES (1, 1, {big}), (2, 1, {big}), (3, 2, 3BD)",
    )
    for name, query in {
        "sums": "SELECT k, sum(v) AS s FROM src.d GROUP BY k",
        "averages": "SELECT k, avg(CAST(v AS DECIMAL(38,2))) AS s FROM src.d WHERE id <> 2 GROUP BY k",
        "totals": "SELECT id, sum(v) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS s FROM src.d",
    }.items():
        testbed.view(name, query, FOLLOWED)
        path = testbed.pipeline.folder / "definitions" / f"{name}.sql"
        path.write_text(f"SET spark.sql.ansi.enabled = false;\n{path.read_text()}")
    testbed.checkpoint()
    testbed.sql("INSERT INTO lake.src.d VALUES (4, 1, 5BD)")
    testbed.checkpoint(restart=False, allowed={"totals"})
    assert rows(testbed, "sums") == [(1, None), (2, 3)]
    testbed.sql("DELETE FROM lake.src.d WHERE id = 2")
    testbed.checkpoint(restart=False, allowed={"totals"})
    testbed.sql(f"INSERT INTO lake.src.d VALUES (5, 2, {big}), (6, 2, {big}), (7, 2, -1BD), (8, 3, 1BD)")
    testbed.checkpoint(restart=False, allowed={"totals"})
    testbed.sql("DELETE FROM lake.src.d WHERE id IN (5, 8)")
    testbed.checkpoint(restart=False, allowed={"totals"})
    assert [row[0] for row in rows(testbed, "sums")] == [1, 2]
