"""Views over a Delta table that Delta's own Spark writes: after each change they equal what it reads."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.delta_spark import DeltaSpark
from tests.support.harness import Happened, Pipeline

from tautochrone.model.names import is_shadow_table

pytestmark = [pytest.mark.slow, pytest.mark.spark]

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()
STRICT = {{"tautochrone.refresh-policy": "incremental"}}

@dp.materialized_view(table_properties=STRICT)
def late():
    later = "at >= TIMESTAMP'2024-01-01 12:00:00'"
    return spark.sql(f"SELECT id, kind, amount, at FROM delta.`{path}` WHERE {{later}}")

@dp.materialized_view(table_properties=STRICT)
def kinds():
    rows = spark.read.format("delta").load("{path}")
    return rows.groupBy("kind").agg(sf.sum("amount").alias("amount"), sf.count("*").alias("n"))
"""
ROWS = (
    "SELECT id, CASE WHEN id % 7 = 0 THEN NULL ELSE concat('k ', id % 5, '/ü') END AS kind, "
    "CAST(id / 4 AS DECIMAL(12, 2)) AS amount, "
    "TIMESTAMP'2024-01-01 00:00:00' + make_interval(0, 0, 0, 0, id % 24) AS at, "
    "array(id, NULL) AS tags, DATE'2024-01-01' AS day FROM range({first}, {end})"
)


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeltaSpark]:
    with DeltaSpark(tmp_path_factory.mktemp("delta")) as spark:
        yield spark


class Followed:
    """A pipeline over one Delta table."""

    def __init__(self, pipeline: Pipeline, delta: DeltaSpark, options: str) -> None:
        self.pipeline, self.delta, self.ids = pipeline, delta, 0
        self.path = str(pipeline.folder / "ext/my orders")
        pipeline.write("definitions/p.py", DEFINITIONS.format(path=self.path))
        self.sql(
            "CREATE TABLE {t} (id BIGINT, kind STRING, amount DECIMAL(12, 2), at TIMESTAMP, "
            f"tags ARRAY<BIGINT>, day DATE) USING delta {options}"
        )

    def sql(self, statement: str) -> list[list[Any]]:
        return self.delta.sql(statement.format(t=f"delta.`{self.path}`"))

    def rows(self, count: int) -> str:
        self.ids += count
        return ROWS.format(first=self.ids - count, end=self.ids)

    def check(self) -> Happened:
        happened = self.pipeline.run()
        assert happened.state == "COMPLETED", list(happened)
        queries = {
            "late": "SELECT id, kind, amount, at FROM {t} WHERE at >= TIMESTAMP'2024-01-01 12:00:00'",
            "kinds": "SELECT kind, sum(amount) AS amount, count(*) AS n FROM {t} GROUP BY kind",
        }
        for view, query in queries.items():
            expected = sorted(map(repr, self.sql(query.replace("at FROM", "CAST(at AS STRING) FROM"))))
            columns = "id, kind, amount, CAST(at AS STRING)" if view == "late" else "kind, amount, n"
            stored = [
                list(row) for row in self.pipeline.reader.sql(f"SELECT {columns} FROM {view}").collect()
            ]
            shown = [[str(v) if type(v).__name__ == "Decimal" else v for v in row] for row in stored]
            assert sorted(map(repr, shown)) == expected, view
        return happened


CHANGES = (
    "append", "append", "delete", "delete", "update", "merge", "overwrite", "optimize", "restore",
    "add column", "replace where", "purge", "checkpoint", "zorder", "properties",
)  # fmt: skip


def change(followed: Followed, what: str, pick: random.Random) -> None:
    number = pick.randrange(2, 9)
    names = [row[0] for row in followed.sql("DESCRIBE {t}") if row[0] and not row[0].startswith("#")]
    extra = "".join(
        f", CAST(NULL AS INT) AS {name}" for name in dict.fromkeys(names) if name.startswith("extra")
    )
    rows = followed.rows(pick.randrange(1, 40)).replace(" AS day FROM", f" AS day{extra} FROM")
    kind = "kind = 'k 2/ü'"
    newest = max(row[0] for row in followed.sql("DESCRIBE HISTORY {t}"))
    followed.sql(
        {
            "append": f"INSERT INTO {{t}} {rows}",
            "delete": f"DELETE FROM {{t}} WHERE id % {number} = 1",
            "update": f"UPDATE {{t}} SET amount = amount + 1 WHERE id % {number} = 0",
            "merge": "MERGE INTO {t} t USING "
            f"(SELECT * FROM {{t}} WHERE id % {number} = 0 UNION ALL {rows}) s ON t.id = s.id "
            "WHEN MATCHED AND t.id % 4 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET "
            "t.amount = s.amount * 2 WHEN NOT MATCHED THEN INSERT *",
            "overwrite": f"INSERT OVERWRITE {{t}} {rows}",
            "replace where": f"INSERT INTO {{t}} REPLACE WHERE {kind} SELECT * FROM ({rows}) WHERE {kind}",
            "optimize": "OPTIMIZE {t}",
            "zorder": "OPTIMIZE {t} ZORDER BY (id)",
            "purge": "REORG TABLE {t} APPLY (PURGE)",
            "restore": f"RESTORE TABLE {{t}} TO VERSION AS OF {pick.randrange(1, newest + 1)}",
            "add column": f"ALTER TABLE {{t}} ADD COLUMN (extra{len(names)} INT)",
            "checkpoint": "ALTER TABLE {t} SET TBLPROPERTIES ('delta.checkpointInterval' = '2')",
            "properties": "ALTER TABLE {t} SET TBLPROPERTIES ('note' = 'x')",
        }[what]
    )


