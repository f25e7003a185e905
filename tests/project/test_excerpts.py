"""Errors underline the wrong part, in the text as its author wrote it."""

from __future__ import annotations

import pytest

from tautochrone.errors import Excerpt, TautochroneError

from .conftest import ProjectMaker

MV = "CREATE MATERIALIZED VIEW"


def marked(error: TautochroneError) -> str:
    assert error.excerpt is not None, error.render()
    excerpt = error.excerpt
    return excerpt.text[excerpt.start : excerpt.start + excerpt.length]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        (f"\n{MV} m AS SELECT\n  id,\n  nme FROM RANGE(3)", 4, "nme"),
        (f"{MV} m AS\nSELECT a b\nc FROM x", 3, "c"),
        (f"{MV} m AS\nSELECT a FROM (SELECT 1 a", 2, ""),
        (f"{MV} m AS\n  SELECT sum(id),\n id\n FROM RANGE(3)", 2, "SELECT sum(id),"),
        # The rewritten text has other names on the same line, shorter and longer ones.
        (
            f"{MV} o AS SELECT 1 a;\n{MV} m AS\nSELECT spark_catalog.default.o.aa FROM default.o",
            3,
            "spark_catalog.default.o.aa",
        ),
        (
            f"CREATE VIEW a_view AS SELECT 1 a;\n{MV} m AS SELECT default.a_view.a, nme FROM default.a_view",
            2,
            "nme",
        ),
        # Spark shows 32 characters on each side only.
        (f"{MV} m AS SELECT {', '.join(f'id AS c{i}' for i in range(50))}, nme FROM RANGE(3)", 1, "nme"),
    ],
)
def test_sql(project: ProjectMaker, text: str, line: int, part: str) -> None:
    error = project.sql_error(text)
    assert marked(error) == part, error.render()
    assert error.excerpt is not None
    assert error.excerpt.line == line
    assert error.location == f"defs/a.sql:{line}"
    assert error.excerpt.text in text.splitlines()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("body", "line", "part"),
    [
        ("return spark.sql('SELECT 1 a, nme')", None, "nme"),
        ("return spark.range(3).select('nme')", 5, "spark.range(3).select('nme')"),
        ("é = {}; return spark.range(é['k'] + 1)", 5, "é['k']"),
        ("return spark.range(]", 5, "]"),
    ],
)
def test_python(project: ProjectMaker, body: str, line: int | None, part: str) -> None:
    error = project.python_error("\n@dp.materialized_view\ndef m():\n    " + body + "\n")
    assert marked(error) == part, error.render()
    assert error.excerpt is not None
    assert error.excerpt.line == line
    assert error.location == "defs/a.py:5"


@pytest.mark.parametrize(
    ("excerpt", "shown"),
    [
        (Excerpt("SELECT nme", 12, 7, 3), ("   12 | SELECT nme", "      |        ^^^")),
        (Excerpt("SELECT nme", None, 7, 3), ("  SQL | SELECT nme", "      |        ^^^")),
        # The end of a line has no width, and still an arrow.
        (Excerpt("SELECT (", 1, 8, 0), ("    1 | SELECT (", "      |         ^")),
        # Wide characters take two columns, combining ones none, a tab depends on the terminal.
        (
            Excerpt("\t'日本' e\u0301 nme", 1, 9, 3),
            ("    1 | \t'日本' e\u0301 nme", "      | \t         ^^^"),
        ),
        (Excerpt("日本", 1, 0, 2), ("    1 | 日本", "      | ^^^^")),
        # A position outside of the text must not break anything.
        (Excerpt("short", 1, 70, 5), ("    1 | short", "      |      ^")),
    ],
)
def test_the_underline_stands_below(excerpt: Excerpt, shown: tuple[str, str]) -> None:
    assert excerpt.shown() == shown


def test_long_lines_are_cut_around_the_part() -> None:
    text, line = Excerpt("x" * 500 + "nme" + "y" * 500, 1, 500, 3).shown()
    assert len(text) < 140
    assert text.count("…") == 2
    assert text[line.index("^") : line.rindex("^") + 1] == "nme"


def test_the_message_comes_first_and_the_hint_last() -> None:
    error = TautochroneError("A_CLASS", "A sentence", hint="do this", excerpt=Excerpt("SELECT nme", 1, 7, 3))
    assert [line.split()[0] for line in error.render().splitlines()] == ["[A_CLASS]", "1", "|", "hint:"]
