"""Files of every kind of content give the rows that Spark's own reader gives, or an error.

Contents × options × formats are generated; the truth is Spark's batch reader in a session of its own. A flow
takes the files in as a stream; views read them in batch: all columns, one of them, none of them, and with
conditions that Spark evaluates while it parses.
"""

from __future__ import annotations

import bz2
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.support.harness import Happened, Pipeline

pytestmark = pytest.mark.spark

PARTS = 16
SCHEMA = "id BIGINT, v STRING, w INT"
VIEWS = {
    "whole": ("true", ("*",)),
    "one": ("true", ("v",)),
    "none": ("true", ("count(*) AS n",)),
    "missing": ("id IS NULL", ("*",)),
    "present": ("id >= 2", ("v", "w")),
}
"""Name → condition and columns of a view over the rows of the files."""
HEADER = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
"""
FLOW = """
@dp.table(name="{name}_stream")
def {name}_stream():
    return spark.readStream.format({format!r}).schema({schema!r}).options(**{options!r}).load({folder!r})
"""
VIEW = """
@dp.materialized_view(name="{name}_{view}")
def {name}_{view}():
    rows = spark.read.format({format!r}).schema({schema!r}).options(**{options!r}).load({folder!r})
    return rows.where({condition!r}).selectExpr(*{columns!r})
