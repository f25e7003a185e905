"""Notebooks in Jupyter's format as definition files."""

from __future__ import annotations

import json
import random
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


_MAGIC = [
    "%pip install x", "% pip install x", "!ls -l", "!!ls", "%load_ext a.b  # why", "?len", "len?",
    "os.path??", "!echo \"it's (", "%pip install a \\\n  b \\\n c",
]  # fmt: skip
_STATEMENTS = [
    "NAME = (7\n% 4)", "NAME = 7 \\\n% 4", "NAME = [1,\n  100\n%3]", "NAME = (1\n!= 2)",
    "NAME = '%d' \\\n  % 3", "NAME = '''\n%100 AS cents\n!ls\nlen?\n'''", "NAME = f'''{1}\n%100\n    %b)'''",
    "NAME = 'a\\\n%b'", "NAME = 1  # what?", "NAME = f'{2!r}{3 % 2}'\n# %pip in a comment", "",
    "@str\ndef NAME():\n    return '''\n  %b'''",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_magic_commands_only_where_a_statement_begins(seed: int) -> None:
    choose = random.Random(seed)
    lines, plain, commands = [], [], []
    for number in range(choose.randint(2, 8)):
        if choose.random() < 0.5:
            command = choose.choice(_MAGIC)
            # A block that consists of the command, or a command of its own.
            block = choose.choice(["", "if True:\n    "])
            commands.append((sum(text.count("\n") + 1 for text in lines) + (2 if block else 1), command))
            lines.append(block + command)
        else:
            statement = choose.choice(_STATEMENTS).replace("NAME", f"v{number}")
            lines.append(statement)
            plain.append(statement)
    text = notebook("\n".join(lines))
    (code,) = [code for _, code in codes(text)] or [""]
    values: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    exec(code, values)
    exec("\n".join(plain), expected)
    names = [name for name in expected if name.startswith("v")]
    # A decorated function shows its address.
    assert [str(values[name])[:11] for name in names] == [str(expected[name])[:11] for name in names]
    assert [(m.line, m.text) for m in parse_notebook(text, "a").magic] == [
        (line, command.split("\n")[0]) for line, command in commands
    ]


def test_indentation_of_a_whole_cell_and_timed_statements() -> None:
    values: dict[str, Any] = {}
    exec(codes(notebook("  %time a = 1\n  if a:\n    %time b = 2"))[0][1], values)
    assert (values["a"], values["b"]) == (1, 2)


@pytest.mark.parametrize(
    ("cell", "language", "code"),
    [
        ("%%bash\nls", "python", None),
        ("%%writefile a.py\nx = 1", "python", None),
        ("%%!\nls", "python", None),
        ("%%capture out\nx = 1", "python", "\nx = 1"),
        ("%run ./a\nx = 1", "python", "\nx = 1"),
        ("%%sql\nSELECT 1", "sql", "\nSELECT 1"),
        ("%pip install x", "sql", None),
        ("%run ./a", "sql", None),
    ],
)
def test_magic_commands_of_whole_cells(cell: str, language: str, code: str | None) -> None:
    text = notebook(cell, language=language)
    assert [code for _, code in codes(text)] == ([] if code is None else [code])
    is_ignored = code is None or cell.startswith("%run")
    assert [m.text for m in parse_notebook(text, "a").magic] == cell.split("\n")[:1] * is_ignored


@pytest.mark.parametrize("line", ["x = !ls", "x, y = %time 5", "x =!ls 'a"])
def test_the_result_of_a_magic_command_is_refused(line: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse_notebook(notebook("a = 1", f"!ls '\nif a:\n    {line}"), "defs/a.ipynb")
    assert (refused.value.error_class, refused.value.location) == (
        "MAGIC_RESULT_NOT_SUPPORTED",
        "defs/a.ipynb#2:3",
    )
    assert line in refused.value.message


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
            # Futures are those of the notebook, from the cell on that imports them.
            "class Row:\n    id: int\nassert Row.__annotations__['id'] is int",
            "from __future__ import annotations",
            "class Row:\n    id: int\nassert Row.__annotations__['id'] == 'int'",
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
