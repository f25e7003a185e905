"""Files that Spark's file source would skip silently are read, refused or reported."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.support.harness import Happened, Pipeline

pytestmark = pytest.mark.spark

PROJECT = """
    from pyspark import pipelines as dp

    @dp.table
    def numbers():
        source = spark.readStream{options}.text({folder!r})
        return source.selectExpr("cast(value as bigint) as id")
"""
DAY_S = 86_400


@pytest.fixture
def pipeline(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    (tmp_path / "in").mkdir()
    define(pipeline)
    return pipeline


def define(pipeline: Pipeline, options: str = "") -> None:
    pipeline.write("definitions/p.py", PROJECT.format(folder=str(pipeline.folder / "in"), options=options))


def put(pipeline: Pipeline, name: str, text: object, days_old: float = 0) -> Path:
    """A file of files line; a name with a slash makes the folder."""
    path = pipeline.folder / "in" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{text}\n")
    if days_old:
        then = time.time() - days_old * DAY_S
        os.utime(path, (then, then))
    return path


def completed(pipeline: Pipeline) -> Happened:
    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    return happened


def ids(pipeline: Pipeline, **options: object) -> list[int]:
    return [row[0] for row in pipeline.query("SELECT id FROM numbers", **options)]


def skipped(happened: Happened) -> list[tuple[str, int, list[str]]]:
    return [
        (event["reason"], event["files"], [path.rsplit("/", 1)[-1] for path in event["paths"]])
        for event in happened.of("source_files_skipped")
    ]


def shown(pipeline: Pipeline) -> list[tuple[str, int, list[str]]]:
    """What the store has for `taut status`."""
    (status,) = pipeline.job.store.datasets.statuses()
    return [
        (str(files.reason), files.count, [path.rsplit("/", 1)[-1] for path in files.paths])
        for files in status.skipped
    ]


def test_files_skipped_by_an_earlier_release_are_read(pipeline: Pipeline) -> None:
    """The file source's log remembers what was read, not what was left out."""
    define(pipeline, '.option("maxFileAge", "7d")')
    put(pipeline, "new.txt", 1)
    assert completed(pipeline).of("source_rows_left_out") == []
    put(pipeline, "late.txt", 2, days_old=8)
    happened = completed(pipeline)
    assert ids(pipeline) == [1]
    assert skipped(happened) == [("OLDER_THAN_MAX_FILE_AGE", 1, ["late.txt"])]
    assert shown(pipeline) == skipped(happened)

    define(pipeline)
    assert skipped(completed(pipeline)) == []
    assert ids(pipeline) == [1, 2]
    assert shown(pipeline) == []


def test_what_a_reader_leaves_out_as_asked_is_said_once_in_a_run(pipeline: Pipeline) -> None:
    define(pipeline, '.option("ignoreCorruptFiles", True).option("PathGlobFilter", "*.txt")')
    put(pipeline, "c.txt", 3)
    put(pipeline, "d.dat", 4)
    happened = completed(pipeline)
    assert ids(pipeline) == [3]
    said = happened.of("source_rows_left_out")
    assert {(event["flow"], event["reason_code"]) for event in said} == {
        ("numbers", "READER_LEAVES_OUT_ROWS")
    }
    assert sorted(event["reason"].split(" leaves")[0] for event in said) == [
        "PathGlobFilter = *.txt",
        "ignoreCorruptFiles = true",
    ]


def test_late_file_is_read_and_a_replaced_one_is_reported(pipeline: Pipeline) -> None:
    put(pipeline, "a.txt", 1, days_old=1)
    put(pipeline, "b.txt", 2)
    assert skipped(completed(pipeline)) == []
    path = put(pipeline, "a.txt", 333)
    put(pipeline, "late.txt", 4, days_old=30)
    token = pipeline.reader.write_token()
    happened = completed(pipeline)
    assert skipped(happened) == [("REPLACED_IN_PLACE", 1, ["a.txt"])]
    assert shown(pipeline) == skipped(happened)
    assert ids(pipeline, after=token) == [1, 2, 4]

    path.rename(path.with_name("c.txt"))
    assert skipped(completed(pipeline)) == []
    assert ids(pipeline) == [1, 2, 4, 333]
    assert shown(pipeline) == []


@pytest.mark.slow
def test_file_of_the_same_name_in_another_folder_is_reported(pipeline: Pipeline) -> None:
    define(pipeline, '.option("fileNameOnly", True).option("recursiveFileLookup", True)')
    put(pipeline, "x/a.txt", 1)
    completed(pipeline)
    put(pipeline, "y/a.txt", 2)
    assert skipped(completed(pipeline)) == [("SAME_FILE_NAME", 1, ["a.txt"])]
    assert ids(pipeline) == [1]


