"""Files as Auto Loader and read_files read them."""

from __future__ import annotations

import pytest

from .conftest import DialectProject

pytestmark = pytest.mark.spark


def warnings(project: DialectProject) -> list[str]:
    """Of the last run's definitions."""
    return [str(warning.reason) for warning in project.pipeline.job.definitions.warnings]


def test_auto_loader_reads_new_files_as_strings(project: DialectProject) -> None:
    project.define(
        "bronze.py",
        """
        import dlt

        @dlt.table
        def orders():
            return (
                spark.readStream.format("cloudFiles")
                .option("cloudFiles.format", "csv")
                .option("cloudFiles.schemaLocation", "/mnt/schema")
                .options(**{"cloudFiles.useNotifications": True, "cloudFiles.maxFilesPerTrigger": 1})
                .load("@IN@/orders")
                .selectExpr("*", "_metadata.file_name AS file")
            )

        IMPORTED = (
            spark.readStream.format("cloudFiles").option("cloudFiles.format", "csv").load("@IN@/orders")
        )
        NAMES = [name for name in IMPORTED.columns if not name.startswith("_")]

        @dlt.table
        def upper():
            return IMPORTED.select(NAMES).toDF(*[name.upper() for name in NAMES])
        """,
    )
    project.data("orders/a/1.csv", "id,amount\n1,2.50\n")
    project.build()
    assert project.rows("SELECT * FROM upper") == [("1", "2.50")]
    assert project.rows("SELECT id, amount, _rescued_data, file FROM orders") == [
        ("1", "2.50", None, "1.csv")
    ]
    assert warnings(project) == ["cloudFiles.useNotifications of orders has no effect here"]
    project.data("orders/a/2.csv", "id,amount\nx,3\n")
    assert {event["rows"] for event in project.build().of("batch")} == {1}
    assert project.rows("SELECT id FROM orders") == [("1",), ("x",)]


def test_csv_files_with_another_header_are_refused(project: DialectProject) -> None:
    """Spark goes by places: values would be in the wrong columns, without a word."""
    project.define(
        "bronze.py",
        """
        import dlt

        @dlt.table
        def orders():
            reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", "csv")
            return reader.load("@IN@/orders")

        @dlt.table
        def unnamed():
            reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", "csv")
            return reader.load("@IN@/unnamed")
        """,
    )
    project.data("orders/1.csv", "id,amount\n1,2\n")
    project.data("unnamed/1.csv", ",amount\n1,2\n")
    project.build()
    many = "".join(f"{number},0\n" for number in range(2, 9))
    # The columns are those of the largest file.
    project.data("orders/2.csv", f"id,amount\n{many}")
    project.data("unnamed/2.csv", ",amount\n2,3\n")
    for header, shown in (("amount,id", "amount, id, not id, amount"), ("op,id,amount", "3 columns, not 2")):
        project.data("orders/3.csv", f"{header}\n9,1\n")
        failure = project.pipeline.run().failure("orders")
        assert "[CSV_HEADER_DIFFERS]" in failure
        assert f"/orders/3.csv has {shown}" in failure
    assert project.rows("SELECT id, amount FROM orders") == [("1", "2")]
    assert project.rows("SELECT _c0, amount FROM unnamed") == [("1", "2"), ("2", "3")]
    (project.inputs / "orders/3.csv").unlink()
    project.data("orders/4.csv", "ID,amount\n9,1\n")
    project.build()
    assert project.rows("SELECT count(*), max(id) FROM orders") == [(9, "9")]


def test_read_files_in_sql_and_values_that_do_not_fit(project: DialectProject) -> None:
    project.pipeline.write(
        "spark-pipeline.yml",
        f"""\
        name: test
        storage: storage
        libraries:
          - glob:
              include: definitions/**
        configuration:
          source: {project.inputs}
        """,
    )
    project.define(
        "all.sql",
        """
        CREATE STREAMING TABLE orders AS
        SELECT id, amount, _metadata.file_name AS file
        FROM STREAM read_files('${source}/orders', format => 'json');
        CREATE MATERIALIZED VIEW countries AS
        SELECT * FROM read_files('${source}/countries/*.csv', header => 'true');
        CREATE MATERIALIZED VIEW both AS
        WITH names AS (SELECT * FROM read_files('${source}/countries/*.csv', header => 'true'))
        SELECT name, amount FROM orders JOIN names USING (id);
        """,
    )
    project.define(
        "rescued.py",
        """
        from pyspark import pipelines as dp

        @dp.table
        @dp.expect_or_drop("rescued", "unread IS NULL")
        def payments():
            reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", "json")
            reader = reader.option("cloudFiles.rescuedDataColumn", "unread")
            reader = reader.option("cloudFiles.inferColumnTypes", "true")
            return reader.option("cloudFiles.schemaHints", "amount INT").load("@IN@/payments")
        """,
    )
    project.json("orders/1.json", {"id": 1, "amount": 5})
    project.data("countries/1.csv", "id,name\n1,NO\n")
    project.json("payments/1.json", {"id": 1, "amount": 5})
    project.json("payments/2.json", {"id": 2, "amount": "many"})
    events = project.build()
    assert project.rows("SELECT id, amount FROM payments") == [(1, 5)]
    (batch,) = (batch for batch in events.of("batch") if batch["flow"] == "payments")
    assert [count["violations"] for count in batch["expectations"]] == [1]
    assert project.rows("SELECT * FROM orders") == [(1, 5, "1.json")]
    assert project.rows("SELECT id, name FROM countries") == [(1, "NO")]
    assert project.rows("SELECT * FROM both") == [("NO", 5)]


def test_nested_values_are_strings_unless_types_are_inferred(project: DialectProject) -> None:
    project.define(
        "a.py",
        """
        import dlt

        def trains(infers):
            reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", "json")
            return reader.option("cloudFiles.inferColumnTypes", infers).load("@IN@/trains")

        @dlt.table
        def texts():
            return trains("false")

        @dlt.table
        def values():
            return trains("true").select("route.name", "stops")
        """,
    )
    project.json("trains/1.json", {"route": {"name": "red"}, "stops": [1, 2]})
    project.build()
    assert project.rows("SELECT route, stops FROM texts") == [('{"name": "red"}', "[1, 2]")]
    assert project.rows("SELECT * FROM values") == [("red", [1, 2])]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("cloudFiles.includeExistingFiles", "false"),
        ("cloudFiles.cleanSource", "DELETE"),
        ("cloudFiles.x", "1"),
        ("badRecordsPath", "/bad"),
    ],
)
def test_options_that_would_read_other_rows_are_refused(
    project: DialectProject, option: str, value: str
) -> None:
    project.define(
        "bronze.py",
        f"""
        import dlt

        @dlt.table
        def orders():
            reader = spark.readStream.format("cloudFiles").option("cloudFiles.format", "json")
            return reader.option("{option}", "{value}").load("@IN@")
        """,
    )
    project.json("1.json", {"id": 1})
    with pytest.raises(Exception, match="DATABRICKS_ONLY") as refused:
        project.pipeline.run()
    assert option in str(refused.value)
    assert "bronze.py:7" in str(refused.value)
