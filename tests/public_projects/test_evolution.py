"""Definitions that change between two runs."""

from __future__ import annotations

import pytest

from .conftest import Survey

pytestmark = pytest.mark.spark

SALES = """
from pyspark import pipelines as dp
from pyspark.sql.functions import col


@dp.table
def sales():
    return spark.readStream.schema("id BIGINT, kind STRING, amount INT").json("@IN@/sales")
"""
EVERYTHING = "CREATE MATERIALIZED VIEW everything AS SELECT * FROM sales;"


def test_definitions_change(survey: Survey) -> None:
    """An added column of a view and of a derived stream, another filter, a dataset less and one more."""
    derived = "CREATE STREAMING TABLE clean AS SELECT id, upper(kind) AS kind FROM STREAM sales;"
    survey.define("sales.py", SALES)
    survey.define("clean.sql", derived)
    survey.define(
        "views.sql",
        """
        CREATE MATERIALIZED VIEW big AS SELECT id, amount FROM sales WHERE amount > 10;
        CREATE MATERIALIZED VIEW totals AS SELECT kind, sum(amount) AS amount FROM sales GROUP BY kind;
        CREATE MATERIALIZED VIEW doomed AS SELECT id FROM sales;
        CREATE MATERIALIZED VIEW kinds AS SELECT kind, count(*) AS n FROM clean GROUP BY kind;
        """,
    )
    survey.json("sales/1.json", {"id": 1, "kind": "a", "amount": 5}, {"id": 2, "kind": "a", "amount": 50})
    survey.build()
    survey.define("clean.sql", derived.replace("AS kind", "AS kind, amount"))
    survey.define(
        "views.sql",
        """
        CREATE MATERIALIZED VIEW big AS SELECT id, amount FROM sales WHERE amount > 4;
        CREATE MATERIALIZED VIEW totals AS
          SELECT kind, count(*) AS n, CAST(sum(amount) AS STRING) AS amount FROM sales GROUP BY kind;
        CREATE MATERIALIZED VIEW fresh AS SELECT max(n) AS n FROM totals;
        CREATE MATERIALIZED VIEW kinds AS SELECT kind, count(*) AS n FROM clean GROUP BY kind;
        """,
    )
    survey.json("sales/2.json", {"id": 3, "kind": "b", "amount": 1})
    happened = survey.build()
    assert survey.rows("SELECT * FROM big") == [(1, 5), (2, 50)]
    assert survey.rows("SELECT * FROM totals") == [("a", 2, "55"), ("b", 1, "1")]
    assert survey.rows("SELECT * FROM fresh") == [(2,)]
    assert happened.mode("big") == ("full", "the definition changed: its query")
    assert survey.rows("SELECT * FROM clean") == [(1, "A", None), (2, "A", None), (3, "B", 1)]
    assert survey.rows("SELECT * FROM kinds") == [("A", 2), ("B", 1)]
    assert survey.pipeline.query("SELECT * FROM totals", checkpoint=1) == [("a", 55)]
    assert survey.pipeline.query("SELECT * FROM doomed", checkpoint=1) == [(1,), (2,)]


def test_stream_gains_columns(survey: Survey) -> None:
    """Old rows have NULL in new columns; older checkpoints keep their columns."""
    survey.define("views.sql", EVERYTHING)
    survey.define("sales.py", SALES)
    survey.json("sales/1.json", {"id": 1, "kind": "a", "amount": 5})
    survey.build()
    survey.define("sales.py", SALES.replace("amount INT", "amount INT, note STRUCT<text: STRING>"))
    survey.define("notes.sql", "CREATE MATERIALIZED VIEW notes AS SELECT id, note.text FROM sales")
    # First without a new row: a view that names the new column must work anyway.
    happened = survey.build()
    assert happened.of("columns_added")[0]["columns"] == ["note"]
    assert survey.rows("SELECT * FROM notes") == [(1, None)]
    assert survey.rows("SELECT id, note FROM everything") == [(1, None)]
    survey.json("sales/2.json", {"id": 2, "kind": "b", "amount": 20, "note": {"text": "hi"}})
    survey.build()
    assert survey.rows("SELECT * FROM notes") == [(1, None), (2, "hi")]
    assert survey.pipeline.query("SELECT * FROM sales", checkpoint=1) == [(1, "a", 5)]
    assert survey.rows("SELECT id FROM everything") == [(1,), (2,)]


def test_stream_loses_a_column_and_changes_a_type(survey: Survey) -> None:
    """The table keeps the column, and new rows have NULL there, as in Spark's own pipelines. The type is
    refused with a class, and nothing changes; a full refresh gives the table its new columns."""
    survey.define("views.sql", EVERYTHING)
    survey.define("sales.py", SALES)
    survey.json("sales/1.json", {"id": 1, "kind": "a", "amount": 5})
    survey.build()
    survey.define("sales.py", SALES.replace("kind STRING, amount INT", "amount BIGINT, place STRING"))
    survey.json("sales/2.json", {"id": 2, "amount": 7, "place": "x"})
    survey.build()
    rows = [(1, "a", 5, None), (2, None, 7, "x")]
    assert survey.rows("SELECT id, kind, amount, place FROM sales") == rows
    assert survey.rows("SELECT id, kind, place FROM everything") == [(1, "a", None), (2, None, "x")]
    survey.define("sales.py", SALES.replace("amount INT", "amount STRING"))
    survey.json("sales/3.json", {"id": 3, "kind": "b", "amount": "x"})
    with pytest.raises(Exception, match=r"INCOMPATIBLE_SCHEMA_CHANGE.*amount"):
        survey.pipeline.run()
    assert survey.rows("SELECT id, kind, amount, place FROM sales") == rows
    survey.build(full=["sales"])
    rows_as_text = [(1, "a", "5"), (2, None, "7"), (3, "b", "x")]
    assert survey.rows("SELECT id, kind, amount FROM everything") == rows_as_text
    assert survey.pipeline.query("SELECT * FROM sales", checkpoint=1) == [(1, "a", 5)]