def test_file_deleted_between_plan_and_read_fails_the_batch(pipeline: Pipeline) -> None:
    bad = put(pipeline, "b.txt", "no number")
    put(pipeline, "c.txt", 3)
    # The batch is planned, and fails on its data. As the flow's first files it is kept for the next run.
    assert pipeline.run().state == "FAILED"

    bad.unlink()
    happened = pipeline.run()
    assert happened.state == "FAILED"
    error = happened.failure("numbers")
    assert error.startswith("[SOURCE_FILE_MISSING]"), error
    assert "/in/b.txt" in error
    assert ids(pipeline) == []

    bad.write_text("2\n")
    completed(pipeline)
    assert ids(pipeline) == [2, 3]


def test_next_run_plans_a_failed_later_batch_anew(pipeline: Pipeline) -> None:
    """Its owner has a folder of its own: files that went away before anybody read them are in no plan."""
    put(pipeline, "a.txt", 1)
    completed(pipeline)
    bad = put(pipeline, "b.txt", "no number")
    put(pipeline, "c.txt", 3)
    assert pipeline.run().state == "FAILED"
    bad.unlink()
    completed(pipeline)
    assert ids(pipeline) == [1, 3]


def test_deleted_file_is_skipped_with_ignore_missing_files(pipeline: Pipeline) -> None:
    bad = put(pipeline, "b.txt", "no number")
    put(pipeline, "c.txt", 3)
    assert pipeline.run().state == "FAILED"
    bad.unlink()
    define(pipeline, '.option("ignoreMissingFiles", True)')
    happened = completed(pipeline)
    assert ids(pipeline) == [3]
    assert skipped(happened) == [("MISSING_AT_READ", 1, ["b.txt"])]
    # Nobody can read it later, so it stays shown.
    completed(pipeline)
    assert shown(pipeline) == skipped(happened)


def test_continuous_run_reports_once(pipeline: Pipeline) -> None:
    put(pipeline, "a.txt", 1, days_old=1)
    with pipeline.running() as happened:
        wait_for(lambda: happened.of("batch"))
        put(pipeline, "a.txt", 22)
        wait_for(lambda: happened.of("source_files_skipped"))
        put(pipeline, "b.txt", 2, days_old=40)
        wait_for(lambda: len(happened.of("batch")) == 2)
    assert skipped(happened) == [("REPLACED_IN_PLACE", 1, ["a.txt"])]
    assert ids(pipeline) == [1, 2]


def wait_for(condition: object, timeout_s: float = 60) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


UNION = """
    from pyspark import pipelines as dp

    @dp.table
    def numbers():
        streams = [spark.readStream.text(folder) for folder in {folders!r}]
        rows = streams[0]
        for other in streams[1:]:
            rows = rows.union(other)
        return rows.selectExpr("cast(value as bigint) as id")
"""


PATH = """
    from pyspark import pipelines as dp

    @dp.table
    def numbers():
        return spark.readStream.schema("id BIGINT").csv({folder!r})
"""


@pytest.mark.parametrize("batches", [1, 2])
def test_a_stream_gets_another_folder(pipeline: Pipeline, batches: int) -> None:
    """What it took stays, and all files of the other folder are taken; plain Spark refuses to go on."""
    for number, name in enumerate(("a", "b")):
        (pipeline.folder / name).mkdir()
        (pipeline.folder / name / "one").write_text(f"{number}\n")
    pipeline.write("definitions/p.py", PATH.format(folder=str(pipeline.folder / "a")))
    completed(pipeline)
    for number in range(2, batches + 1):
        (pipeline.folder / "a" / f"{number}").write_text(f"{number}\n")
        completed(pipeline)
    pipeline.write("definitions/p.py", PATH.format(folder=str(pipeline.folder / "b")))
    completed(pipeline)
    assert ids(pipeline) == list(range(batches + 1))
    (pipeline.folder / "b" / "more").write_text("7\n")
    completed(pipeline)
    assert ids(pipeline) == [*range(batches + 1), 7]


@pytest.mark.parametrize(
    "other_order", [("b", "a"), pytest.param(("c", "a"), marks=pytest.mark.slow)], ids=" ".join
)
def test_streams_of_one_flow_keep_their_order(pipeline: Pipeline, other_order: tuple[str, str]) -> None:
    """By their order Spark keeps which files they have read: all of them would come again."""

    def define_union(*names: str) -> None:
        folders = [str(pipeline.folder / name) for name in names]
        pipeline.write("definitions/p.py", UNION.format(folders=folders))

    for number, name in enumerate(("a", "b", "c")):
        (pipeline.folder / name).mkdir()
        (pipeline.folder / name / "one").write_text(f"{number}\n")
    define_union("a", "b")
    completed(pipeline)
    define_union(*other_order)
    refused = pipeline.run()
    errors = [event["error"] for event in refused.of("flow_failed")]
    assert errors
    assert all("FLOW_SOURCES_REORDERED" in error for error in errors)
    assert ids(pipeline) == [0, 1]
    # Another folder at a stream's place has files of its own, and the other stream goes on.
    define_union("a", "c")
    (pipeline.folder / "a" / "two").write_text("7\n")
    completed(pipeline)
    assert ids(pipeline) == [0, 1, 2, 7]
