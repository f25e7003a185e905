"""Notebooks in Jupyter's format as definition files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tautochrone.errors import DefinitionError
from tautochrone.model.reason import ReasonCode
from tautochrone.project.databricks.ipynb import parse_notebook
from tautochrone.project.readable_code import files_read

from .conftest import DialectProject


def notebook(*cells: str, language: str = "python", **metadata: Any) -> str:
    """A notebook as Databricks writes it; a cell that begins with `#` is text for people."""
    entries = [
        {
            "cell_type": "markdown" if cell.startswith("#") else "code",
            "source": cell.splitlines(keepends=True),
        }
        for cell in cells
    ]
    about = metadata or {"application/vnd.databricks.v1+notebook": {"language": language}}
    return json.dumps({"cells": entries, "metadata": about, "nbformat": 4, "nbformat_minor": 0})


def codes(text: str) -> list[tuple[int, str]]:
    return [(cell.number, cell.code) for cell in parse_notebook(text, "a.ipynb").cells]


def test_cells_of_the_notebooks_language_are_code() -> None:
    text = notebook("# Title", "a = 1\nb = 2", "", "%md\nwords", "\n%python\nc = 3", "%sql\nSELECT 1")
    assert codes(text) == [(2, "a = 1\nb = 2"), (5, "\n\nc = 3")]
    assert [(m.cell, m.line, m.text) for m in parse_notebook(text, "a").magic] == [(6, 1, "%sql")]
    assert codes(notebook("%sql\nSELECT 1", "x = 1", "%python\ny = 1", language="sql")) == [
        (1, "\nSELECT 1"),
        (2, "x = 1"),
    ]


def test_magic_lines_leave_the_lines_of_code_where_they_are() -> None:
    text = notebook("%pip install x\n!ls\nif True:\n    %load_ext y\nz = (7\n% 4)\nok = (1\n!= 2)")
    ((_, code),) = codes(text)
    names: dict[str, Any] = {}
    exec(code, names)
    assert (names["z"], names["ok"], code.count("\n")) == (3, True, 7)
    assert [magic.line for magic in parse_notebook(text, "a").magic] == [1, 2, 4]


@pytest.mark.parametrize(
    "metadata", [{"language_info": {"name": "SQL"}}, {"kernelspec": {"language": "sql"}, "language_info": {}}]
)
def test_language_of_other_editors(metadata: dict[str, Any]) -> None:
    assert parse_notebook(notebook("SELECT 1", **metadata), "a").language == "sql"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"cells": [{}]}', '{"cells": [{"cell_type": "code", "source": 1}]}',
     '{"worksheets": [{"cells": []}]}', notebook("val x = 1", language="scala")],
)  # fmt: skip
def test_what_is_no_notebook_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse_notebook(text, "defs/a.ipynb")
    assert (refused.value.error_class, refused.value.location) == ("NOTEBOOK_UNREADABLE", "defs/a.ipynb")
    assert refused.value.hint


def test_run_with_a_notebook_is_not_remembered(tmp_path: Any) -> None:
    file = tmp_path / "a.ipynb"
    file.write_text(notebook("import os"))
    reason = files_read([file], tmp_path)
    assert not isinstance(reason, frozenset)
    assert reason.code is ReasonCode.CODE_MAY_READ


@pytest.mark.spark
def test_notebooks_in_python_and_sql(project: DialectProject) -> None:
    project.define(
        "a.ipynb",
        notebook(
            "# Orders",
            "%pip install nothing\nfrom pyspark import pipelines as dp\n"
            "from pyspark.sql.functions import udf\nfactor = 2",
            "@udf('int')\ndef scaled(value):\n    return value * factor",
            "@dp.table\n@dp.expect_or_drop('known', 'id IS NOT NULL')\ndef orders():\n"
            "    return spark.readStream.schema('id INT').json('@IN@/orders')",
            "@dp.table\ndef doubled():\n"
            "    return spark.read.table('orders').select(scaled('id').alias('id'))",
        ),
    )
    project.define(
        "b.ipynb",
        notebook(
            "USE side",
            "CREATE OR REFRESH MATERIALIZED VIEW big AS SELECT * FROM default.doubled WHERE id > 3",
            language="sql",
        ),
    )
    project.json("orders/1.json", {"id": 1}, {"id": 2}, {})
    events = project.run()
    assert project.rows("SELECT * FROM side.big") == [(4,)]
    assert "definitions/a.ipynb#2:1" in [event["location"] for event in events.of("definition_warning")]


@pytest.mark.spark
def test_errors_name_the_cell_and_its_line(project: DialectProject) -> None:
    project.define("a.ipynb", notebook("import dlt", "x = 1\nmissing()"))
    project.define("b.ipynb", notebook("\n\nCREATE LIVE TABEL t AS SELECT 1", language="sql"))
    with pytest.raises(DefinitionError) as refused:
        project.pipeline.run()
    text = refused.value.render()
    assert "definitions/a.ipynb#2:2" in text
    assert "missing()" in text
    assert "definitions/b.ipynb#1:3" in text
