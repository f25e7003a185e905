"""Definition files in SQL."""

from __future__ import annotations

from tests.compatibility.construct import SPEC, Construct

from .common import NUMBERS, SALES, SALES_TABLE

ICEBERG = """\
configuration:
  spark.sql.catalog.{name}: org.apache.iceberg.spark.SparkCatalog
  spark.sql.catalog.{name}.type: hadoop
  spark.sql.catalog.{name}.warehouse: "@PROJECT@/warehouse_{name}"
"""


def _sql(name: str, title: str, text: str, *datasets: str, **more: object) -> Construct:
    return Construct(f"sql_{name}", title, {"definitions/a.sql": text}, datasets, **more)  # type: ignore[arg-type]


CONSTRUCTS = [
    _sql("materialized_view", "`CREATE MATERIALIZED VIEW … AS SELECT`", NUMBERS, "numbers"),
    _sql(
        "view_over_view",
        "a view over a view, in any order in the file",
        "CREATE MATERIALIZED VIEW top AS SELECT max(x) AS x FROM numbers;\n" + NUMBERS,
        "numbers",
        "top",
    ),
    _sql(
        "if_not_exists",
        "`CREATE MATERIALIZED VIEW IF NOT EXISTS`",
        "CREATE MATERIALIZED VIEW IF NOT EXISTS a AS SELECT 1 AS x",
        "a",
    ),
    _sql(
        "temporary_view",
        "`CREATE TEMPORARY VIEW`, read by two views",
        NUMBERS
        + """
         CREATE TEMPORARY VIEW big AS SELECT * FROM numbers WHERE id > 4;
         CREATE MATERIALIZED VIEW ids AS SELECT id FROM big;
         CREATE MATERIALIZED VIEW total AS SELECT sum(x) AS x FROM big;""",
        "ids",
        "total",
    ),
    _sql(
        "comment_on_view",
        "`COMMENT` of a view and its columns",
        "CREATE MATERIALIZED VIEW a (x COMMENT 'the x') COMMENT 'a view' AS SELECT 1 AS x",
        "a",
    ),
    _sql(
        "properties",
        "`TBLPROPERTIES`",
        "CREATE MATERIALIZED VIEW a TBLPROPERTIES ('owner.team' = 'sales', 'n' = '1') AS SELECT 1 AS x",
        "a",
    ),
    _sql(
        "partitioned",
        "`PARTITIONED BY`",
        NUMBERS + "CREATE MATERIALIZED VIEW p PARTITIONED BY (k) AS SELECT id, k FROM numbers",
        "p",
    ),
    _sql(
        "clustered",
        "`CLUSTER BY`",
        NUMBERS + "CREATE MATERIALIZED VIEW p CLUSTER BY (k) AS SELECT id, k FROM numbers",
        "p",
    ),
    _sql(
        "schema",
        "columns with types: `(id BIGINT, k BIGINT)`",
        NUMBERS + "CREATE MATERIALIZED VIEW p (id BIGINT, k BIGINT) AS SELECT id, k FROM numbers",
        "p",
    ),
    _sql(
        "schema_nullable",
        "a `NOT NULL` column",
        "CREATE MATERIALIZED VIEW p (id BIGINT NOT NULL) AS SELECT id FROM range(3)",
        "p",
    ),
    _sql(
        "using_parquet", "`USING PARQUET`", "CREATE MATERIALIZED VIEW a USING PARQUET AS SELECT 1 AS x", "a"
    ),
    _sql("using_orc", "`USING ORC`", "CREATE MATERIALIZED VIEW a USING ORC AS SELECT 1 AS x", "a"),
    _sql(
        "comments",
        "comments with `;`, strings with `--` and `;`",
        """
         -- a comment; with a semicolon
         /* and a block;
            of two lines */
         CREATE MATERIALIZED VIEW a AS SELECT '-- no; comment' AS t, "double;" AS d; -- the end
         CREATE MATERIALIZED VIEW b AS SELECT t /* ; */ FROM a;""",
        "a",
        "b",
    ),
    _sql(
        "no_last_semicolon",
        "several statements, empty ones, no `;` at the end",
        "CREATE MATERIALIZED VIEW a AS SELECT 1 AS x;;\n\n;CREATE MATERIALIZED VIEW b AS SELECT 2 AS x",
        "a",
        "b",
    ),
    _sql(
        "backticks",
        "names in backticks, with blanks and umlauts",
        "CREATE MATERIALIZED VIEW `größe_1` AS SELECT 1 AS `a column`, 2 AS `b.c`;"
        "CREATE MATERIALIZED VIEW `select` AS SELECT `b.c` AS x FROM `größe_1`",
        "`select`",
    ),
    _sql(
        "case_of_names",
        "another case in the reference than in the definition",
        "CREATE MATERIALIZED VIEW Sales AS SELECT 1 AS Amount; CREATE MATERIALIZED VIEW t AS SELECT AMOUNT FROM SALES",
        "Sales",
        "t",
    ),
    _sql(
        "schema_in_name",
        "a name with a schema: `silver.a`",
        "CREATE MATERIALIZED VIEW silver.a AS SELECT 1 AS x; CREATE MATERIALIZED VIEW b AS SELECT x FROM silver.a",
        "silver.a",
        "b",
        prepare=("CREATE DATABASE silver",),
    ),
    _sql(
        "three_part_name",
        "a name with catalog and schema: `shop.silver.a`",
        "CREATE MATERIALIZED VIEW shop.silver.a AS SELECT 1 AS x; CREATE MATERIALIZED VIEW b AS SELECT x FROM silver.a",
        "shop.silver.a",
        "b",
        spec=SPEC + "catalog: shop\ndatabase: default\n" + ICEBERG.format(name="shop"),
        prepare=("CREATE NAMESPACE IF NOT EXISTS shop.silver", "CREATE NAMESPACE IF NOT EXISTS shop.default"),
    ),
    _sql(
        "two_catalogs",
        "datasets in two catalogs",
        "CREATE MATERIALIZED VIEW one.s.a AS SELECT 1 AS x; CREATE MATERIALIZED VIEW two.s.b AS SELECT x FROM one.s.a",
        "one.s.a",
        "two.s.b",
        spec=SPEC + ICEBERG.format(name="one") + ICEBERG.format(name="two").split("\n", 1)[1],
        prepare=("CREATE NAMESPACE one.s", "CREATE NAMESPACE two.s"),
    ),
    _sql(
        "use_schema",
        "`USE silver`",
        "USE silver; CREATE MATERIALIZED VIEW a AS SELECT 1 AS x",
        "silver.a",
        prepare=("CREATE DATABASE silver",),
    ),
    _sql(
        "use_catalog",
        "`USE CATALOG` and `USE SCHEMA`",
        "USE CATALOG shop; USE SCHEMA silver; CREATE MATERIALIZED VIEW a AS SELECT 1 AS x",
        "shop.silver.a",
        spec=SPEC + "catalog: shop\ndatabase: default\n" + ICEBERG.format(name="shop"),
        prepare=("CREATE NAMESPACE IF NOT EXISTS shop.silver", "CREATE NAMESPACE IF NOT EXISTS shop.default"),
    ),
    _sql(
        "set",
        "`SET key = value` before a definition",
        "SET spark.sql.ansi.enabled = false; CREATE MATERIALIZED VIEW a AS SELECT CAST('x' AS INT) AS n",
        "a",
    ),
    _sql(
        "set_for_what_follows",
        "`SET` counts for the definitions after it only",
        "CREATE MATERIALIZED VIEW a AS SELECT current_timezone() AS z;"
        "SET spark.sql.session.timeZone = Europe/Berlin;"
        "CREATE MATERIALIZED VIEW b AS SELECT current_timezone() AS z",
        "a",
        "b",
    ),
    _sql(
        "external_table",
        "a table that others write",
        "CREATE MATERIALIZED VIEW a AS SELECT sum(v) AS v FROM shop.ext.t",
        "a",
        spec=SPEC + "catalog: shop\ndatabase: default\n" + ICEBERG.format(name="shop"),
        prepare=(
            "CREATE NAMESPACE IF NOT EXISTS shop.ext",
            "CREATE NAMESPACE IF NOT EXISTS shop.default",
            "CREATE TABLE shop.ext.t AS SELECT 1 AS v",
        ),
        prepare_both=True,
    ),
    _sql(
        "time_travel",
        "`VERSION AS OF` of a table that others write",
        "CREATE MATERIALIZED VIEW a AS SELECT * FROM shop.ext.t VERSION AS OF 'first'",
        "a",
        spec=SPEC + "catalog: shop\ndatabase: default\n" + ICEBERG.format(name="shop"),
        prepare=(
            "CREATE NAMESPACE IF NOT EXISTS shop.ext",
            "CREATE NAMESPACE IF NOT EXISTS shop.default",
            "CREATE TABLE shop.ext.t AS SELECT 1 AS v",
            "ALTER TABLE shop.ext.t CREATE TAG first",
            "INSERT INTO shop.ext.t VALUES (2)",
        ),
        prepare_both=True,
    ),
    _sql(
        "files",
        "a view over files: ``json.`path` ``",
        "CREATE MATERIALIZED VIEW a AS SELECT kind, sum(amount) AS amount FROM json.`@PROJECT@/in/sales` GROUP BY kind",
        "a",
        inputs=SALES,
    ),
    _sql(
        "read_stream_files",
        "a streaming table over files: ``STREAM json.`path` ``",
        "CREATE STREAMING TABLE a AS SELECT * FROM STREAM json.`@PROJECT@/in/sales`",
        "a",
        inputs=SALES,
    ),
    _sql(
        "values",
        "`VALUES`, CTE, subqueries, set operations",
        """
         CREATE MATERIALIZED VIEW a AS
         WITH t AS (SELECT * FROM VALUES (1, 'a'), (2, 'b'), (3, NULL) AS t(id, k))
         SELECT id, k FROM t WHERE id > (SELECT min(id) FROM t)
         UNION ALL SELECT id, k FROM t INTERSECT SELECT 1, 'a'""",
        "a",
    ),
    _sql(
        "types",
        "a column of each type",
        """
         CREATE MATERIALIZED VIEW a AS SELECT true AS b, 3 AS i, 4L AS l, 1.5F AS f, 2.5D AS d,
         CAST(1.23 AS DECIMAL(10, 2)) AS n, 'x' AS c, X'0102' AS y, DATE'2026-01-02' AS dt,
         TIMESTAMP'2026-01-02 03:04:05' AS ts, TIMESTAMP_NTZ'2026-01-02 03:04:05' AS tn,
         array(1, 2) AS ar, map('k', 1) AS m, named_struct('p', 1, 'q', 'r') AS st""",
        "a",
    ),
    _sql(
        "small_integers",
        "TINYINT and SMALLINT columns",
        "CREATE MATERIALIZED VIEW a AS SELECT 1Y AS t, 2S AS s",
        "a",
    ),
    _sql(
        "char_varchar",
        "`CHAR` and `VARCHAR` columns",
        "CREATE MATERIALIZED VIEW a (c CHAR(3), v VARCHAR(5)) AS SELECT 'x' AS c, 'yy' AS v",
        "a",
    ),
    _sql(
        "interval",
        "a column of a type that tables cannot hold",
        "CREATE MATERIALIZED VIEW a AS SELECT INTERVAL '1' DAY AS i",
        "a",
    ),
    _sql(
        "variant",
        "a VARIANT column",
        "CREATE MATERIALIZED VIEW a AS SELECT parse_json('{\"a\": 1}') AS v",
        "a",
    ),
    _sql("void", "a column that is only NULL", "CREATE MATERIALIZED VIEW a AS SELECT NULL AS n, 1 AS x", "a"),
    _sql(
        "empty",
        "a view without rows",
        "CREATE MATERIALIZED VIEW a AS SELECT id FROM range(3) WHERE id > 9",
        "a",
    ),
    _sql(
        "pipe",
        "the pipe syntax: `FROM … |> WHERE …`",
        NUMBERS + "CREATE MATERIALIZED VIEW a AS FROM numbers |> WHERE id > 5 |> SELECT id",
        "a",
    ),
    _sql(
        "group_by_all",
        "`GROUP BY ALL`, `ORDER BY ALL`, `QUALIFY`-free windows",
        NUMBERS
        + "CREATE MATERIALIZED VIEW a AS SELECT k, count(*) AS n FROM numbers GROUP BY ALL ORDER BY ALL;"
        "CREATE MATERIALIZED VIEW w AS SELECT id, row_number() OVER (PARTITION BY k ORDER BY id) AS r FROM numbers",
        "a",
        "w",
    ),
    _sql(
        "pivot",
        "`PIVOT`",
        NUMBERS
        + "CREATE MATERIALIZED VIEW a AS SELECT * FROM (SELECT k, x FROM numbers) PIVOT (sum(x) FOR k IN (0, 1, 2))",
        "a",
    ),
    _sql(
        "lateral",
        "`LATERAL VIEW explode`, table functions",
        "CREATE MATERIALIZED VIEW a AS SELECT e FROM (SELECT array(1, 2, 3) AS l) LATERAL VIEW explode(l) t AS e;"
        "CREATE MATERIALIZED VIEW b AS SELECT * FROM explode(array(4, 5))",
        "a",
        "b",
    ),
    _sql(
        "now",
        "`current_date()` in a filter",
        "CREATE MATERIALIZED VIEW a AS SELECT id FROM range(3) WHERE current_date() > DATE'2000-01-01'",
        "a",
    ),
    Construct(
        "sql_streaming_and_views",
        "SQL views over a Python table",
        {
            "definitions/a.py": SALES_TABLE,
            "definitions/b.sql": "CREATE MATERIALIZED VIEW t AS SELECT kind, sum(amount) AS a FROM sales GROUP BY kind",
        },
        ("sales", "t"),
        SALES,
    ),
    _sql(
        "session_variable",
        "`DECLARE` of a session variable",
        "DECLARE limit_of_ids INT DEFAULT 2; CREATE MATERIALIZED VIEW a AS SELECT id FROM range(5) WHERE id < limit_of_ids",
        "a",
    ),
    _sql(
        "view_function",
        "`CREATE FUNCTION` in a definition file",
        "CREATE TEMPORARY FUNCTION twice(x INT) RETURNS INT RETURN x * 2; CREATE MATERIALIZED VIEW a AS SELECT twice(2) AS x",
        "a",
    ),
    _sql(
        "insert", "`INSERT` in a definition file", NUMBERS + "INSERT INTO numbers VALUES (1, 2, 3)", "numbers"
    ),
    _sql(
        "create_table",
        "`CREATE TABLE` in a definition file",
        "CREATE TABLE t (a INT); CREATE MATERIALIZED VIEW v AS SELECT * FROM t",
        "v",
    ),
    _sql(
        "select",
        "a bare `SELECT` in a definition file",
        "SELECT 1; CREATE MATERIALIZED VIEW v AS SELECT 1 AS a",
        "v",
    ),
    _sql(
        "create_view",
        "`CREATE VIEW` (persistent)",
        "CREATE VIEW v AS SELECT 1 AS a; CREATE MATERIALIZED VIEW w AS SELECT * FROM v",
        "w",
    ),
    _sql(
        "drop",
        "`DROP TABLE` in a definition file",
        "DROP TABLE IF EXISTS x; CREATE MATERIALIZED VIEW v AS SELECT 1 AS a",
        "v",
    ),
    _sql(
        "or_replace",
        "`CREATE OR REFRESH MATERIALIZED VIEW`",
        "CREATE OR REFRESH MATERIALIZED VIEW v AS SELECT 1 AS a",
        "v",
    ),
]
