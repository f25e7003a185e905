"""Records that do not parse have the line of their file; the truth is the text of the file itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tautochrone.spark.sources.record_lines import TextLayout, with_lines

pytestmark = pytest.mark.spark

LONG = b"1,a\n" * 5_000
CASES: dict[str, tuple[str, bytes, TextLayout, dict[str, str], list[tuple[str, int | None]]]] = {
    "header": (
        "csv",
        b"id,v\r\n1,a\r\n\r\nx,b\r\n# c\r\nid,v\r\nx,b\r\n" + LONG + b"y,\xe4",
        TextLayout(has_header=True),
        {"header": "true", "comment": "#"},
        [("x,b", 4), ("id,v", 6), ("x,b", 7), ("y,\ufffd", 5008)],
    ),
    "comment": (
        "csv",
        b"x\\,b\n#x\nx\n",
        TextLayout(),
        {"comment": "#"},
        [("x\\,b", 1), ("x", 3)],
    ),
    "quoted": (
        "csv",
        b'1,"a\nb"\nx,"c\nd"\n2,e\ny,f\ny,f\n',
        TextLayout(spans_lines=True),
        {"multiLine": "true"},
        [('x,"c\nd"', 3), ("y,f", None), ("y,f", None)],
    ),
    "lines": (
        "json",
        b'{"id":1}\n{"id":"x"}\n[{"id":"y"},{"id":"y"}]\n{"id":"x"}\n{bro\xffken\n',
        TextLayout(),
        {},
        [
            ('{"id":"x"}', 2),
            ('[{"id":"y"},{"id":"y"}]', 3),
            ('[{"id":"y"},{"id":"y"}]', 3),
            ('{"id":"x"}', 4),
            ("{bro\ufffdken", 5),
        ],
    ),
    "encoded": (
        "csv",
        "1,ä|x,ö|".encode("latin-1"),
        TextLayout(encoding="ISO-8859-1", line_separator="|"),
        {"encoding": "ISO-8859-1", "lineSep": "|"},
        [("x,ö", 2)],
    ),
}
"""By name: format, content, layout, options of the reader, the records that do not parse and their lines."""


@pytest.mark.parametrize("name", CASES)
def test_lines(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """In two files, whose name has what paths and patterns treat in a way of their own."""
    file_format, content, layout, options, expected = CASES[name]
    for file in ("a b%20ü.txt", "[g].txt"):
        (tmp_path / file).write_bytes(content)
    rows = (
        spark.read.format(file_format)
        .schema("id INT, v STRING, bad STRING")
        .options(columnNameOfCorruptRecord="bad", **options)
        .load(str(tmp_path))
        .select(sf.input_file_name().alias("file"), sf.col("bad").alias("record"), "id")
        .localCheckpoint()
    )
    numbered = with_lines(spark, rows.where("record IS NOT NULL"), layout)
    by_file: dict[str, list[tuple[str, int | None]]] = {}
    for row in numbered.orderBy("line").collect():
        by_file.setdefault(row["file"], []).append((row["record"], row["line"]))
        assert (row["line"] is None) == (row["no_line"] is not None)
    assert len(by_file) == 2
    for lines in by_file.values():
        assert sorted(lines, key=str) == sorted(expected, key=str)


def test_records_without_a_line_say_why(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.csv").write_text("a\n" * 600_000)
    (tmp_path / "small.csv").write_text("a\na\n")
    files = {name: (tmp_path / f"{name}.csv").as_uri() for name in ("large", "small")}
    rows = [(files["large"], "a"), (files["small"], "a"), (files["small"], "b")]
    records = spark.createDataFrame(rows, "file STRING, record STRING")
    monkeypatch.setattr("tautochrone.spark.sources.record_lines._MAX_LINES_BYTES", 1024**2)
    why = {
        (row["file"], row["record"]): row["no_line"]
        for row in with_lines(spark, records, TextLayout()).collect()
    }
    assert why == {
        (files["large"], "a"): "the file has more than 1 MB",
        (files["small"], "a"): "the file has the text of the record more often than it fails",
        (files["small"], "b"): "the file does not have the text of the record as the reader gives it",
    }
