"""Splitting, normalising and renaming SQL text."""

from __future__ import annotations

import pytest

from tautochrone.model.names import TableName
from tautochrone.project.sqltext import NameScope, split, split_name


def test_split_ignores_semicolons_that_end_nothing() -> None:
    text = (
        "-- a; comment\n"
        "SELECT ';', \"a;b\", 'it''s;', 'x\\';', r'\\', `a;b`; /* ; /* nested; */ ; */\n"
        ";\n"
        "SELECT 2 -- no final semicolon; really\n"
    )
    chunks = split(text)
    assert [chunk.line for chunk in chunks] == [2, 4]
    assert chunks[0].text.endswith("`a;b`")
    assert chunks[1].text == "SELECT 2"


def test_split_keeps_comments_inside_so_that_lines_stay_true() -> None:
    assert split("\n\nSELECT\n-- why\n1;")[0].text == "SELECT\n-- why\n1"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ("a",)),
        ("`a`.`b.c`", ("a", "b.c")),
        ("a.b.c", ("a", "b", "c")),
        ("`x``y`", ("x`y",)),
        ("", ()),
        ("a.", ()),
    ],
)
def test_split_name(text: str, parts: tuple[str, ...]) -> None:
    assert split_name(text) == parts


LIVE_TOTAL = {"total": (TableName("lake", ("default",), "total"), "`lake`.`default`.`total`")}


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("SELECT LIVE.total.id FROM live.total", "SELECT @.id FROM @"),
        ("SELECT * FROM STREAM(LIVE.total)", "SELECT * FROM STREAM(@)"),
        ("SELECT live.total FROM sales AS live", "SELECT live.total FROM sales AS live"),
        (
            "SELECT live.total, t.* FROM sales live JOIN LIVE.total t",
            "SELECT live.total, t.* FROM sales live JOIN @ t",
        ),
        (
            "WITH live AS (SELECT 1 total) SELECT live.total FROM live",
            "WITH live AS (SELECT 1 total) SELECT live.total FROM live",
        ),
        ("SELECT x AS live FROM STREAM /* all */ (LIVE.total)", "SELECT x AS live FROM STREAM /* all */ (@)"),
        (
            "SELECT 1 FROM a AS live WHERE a IS DISTINCT FROM live.total",
            "SELECT 1 FROM a AS live WHERE a IS DISTINCT FROM live.total",
        ),
        ("SELECT live.other FROM live.other", "SELECT live.other FROM live.other"),
    ],
)
def test_live_is_no_database_where_it_is_an_alias(text: str, rewritten: str) -> None:
    scope = NameScope("lake", ("default",), live=dict(LIVE_TOTAL))
    assert scope.rewrite(text) == rewritten.replace("@", "`lake`.`default`.`total`")


def test_table_of_a_database_called_live_comes_before_the_dataset() -> None:
    scope = NameScope("lake", ("default",), live=dict(LIVE_TOTAL))
    scope.prefer_tables_in_live(lambda name: name == TableName("lake", ("live",), "total"))
    assert scope.within(("gold",)).rewrite("FROM live.total") == "FROM live.total"
    # Names of databases are case-sensitive in the lake.
    assert scope.rewrite("FROM LIVE.total") == "FROM `lake`.`default`.`total`"


def test_rewrite() -> None:
    view = TableName("lake", ("silver",), "v")
    scope = NameScope("lake", ("default",), {view: "v"})
    assert scope.rewrite("SELECT silver.v.a FROM silver.v") == "SELECT `v`.a FROM `v`"
    assert (
        scope.rewrite("select * from lake.silver.v join `spark_catalog`.silver.v")
        == "select * from `v` join `v`"
    )
    assert scope.rewrite("FROM spark_catalog.default.t") == "FROM `lake`.default.t"
    assert scope.rewrite("FROM `spark_catalog`.default.t -- spark_catalog.x.y") == (
        "FROM `lake`.default.t -- spark_catalog.x.y"
    )
    assert scope.rewrite("SELECT 'silver.v', x.v, 1.5 FROM parquet.`/a/b`") == (
        "SELECT 'silver.v', x.v, 1.5 FROM parquet.`/a/b`"
    )
