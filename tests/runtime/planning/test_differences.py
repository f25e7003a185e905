"""Normalised texts of definitions, and their columns."""

from __future__ import annotations

import pytest
from pyspark.sql.types import DateType, DecimalType, LongType, StringType, StructType

from tautochrone.model.project_plan import ColumnChangeKind
from tautochrone.runtime.planning.differences import column_changes, normalized_lines, text_difference


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SELECT a, b FROM t", "SELECT a,\n  b -- both\nFROM\n t"),
        ("SELECT a /* one /* two */ */ FROM t", "SELECT a FROM t"),
        ("@dp.table\ndef f():\n    return x  # all", "@dp.table\ndef f():\n\n    return (x)"),
    ],
)
def test_layout_and_comments_are_no_difference(before: str, after: str) -> None:
    assert text_difference(before, after) == ()


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        (
            "SELECT a FROM t LEFT JOIN u ON a = b",
            "SELECT a FROM t JOIN u ON a = b",
            (" SELECT a", " FROM t", "-LEFT JOIN u", "+JOIN u", " ON a = b"),
        ),
        ("SELECT '--' AS a", "SELECT '- -' AS a", ("-SELECT '--' AS a", "+SELECT '- -' AS a")),
        (
            "SELECT coalesce(a, 'x, y') AS a, b FROM t",
            "SELECT coalesce(a, 'x, y') AS a, c FROM t",
            (" SELECT coalesce(a, 'x, y') AS a,", "-b", "+c", " FROM t"),
        ),
        ("def f():\n    return 1", "def f():\n    return 2", (" def f():", "-    return 1", "+    return 2")),
    ],
)
def test_what_a_text_says_is_a_difference(before: str, after: str, difference: tuple[str, ...]) -> None:
    assert text_difference(before, after) == difference


def test_clauses_of_subqueries_stay_on_their_line() -> None:
    text = "CREATE MATERIALIZED VIEW v AS SELECT a FROM (SELECT b FROM t WHERE c) LEFT OUTER JOIN u USING (a)"
    assert normalized_lines(text) == [
        "CREATE MATERIALIZED VIEW v AS",
        "SELECT a",
        "FROM (SELECT b FROM t WHERE c)",
        "LEFT OUTER JOIN u USING (a)",
    ]


def test_broken_python_is_compared_by_lines() -> None:
    assert normalized_lines("def f(:\n    return 1\n\n") == ["def f(:", "return 1"]


def test_columns_that_come_go_and_change() -> None:
    before = StructType().add("a", LongType()).add("b", StringType()).add("c", DecimalType(10, 2))
    after = StructType().add("A", LongType()).add("c", StringType()).add("d", DateType())
    kinds = {change.name: change.kind for change in column_changes(before, after, are_kept=False)}
    assert kinds == {
        "c": ColumnChangeKind.RETYPED,
        "d": ColumnChangeKind.ADDED,
        "b": ColumnChangeKind.REMOVED,
    }
    kept = column_changes(before, after, are_kept=True)[-1]
    assert (kept.name, kept.kind, kept.before, kept.after) == ("b", ColumnChangeKind.KEPT, "string", None)