"""


@dataclass(frozen=True)
class Case:
    """A folder with one good file and one of the content."""

    name: str
    format: str
    content: bytes
    options: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""
    good: bytes | None = None
    schema: str = SCHEMA
    view_names: tuple[str, ...] = tuple(VIEWS)

    @property
    def views(self) -> Mapping[str, tuple[str, tuple[str, ...]]]:
        return {name: VIEWS[name] for name in self.view_names}

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        if self.good is not None:
            (folder / f"a.{self.format}").write_bytes(self.good)
        (folder / f"b.{self.format}{self.suffix}").write_bytes(self.content)

    def read(self, session: SparkSession, folder: Path) -> DataFrame:
        return session.read.format(self.format).schema(self.schema).options(**self.options).load(str(folder))


CSV_LINES = "1,one,10\n2,two,20\n3,three,30\n"
JSON_LINES = "".join(
    json.dumps({"id": n, "v": text, "w": 10 * n}) + "\n" for n, text in ((1, "one"), (2, "two"), (3, "drei"))
)


def texts() -> Iterator[tuple[str, str, str, dict[str, str], bytes]]:
    """Name, format, suffix, options of the content itself, and the content, of the formats that are text."""
    for kind, lines, value in (
        ("csv", CSV_LINES, "2,zwölf,20"),
        ("json", JSON_LINES, '{"id":2,"v":"zwölf"}'),
    ):
        plain = lines.encode()
        umlaut = f"{value}\n{lines}"
        yield "plain", kind, "", {}, plain
        yield "empty", kind, "", {}, b""
        yield "blank_lines", kind, "", {}, b"\n\n" + plain.replace(b"\n", b"\n\n   \n")
        yield "no_end_of_line", kind, "", {}, plain.rstrip()
        yield "cr_lf", kind, "", {}, plain.replace(b"\n", b"\r\n")
        yield "cr", kind, "", {}, plain.replace(b"\n", b"\r")
        yield "line_separator", kind, "", {"lineSep": "|"}, plain.replace(b"\n", b"|")
        yield "bom", kind, "", {}, b"\xef\xbb\xbf" + umlaut.encode()
        yield "utf_16", kind, "", {}, umlaut.encode("utf-16")
        yield "utf_16_named", kind, "", {"encoding": "UTF-16LE", "lineSep": "\n"}, umlaut.encode("utf-16-le")
        yield "latin_1", kind, "", {}, umlaut.encode("latin-1")
        yield "latin_1_named", kind, "", {"encoding": "ISO-8859-1", "lineSep": "\n"}, umlaut.encode("latin-1")
        yield "nul_bytes", kind, "", {}, plain.replace(b"w", b"\0") + b"\0\0\0\n" + plain
        yield "gzip", kind, ".gz", {}, gzip.compress(plain)
        yield "gzip_of_two", kind, ".gz", {}, gzip.compress(plain) + gzip.compress(plain)
        yield "gzip_with_garbage", kind, ".gz", {}, gzip.compress(plain) + b"garbage behind"
        yield "gzip_cut", kind, ".gz", {}, gzip.compress(plain * 200)[:-12]
        yield "gzip_without_end", kind, ".gz", {}, gzip.compress(plain * 200)[:-8]
        yield "gzip_bad_sum", kind, ".gz", {}, gzip.compress(plain)[:-8] + b"\0" * 8
        yield "no_gzip", kind, ".gz", {}, plain
        yield "gzip_unnamed", kind, "", {}, gzip.compress(plain)
        yield "bzip_of_two", kind, ".bz2", {}, bz2.compress(plain) + bz2.compress(plain)
        yield "bzip_cut", kind, ".bz2", {}, bz2.compress(plain)[:-5]
    csv = {
        "quote_open": b'1,"one,10\n2,two,20\n3,three,30\n',
        "quote_with_break": b'1,"one\nmore",10\n2,two,20\n',
        "quote_inside": b'1,on"e,10\n2,"two"x,20\n3,"th""ree",30\n4,"fo\\"ur",40\n',
        "short": b"1\n2,two\n3,three,30\n",
        "long": b"1,one,10,more\n2,two,20,x,y\n3,three,30\n",
        "not_fitting": b"x,one,10\n2,two,y\n3,three,99999999999\n4,,\n",
        "spaces": b" 1 , one , 10 \n\t\n2,two,20\n",
        "comment": b"#1,one,10\n2,two,20\n",
    }
    for name, content in csv.items():
        yield name, "csv", "", {"comment": "#"} if name == "comment" else {}, content
    yield "header", "csv", "", {"header": "true"}, b"id,v,w\n1,one,10\n"
    yield "header_in_other_order", "csv", "", {"header": "true"}, b"v,id,w\none,1,10\n"
    yield "header_strict", "csv", "", {"header": "true", "enforceSchema": "false"}, b"v,id,w\none,1,10\n"
    other = {
        "open": b'{"id":1,"v":"one"}\n{"id":2,"v":"tw\n{"id":3,"v":"three","w":30}\n',
        "cut": b'{"id":1,"v":"one"}\n{"id":2,"v":"two","w":',
        "several_in_a_line": b'{"id":1}{"id":2}\n{"id":3}\n',
        "array": b'[{"id":1},{"id":2,"v":"x"}]\n[]\n{"id":3}\n',
        "scalar": b'1\n"x"\nnull\n{"id":3}\n',
        "not_fitting": b'{"id":"x","v":1.50,"w":1}\n{"id":2,"v":{"a":1},"w":"y"}\n{"id":3,"w":99999999999}\n',
        "twice": b'{"id":1,"id":2,"v":"x"}\n{"ID":3}\n',
        "escapes": b'{"id":1,"v":"\\ud83d\\ude00\\u0000"}\n{"id":2,"v":"\\ud83d"}\n{"id":3,"v":"\\q"}\n',
        "loose": b"{'id':1,v:'x'} // c\n{\"id\":02}\n{\"id\":NaN}\n",
        "pretty": json.dumps([{"id": 1, "v": "one"}, {"id": 2}], indent=2).encode(),
    }
    for name, content in other.items():
        yield name, "json", "", {}, content


READERS: dict[str, dict[str, str]] = {
    "": {},
    "dropping": {"mode": "DROPMALFORMED"},
    "strict": {"mode": "FAILFAST"},
    "multi_line": {"multiLine": "true"},
    "corrupt_ignored": {"ignoreCorruptFiles": "true"},
}


def text_cases() -> Iterator[Case]:
    for name, kind, suffix, own, content in texts():
        for reader, options in READERS.items():
            options = {**own, **options}
            if reader == "multi_line":
                options.pop("lineSep", None)
            good = CSV_LINES if kind == "csv" else JSON_LINES
            encoded = good.encode(own["encoding"]) if "encoding" in own else good.encode()
            if own.get("lineSep") == "|":
                encoded = good.replace("\n", "|").encode()
            if "header" in own:
                encoded = b"id,v,w\n" + encoded
            yield Case(
                "_".join(filter(None, (kind, name, reader))),
                kind,
                content,
                options,
                suffix,
                encoded,
            )
        corrupt = f"{SCHEMA}, _corrupt_record STRING"
        yield Case(f"{kind}_{name}_kept", kind, content, own, suffix, None, corrupt)
        if kind == "csv":
            yield Case(
                f"text_{name}",
                "text",
                content,
                {k: v for k, v in own.items() if k == "lineSep"},
                suffix,
                b"a\nb\n",
                "value STRING",
                ("whole", "none"),
            )


def binary_cases(session: SparkSession, folder: Path) -> Iterator[Case]:
    """Files of Parquet and ORC, whole and damaged."""
    for kind in ("parquet", "orc"):
        frame = session.range(1, 2001).selectExpr(
            "id", "CAST(hash(id) AS STRING) AS v", "CAST(id % 7 AS INT) AS w"
        )
        whole = _file(frame, kind, folder)
        other = _file(frame.selectExpr("CAST(id AS STRING) AS id", "v"), kind, folder)
        narrow = _file(frame.selectExpr("CAST(id AS INT) AS id", "CAST(w AS BIGINT) AS w"), kind, folder)
        empty = _file(frame.limit(0), kind, folder)
        good = _file(frame.limit(3), kind, folder)
        damaged = {
            "whole": whole,
            "without_rows": empty,
            "no_bytes": b"",
            "short": whole[:-20],
            "half": whole[: len(whole) // 2],
            "longer": whole + b"garbage behind",
            "no_magic": b"XXXX" + whole[4:],
            "text": CSV_LINES.encode(),
            "other_type": other,
            "narrow": narrow,
        }
        for share in (10, 30, 60, 80):
            at = len(whole) * share // 100
            damaged[f"flipped_{share}"] = (
                whole[:at] + bytes(b ^ 0xFF for b in whole[at : at + 40]) + whole[at + 40 :]
            )
        for name, content in damaged.items():
            for reader in ("", "corrupt_ignored"):
                yield Case(
                    "_".join(filter(None, (kind, name, reader))), kind, content, READERS[reader], "", good
                )


def every_case(session: SparkSession, folder: Path) -> list[Case]:
    return [*text_cases(), *binary_cases(session, folder)]


def _file(frame: DataFrame, kind: str, folder: Path) -> bytes:
    target = folder / "written"
    frame.coalesce(1).write.mode("overwrite").format(kind).save(str(target))
    (file,) = target.glob(f"*.{kind}")
    return file.read_bytes()


def rows_of(frame: DataFrame) -> Counter[str]:
    return Counter(repr(tuple(row)) for row in frame.collect())


def truth(
    session: SparkSession, case: Case, folder: Path, condition: str, columns: Sequence[str]
) -> Counter[str] | str:
    """The rows that Spark gives, or the class of its error.

    Where a column of an ORC file has another type than the schema says, ORC converts the values, but fails on
    a condition that is pushed down to it. Where a JSON object has a key twice, such a condition judges the
    first value, and the row shows the last. A refresh reads files whole, so Spark is asked without that.
    """
    own = session.newSession()
    if "_twice" in case.name:
        own.conf.set("spark.sql.json.filterPushdown.enabled", "false")
    result = _rows_or_error(own, case, folder, condition, columns)
    if isinstance(result, str) and case.format == "orc":
        own.conf.set("spark.sql.orc.filterPushdown", "false")
        result = _rows_or_error(own, case, folder, condition, columns)
    return result


def _rows_or_error(
    session: SparkSession, case: Case, folder: Path, condition: str, columns: Sequence[str]
) -> Counter[str] | str:
    try:
        return rows_of(case.read(session, folder).where(condition).selectExpr(*columns))
    except PySparkException as error:
        return str(error.getCondition())
    except Py4JJavaError as error:
        return str(error.java_exception.getClass().getName())


def run(pipeline: Pipeline, cases: Sequence[Case]) -> Happened:
    """One run of a flow and the views of each case."""
    text = HEADER
    for case in cases:
        folder = pipeline.folder / "in" / case.name
        case.write(folder)
        what = {
            "name": case.name,
            "format": case.format,
            "schema": case.schema,
            "folder": str(folder),
            "options": dict(case.options),
        }
        text += FLOW.format(**what)
        for view, (condition, columns) in case.views.items():
            text += VIEW.format(**what, view=view, condition=condition, columns=columns)
    pipeline.write("definitions/p.py", text)
    return pipeline.run()


def differences(pipeline: Pipeline, cases: Sequence[Case]) -> list[str]:
    """What is other than Spark's own result, and what fails though Spark does not, after one run."""
    happened = run(pipeline, cases)
    wrong = []
    for case in cases:
        for view, query in {"stream": VIEWS["whole"], **case.views}.items():
            name = f"{case.name}_{view}"
            expected = truth(pipeline.session, case, pipeline.folder / "in" / case.name, *query)
            error = failure(happened, name)
            if error is not None and not isinstance(expected, str):
                wrong.append(f"{name}: {error}")
            if error is None:
                actual = rows_of(pipeline.reader.sql(f"SELECT * FROM {name}"))
                if actual != expected:
                    wrong.append(f"{name}: {brief(actual)} instead of {brief(expected)}")
    return wrong


def brief(rows: Counter[str] | str) -> str:
    return rows if isinstance(rows, str) else f"{sum(rows.values())} rows {sorted(rows.items())[:4]}"


def failure(happened: Happened, name: str) -> str | None:
    try:
        return happened.failure(name)
    except IndexError:
        return None


def test_damage_that_spark_sees_in_some_queries_only(pipeline: Pipeline, tmp_path: Path) -> None:
    """A damaged column that a view does not read, and records that are malformed behind what a condition
    looks at."""
    views = {"parquet_flipped_10_corrupt_ignored": ("one",), "json_latin_1": ("missing",)}
    every = {case.name: case for case in every_case(pipeline.session, tmp_path)}
    cases = [replace(every[name], view_names=names) for name, names in views.items()]
    assert not differences(pipeline, cases)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_files_of_any_content_give_the_rows_of_spark(pipeline: Pipeline, tmp_path: Path, part: int) -> None:
    assert not differences(pipeline, every_case(pipeline.session, tmp_path)[part::PARTS])
