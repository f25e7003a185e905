"""Records of files that do not parse: counted where Spark alone says nothing, or set aside.

The contents are those of `test_file_contents`. The truth is Spark's batch reader with the column of corrupt
records.
"""

from __future__ import annotations

import bz2
import gzip
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.harness import Happened, Pipeline

from tautochrone.cli.main import main
from tautochrone.errors import TautochroneError
from tautochrone.ingest.malformed_records import MalformedRecords
from tautochrone.model.effects import Step
from tautochrone.model.events import Event
from tautochrone.runtime.loop.run import Run
from tautochrone.spark.sources.malformed import CountedRecords

from .test_file_contents import JSON_LINES, SCHEMA, Case, failure, rows_of, text_cases

pytestmark = pytest.mark.spark

PARTS = 8
IN_CI = (
    "csv_short", "csv_long_dropping", "csv_not_fitting_kept", "csv_header_in_other_order",
    "json_open_dropping", "json_pretty_multi_line", "json_not_fitting_strict", "xml_not_fitting",
)  # fmt: skip
CLUSTERED = ("csv_short", "json_open_dropping")
DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
"""
FLOW = """
@dp.table(name="{name}", cluster_by={cluster_by})
def {name}():
    rows = spark.readStream.format({format!r}).schema({schema!r}).options(**{options!r}).load({folder!r})
    return {query}
