"""A project with datasets of each kind, and changes of it that a plan has to foretell."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from tests.support.harness import Pipeline

__all__ = ["CHANGES", "REFUSED", "TOGETHER", "write_project"]

_SALES = """
from pyspark import pipelines as dp

SCHEMA = "id BIGINT, kind STRING, amount DECIMAL(10, 2), at TIMESTAMP"

@dp.table
def sales():
    return spark.readStream.schema(SCHEMA).json("@IN@/sales")
"""
_NAMED = """
from pathlib import Path
from pyspark import pipelines as dp
from pyspark.sql import functions as sf

def tidy(text):
    stripped = text.strip()
    return stripped.lower()

@dp.materialized_view
def named():
    names = dict(line.split("=") for line in Path("names.txt").read_text().split())
    pairs = sf.create_map(*(sf.lit(part) for pair in names.items() for part in pair))
    kind = sf.udf(tidy, "string")("kind")
    return spark.table("clean").select("id", kind.alias("kind"), pairs[kind].alias("name"))
"""
_SQL = {
    "clean": "CREATE STREAMING TABLE clean AS SELECT id, kind, amount FROM STREAM sales WHERE amount > 0;",
    "totals": "CREATE MATERIALIZED VIEW totals AS\n"
    "  SELECT kind, sum(amount) AS amount FROM clean GROUP BY kind;",
    "big": "CREATE MATERIALIZED VIEW big AS SELECT id, amount FROM sales WHERE amount > 10;",
    "pairs": "CREATE MATERIALIZED VIEW pairs AS\n"
    "  SELECT b.id, t.kind FROM big b LEFT JOIN totals t ON b.amount = t.amount;",
    "top": "CREATE MATERIALIZED VIEW top AS SELECT max(amount) AS amount FROM totals;",
    "merged": "CREATE STREAMING TABLE merged;\n"
    "CREATE FLOW first AS INSERT INTO merged BY NAME SELECT id FROM STREAM chosen;",
    "chosen": "CREATE STREAMING TABLE chosen AS SELECT id FROM STREAM clean;",
}


def write_project(pipeline: Pipeline) -> None:
    """The project, with three kinds and nine sales."""
    folder = pipeline.folder / "in"
    (folder / "sales").mkdir(parents=True)
    (folder / "returns").mkdir()
    rows = [{"id": n, "kind": f"k{n % 3}", "amount": 7.5 * n, "at": "2026-01-01T00:00:00Z"} for n in range(9)]
    (folder / "sales/1.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "returns/1.json").write_text('{"id": 3}\n')
    pipeline.write("names.txt", "k0=zero k1=first")
    pipeline.write("definitions/sales.py", _SALES.replace("@IN@", str(folder)))
    pipeline.write("definitions/named.py", _NAMED)
    for name, text in _SQL.items():
        pipeline.write(f"definitions/{name}.sql", text)


def _edit(file: str, before: str, after: str) -> Callable[[Pipeline], None]:
    def edit(pipeline: Pipeline) -> None:
        path = pipeline.folder / file
        text = path.read_text()
        assert before in text, (file, text)
        path.write_text(text.replace(before, after))

    return edit


def _add(file: str, text: str) -> Callable[[Pipeline], None]:
    def add(pipeline: Pipeline) -> None:
        pipeline.write(file, text.replace("@IN@", str(pipeline.folder / "in")))

    return add


def _split(pipeline: Pipeline) -> None:
    _add(
        "definitions/positive.sql",
        "CREATE MATERIALIZED VIEW positive AS SELECT id, amount FROM sales WHERE amount > 20;",
    )(pipeline)
    _edit("definitions/big.sql", "FROM sales WHERE amount > 20", "FROM positive")(pipeline)


def _remove(pipeline: Pipeline) -> None:
    (pipeline.folder / "definitions/top.sql").unlink()


def _sink(pipeline: Pipeline) -> None:
    options = f'[sinks.mirror.options]\npath = "{pipeline.folder}/mirror.db"\n'
    mirror = f'[sinks.mirror]\nformat = "toy-sqlite"\n{options}'
    pipeline.write("tautochrone.toml", mirror)
    pipeline.reload()
    _edit("definitions/totals.sql", "totals AS", "totals TBLPROPERTIES ('tautochrone.sinks' = 'mirror') AS")(
        pipeline
    )


CHANGES: Mapping[str, tuple[Callable[[Pipeline], None], ...]] = {
    # A row each: what is changed for one run. Changes of a row do not meet.
    "cosmetic": (
        _edit("definitions/totals.sql", "SELECT kind", "-- by kind\n  SELECT\n    kind"),
        _edit("definitions/pairs.sql", "b.id, t.kind FROM big b LEFT", "x.id, t.kind FROM big AS x LEFT"),
        _edit("definitions/pairs.sql", "ON b.", "ON x."),
        _edit("definitions/named.py", "stripped", "trimmed"),
        _edit("definitions/named.py", "def tidy(text):", "def tidy(text):  # of one spelling"),
    ),
    "filter_and_udf": (
        _edit("definitions/big.sql", "> 10", "> 20"),
        _edit("definitions/named.py", ".lower()", ".upper()"),
    ),
    "join_type_and_file": (
        _edit("definitions/pairs.sql", "LEFT JOIN", "JOIN"),
        _edit("names.txt", "k1=first", "K1=first"),
    ),
    "view_renamed": (_edit("definitions/top.sql", "VIEW top", "VIEW topmost"),),
    "column": (_edit("definitions/totals.sql", "sum(amount)", "count(*) AS n, sum(amount)"),),
    "view_split": (_split,),
    "source_and_sink": (
        _add(
            "definitions/returns.py",
            "from pyspark import pipelines as dp\n\n@dp.table\ndef returns():\n"
            '    return spark.readStream.schema("id BIGINT").json("@IN@/returns")\n',
        ),
        _sink,
    ),
    "columns_of_streams": (
        _edit("definitions/sales.py", "at TIMESTAMP", "at TIMESTAMP, note STRING"),
        _edit("definitions/clean.sql", "kind, amount", "kind, amount, at"),
    ),
    "column_gone": (
        _edit("definitions/sales.py", ", note STRING", ""),
        _edit("definitions/pairs.sql", "x.id, t.kind", "x.id"),
    ),
    "view_gone_and_type": (_remove, _edit("definitions/totals.sql", "sum(amount)", "sum(amount + 1)")),
    "flow_renamed": (_edit("definitions/merged.sql", "FLOW first", "FLOW second"),),
    "expectation_and_invariant": (
        _add("invariants/positive.sql", "SELECT * FROM totals WHERE n < 0"),
        _edit("definitions/totals.sql", "totals TBL", "totals (CONSTRAINT some EXPECT (n > 0)) TBL"),
    ),
}
"""In this order, on top of each other."""

TOGETHER: Sequence[Sequence[str]] = (
    ("cosmetic",),
    ("filter_and_udf", "view_renamed"),
    ("join_type_and_file", "column", "view_split", "source_and_sink"),
    ("columns_of_streams", "flow_renamed"),
    ("column_gone", "view_gone_and_type", "expectation_and_invariant"),
)
"""The same in fewer runs."""

REFUSED: Mapping[str, tuple[Callable[[Pipeline], None], str]] = {
    "type_of_stream": (
        _edit("definitions/clean.sql", "kind, amount", "kind, CAST(amount AS STRING) AS amount"),
        "INCOMPATIBLE_SCHEMA_CHANGE",
    ),
}