@pytest.mark.parametrize(
    "options",
    [
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "PARTITIONED BY (kind, day) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', "
        "'delta.checkpointPolicy' = 'v2')",
        "PARTITIONED BY (kind)",
    ],
    ids=["vectors", "partitions-vectors", "partitions"],
)
def test_views_equal_what_delta_reads_after_each_change(
    pipeline: Pipeline, delta: DeltaSpark, options: str
) -> None:
    followed, pick = Followed(pipeline, delta, options), random.Random(options)
    followed.sql(f"INSERT INTO {{t}} {followed.rows(200)}")
    followed.check()
    for _ in range(14):
        done = [pick.choice(CHANGES) for _ in range(pick.randrange(1, 4))]
        for what in done:
            change(followed, what, pick)
        happened = followed.check()
        if {*done} <= {"optimize", "zorder", "purge", "checkpoint", "properties"}:
            assert happened.of("refresh") == [], done
        elif {*done} <= {"append", "delete", "update", "merge"}:
            modes = {refresh["mode"] for refresh in happened.of("refresh")}
            assert modes <= {"append", "incremental", "no_data"}, (done, modes)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_are_renamed_dropped_widened_and_replaced(
    pipeline: Pipeline, delta: DeltaSpark, mode: str
) -> None:
    table = f"delta.`{pipeline.folder}/ext/t`"
    query = f"SELECT kind, sum(amount) AS amount, count(*) AS n FROM {table} WHERE id >= 0 GROUP BY kind"
    pipeline.write("definitions/v.sql", f"CREATE MATERIALIZED VIEW v AS {query};")
    pipeline.write("tautochrone.toml", '[refresh]\npolicy = "incremental"\n')
    pipeline.reload()

    def check(*statements: str) -> Happened:
        for statement in statements:
            delta.sql(statement.format(t=table))
        happened = pipeline.run()
        assert happened.state == "COMPLETED", list(happened)
        expected = sorted(map(repr, delta.sql(query)))
        shown = pipeline.reader.sql("SELECT kind, amount, n FROM v").collect()
        assert sorted(repr(list(row)) for row in shown) == expected
        shadow = next(filter(is_shadow_table, pipeline.job.topology.upstream_tables))
        rows = pipeline.session.table(shadow.sql).collect()
        assert sorted(repr(list(row)) for row in rows) == sorted(map(repr, delta.sql(f"TABLE {table}")))
        return happened

    insert = "INSERT INTO {t} SELECT id, concat('k', id % 3), CAST(id AS INT), 'x' FROM range(40)"
    created = (
        f"TABLE {{t}} (id BIGINT, kind STRING, amount INT, note STRING) USING delta TBLPROPERTIES "
        f"('delta.columnMapping.mode' = '{mode}', 'delta.enableTypeWidening' = 'true', "
        "'delta.enableDeletionVectors' = 'true')"
    )
    check(f"CREATE {created}", insert)
    changed = check("ALTER TABLE {t} RENAME COLUMN note TO remark", insert, "DELETE FROM {t} WHERE id = 7")
    assert changed.mode("v")[0] == "incremental", changed.mode("v")
    changed = check(
        "ALTER TABLE {t} DROP COLUMN remark",
        "ALTER TABLE {t} ADD COLUMN (remark INT)",
        "INSERT INTO {t} SELECT id, 'k9', 5, 7 FROM range(3)",
    )
    assert changed.refresh("v")["reason_code"] == "COLUMN_REPLACED", changed.mode("v")
    check(
        "ALTER TABLE {t} ALTER COLUMN amount TYPE BIGINT",
        "INSERT INTO {t} SELECT id, 'k1', 5000000000, 7 FROM range(3)",
    )
    # Another table in its place, which numbers its columns from 1 again.
    shutil.rmtree(pipeline.folder / "ext/t")
    check(f"CREATE {created}", insert)
    changed = check(insert)
    assert changed.mode("v")[0] == "incremental", changed.mode("v")
    plain = created.partition("TBLPROPERTIES")[0]
    # A table without a mapping gets one.
    shutil.rmtree(pipeline.folder / "ext/t")
    check(f"CREATE {plain} PARTITIONED BY (note)", insert)
    check(
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER TABLE {t} RENAME COLUMN note TO kept",
        insert,
    )