"""
CORRUPT = "damaged"


def xml_cases() -> list[Case]:
    """Spark needs the tag of rows for XML."""
    options = {"rowTag": "row"}
    contents = {
        "not_fitting": b"<rows><row><id>x</id><v>a</v></row><row><id>2</id></row></rows>",
        "cut": b"<rows><row><id>1</id></row><row><id>2</i",
        "open": b"<rows><row><id>1</id><v>a</row><row><id>2</id></row></rows>",
        "empty": b"",
    }
    good = b"<rows><row><id>7</id><v>good</v><w>1</w></row></rows>"
    return [
        Case(f"xml_{name}{suffix}", "xml", content, {**options, **mode}, "", good)
        for name, content in contents.items()
        for suffix, mode in {"": {}, "_dropping": {"mode": "DROPMALFORMED"}}.items()
    ]


def every_case() -> list[Case]:
    return [case for case in [*text_cases(), *xml_cases()] if case.format != "text"]


def with_corrupt(case: Case, mode: str = "PERMISSIVE") -> Case:
    """The case as one reads it who wants to see what does not parse."""
    options = {**case.options, "mode": mode, "columnNameOfCorruptRecord": CORRUPT}
    return replace(case, options=options, schema=f"{SCHEMA}, {CORRUPT} STRING")


def corrupt_records(session: SparkSession, case: Case, folder: Path) -> Counter[tuple[str, str]] | None:
    """By file and text the records that do not parse; None where Spark fails."""
    try:
        frame = with_corrupt(case).read(session, folder)
        rows = frame.selectExpr("*", "input_file_name() AS file").collect()
    except (PySparkException, Py4JJavaError):
        return None
    return Counter((row["file"], row[CORRUPT]) for row in rows if row[CORRUPT] is not None)


def rows_or_none(
    case: Case, session: SparkSession, folder: Path, condition: str = "true"
) -> Counter[str] | None:
    try:
        return rows_of(case.read(session, folder).where(condition))
    except (PySparkException, Py4JJavaError):
        return None


def run(pipeline: Pipeline, cases: Sequence[Case], settings: str = "") -> Happened:
    text = DEFINITIONS
    for case in cases:
        folder = pipeline.folder / "in" / case.name
        case.write(folder)
        parts = {"format": case.format, "schema": case.schema, "options": dict(case.options)}
        # Iceberg's default would take a sample of the rows of a clustered table.
        cluster_by = ["id"] if case.name in CLUSTERED else []
        text += FLOW.format(name=case.name, folder=str(folder), query="rows", cluster_by=cluster_by, **parts)
    pipeline.write("definitions/p.py", text)
    pipeline.write("tautochrone.toml", settings)
    pipeline.reload()
    return pipeline.run()


def counted(happened: Happened, name: str) -> Mapping[str, int]:
    """What the event says of a table, without what is none."""
    events = [e for e in happened.of("malformed_records") if e["dataset"].endswith(f".{name}")]
    assert len(events) <= 1
    parts = ("written", "dropped", "quarantined")
    # There are fewer files than are named.
    assert all(sum(event["files"].values()) == event["records"] for event in events)
    return {part: event[part] for event in events for part in parts if event[part]}


def differences_when_counted(pipeline: Pipeline, cases: Sequence[Case]) -> list[str]:
    happened, wrong = run(pipeline, cases), []
    for case in cases:
        folder = pipeline.folder / "in" / case.name
        expected = rows_or_none(case, pipeline.session, folder)
        if (error := failure(happened, case.name)) is not None:
            wrong += [f"{case.name}: {error}"] if expected is not None else []
            continue
        actual = rows_of(pipeline.reader.sql(f"SELECT * FROM {case.name}"))
        wrong += [f"{case.name}: {actual} instead of {expected}"] if actual != expected else []
        records = corrupt_records(pipeline.session, case, folder)
        number = 0 if records is None else records.total()
        fate = "dropped" if case.options.get("mode") == "DROPMALFORMED" else "written"
        counts = {fate: number} if number else {}
        if counts != counted(happened, case.name):
            wrong.append(f"{case.name}: {counted(happened, case.name)} instead of {counts}")
    return wrong


def differences_when_set_aside(pipeline: Pipeline, cases: Sequence[Case]) -> list[str]:
    settings = "".join(f'[flows.{case.name}]\nbad_records = "quarantine"\n' for case in cases)
    happened, wrong = run(pipeline, cases, settings), []
    for case in cases:
        folder = pipeline.folder / "in" / case.name
        records = corrupt_records(pipeline.session, case, folder)
        if (error := failure(happened, case.name)) is not None:
            wrong += [f"{case.name}: {error}"] if records is not None else []
            continue
        read = with_corrupt(case).read(pipeline.session, folder).where(f"{CORRUPT} IS NULL").drop(CORRUPT)
        if "_corrupt_record" in case.schema:
            read = read.selectExpr("*", "CAST(NULL AS STRING) AS _corrupt_record")
        expected = rows_of(read)
        actual = rows_of(pipeline.reader.sql(f"SELECT * FROM {case.name}"))
        wrong += [f"{case.name}: {actual} instead of {expected}"] if actual != expected else []
        query = f"SELECT file, decode(value, 'utf-8'), line FROM {case.name}__quarantine"
        bad = [tuple(row) for row in pipeline.reader.sql(query).collect()]
        set_aside = Counter((file, text) for file, text, _ in bad)
        wrong += [f"{case.name}: {each} is not on that line" for each in bad if not is_on_line(*each)]
        assert counted(happened, case.name).get("quarantined", 0) == set_aside.total()
        if set_aside != (records or Counter()):
            wrong.append(f"{case.name}: {set_aside} instead of {records}")
    return wrong


def is_on_line(file: str, text: str, line: int | None) -> bool:
    """Whether a file of a case has the text there; a text without a line must not be there once."""
    content = Path(unquote(urlparse(file).path)).read_bytes()
    opened = {".gz": gzip.decompress, ".bz2": bz2.decompress}.get(Path(file).suffix, bytes)(content)
    decoded = opened.decode(errors="replace")
    if line is None:
        return decoded.count(text) != 1
    return "".join(re.split(r"(?<=\n)", decoded)[line - 1 :]).lstrip().startswith(text.lstrip())


def chosen(names: Sequence[str]) -> list[Case]:
    every = {case.name: case for case in every_case()}
    return [every[name] for name in names]


def test_counts_and_rows_are_those_of_spark(pipeline: Pipeline) -> None:
    assert not differences_when_counted(pipeline, chosen(IN_CI))


def test_good_rows_and_records_set_aside_are_those_of_spark(pipeline: Pipeline) -> None:
    assert not differences_when_set_aside(pipeline, chosen(IN_CI[::2]))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_records_of_any_content_are_counted(pipeline: Pipeline, part: int) -> None:
    assert not differences_when_counted(pipeline, every_case()[part::PARTS])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_records_of_any_content_are_set_aside(pipeline: Pipeline, part: int) -> None:
    assert not differences_when_set_aside(pipeline, every_case()[part::PARTS])


STEPS = [
    (Step.LAKE_STAGE, "one"),
    (Step.LAKE_STAGE, "one__quarantine"),
    (Step.INGEST_SOURCE_FILES, "one"),
    (Step.LAKE_PREPARE, "one__quarantine"),
    (Step.LAKE_PREPARE, "one"),
    (Step.LAKE_COMMIT, "one"),
    (Step.LAKE_COMMIT, "one__quarantine"),
    (Step.META_REPORT, "one"),
]
"""What a batch does that sets records aside, in its order."""
IN_CI_STEP = 5
"""The table names what its quarantine table has not committed yet."""


def json_case(name: str) -> Case:
    return Case(name, "json", b'{"id":1,"w":"x"}\n{broken\n{"id":2,"w":2}\n', good=JSON_LINES.encode())


@pytest.mark.crash
@pytest.mark.parametrize(
    ("step", "subject"),
    [
        pytest.param(*each, marks=() if number == IN_CI_STEP else pytest.mark.slow)
        for number, each in enumerate(STEPS)
    ],
)
def test_death_while_records_are_set_aside(pipeline: Pipeline, step: Step, subject: str) -> None:
    case, settings = json_case("one"), '[flows.one]\nbad_records = "quarantine"\n'
    assert run(pipeline, [case], settings).state == "COMPLETED"
    before = everything(pipeline)
    assert [len(rows) for rows in before] == [4, 2]
    for name in ("c", "d"):
        (pipeline.folder / "in/one" / f"{name}.json").write_bytes(case.content)
    effects = StrikingEffects(Strike(step, "after", "crash", on=subject))
    with pipeline.opened(effects) as (job, _):
        started = Run(job)
        try:
            started.once()
        except (Crash, TautochroneError):
            pass
        finally:
            for query in started._streams._queries.values():
                query.stop()
    assert effects.struck, f"not reached: {effects.seen}"
    # Readers see nothing of it: the next checkpoint has both halves.
    assert everything(pipeline) == before
    assert pipeline.run().state == "COMPLETED"
    assert [len(rows) for rows in everything(pipeline)] == [6, 6]
    assert pipeline.run().of("malformed_records") == []


def everything(pipeline: Pipeline) -> list[list[Row]]:
    return [pipeline.reader.sql(f"SELECT * FROM {name}").collect() for name in ("one", "one__quarantine")]


def test_counts_are_shown_and_survive_a_batch_without_such_records(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    """In `taut status`; the second flow and the expectation say nothing of such records."""
    cases = [json_case("one"), replace(json_case("two"), options={"mode": "DROPMALFORMED"})]
    assert run(pipeline, cases).state == "COMPLETED"
    (pipeline.folder / "in/one/z.json").write_text('{"id":9}\n')
    assert pipeline.run().state == "COMPLETED"
    capsys.readouterr()
    assert main(["status", "--spec", str(pipeline.folder / "spark-pipeline.yml")]) == 0
    shown = capsys.readouterr().out
    assert "lake.default.one: 2 records of files did not parse (rows with NULL), +0 by" in shown
    assert "lake.default.two: 2 records of files did not parse (dropped by the reader), +0 by" in shown


def test_files_that_cannot_be_read_again_are_not_named_for_a_reason() -> None:
    def gone(*_arguments: object) -> None:
        raise PySparkException("it was deleted", errorClass=None)

    frame: Any = SimpleNamespace(groupBy=gone)
    stream: Any = SimpleNamespace(
        counts=lambda _query: CountedRecords(written=2), records=lambda *_args, **_named: [(frame, None)]
    )
    session: Any = object()
    emitted: list[Event] = []
    malformed = MalformedRecords("f", "lake.default.t", emitted.append, None, session, stream)
    counts = malformed.counts(session)
    malformed.report(counts, 7)
    (event,) = (each.as_json() for each in emitted)
    assert (event["records"], event["files"], event["reason_code"]) == (2, {}, "FILES_NOT_READ_AGAIN")
    assert "it was deleted" in event["reason"]


def test_records_of_files_that_views_read_are_counted(pipeline: Pipeline) -> None:
    text, contents = DEFINITIONS, {"json": b'{"id":1,"w":"x"}\n{broken\n', "csv": b"1,a,x\n2,b\n3,c,3\n"}
    for kind, content in contents.items():
        pipeline.write(f"in/{kind}/day=1/a.{kind}", content.decode())
        rows = f"spark.read.format('{kind}').schema('{SCHEMA}').load('{pipeline.folder}/in/{kind}')"
        text += f"\n@dp.materialized_view\ndef of_{kind}():\n    return {rows}.where('id > 0')\n"
    pipeline.write("definitions/p.py", text)
    happened = pipeline.run()
    assert sorted(event["malformed"] for event in happened.of("files_taken_in")) == [2, 2]
    assert pipeline.query("SELECT id, v, w, day FROM of_csv") == [
        (1, "a", None, 1),
        (2, "b", None, 1),
        (3, "c", 3, 1),
    ]
    assert pipeline.query("SELECT id, w, day FROM of_json") == [(1, None, 1)]
    pipeline.write("in/csv/day=2/b.csv", "4,d,4\n")
    (taken_in,) = pipeline.run().of("files_taken_in")
    assert (taken_in["added"], taken_in.get("malformed", 0)) == (1, 0)


ROWS_BY_QUERY = {
    "filtered": "rows.where('w > 1')",
    "one_column": "rows.select('v')",
    "twice": "rows.select('id').union(rows.select('w'))",
    "stateful": "rows.select('id').dropDuplicates()",
    "none_of_them": "rows.selectExpr('1 AS n')",
    "absent": "rows.where('id IS NULL')",
    "in_ranges": "rows.repartitionByRange(2, 'id')",
}


def test_queries_over_files_give_the_rows_of_spark(pipeline: Pipeline) -> None:
    """What a query reads decides what is malformed; JSON is not counted under `IS NULL`."""
    text, base = DEFINITIONS, json_case("one")
    cases = [*((name, "json") for name in ROWS_BY_QUERY), ("filtered", "csv"), ("one_column", "csv")]
    contents = {"json": base.content, "csv": b"1,a,x\nx,b,2\n3\n4,d,4,5\n"}
    for name, kind in cases:
        case = replace(base, name=f"{name}_{kind}", format=kind, content=contents[kind], good=None)
        folder = pipeline.folder / "in" / case.name
        case.write(folder)
        parts = {"format": kind, "schema": case.schema, "options": {}, "folder": str(folder)}
        text += FLOW.format(name=case.name, query=ROWS_BY_QUERY[name], cluster_by=[], **parts)
    pipeline.write("definitions/p.py", text)
    happened = pipeline.run()
    for name, kind in cases:
        folder = pipeline.folder / "in" / f"{name}_{kind}"
        rows = pipeline.session.read.format(kind).schema(SCHEMA).load(str(folder))
        expected = rows_of(eval(ROWS_BY_QUERY[name], {"rows": rows}))
        assert rows_of(pipeline.reader.sql(f"SELECT * FROM {name}_{kind}")) == expected, (name, kind)
    counts = {name: counted(happened, f"{name}_json").get("written") for name in ROWS_BY_QUERY}
    expected_counts = {"filtered": 2, "one_column": 1, "twice": 1, "stateful": 1}
    assert counts == {**expected_counts, "none_of_them": None, "absent": None, "in_ranges": None}
    uncounted = {e["dataset"].rpartition(".")[2] for e in happened.of("malformed_not_counted")}
    assert uncounted == {"absent_json", "none_of_them_json", "in_ranges_json"}
