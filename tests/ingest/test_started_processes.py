"""Local files are written and listed by the JVM itself: a process for each costs more than its content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.ingest.checkpoint_folder import Files

pytestmark = pytest.mark.spark

DEFINITIONS = """
    from pyspark import pipelines as dp

    @dp.table
    def words():
        return spark.readStream.text("{folder}")
"""


@contextmanager
def started_processes(spark: SparkSession, folder: Path) -> Iterator[list[str]]:
    """The commands on files below `folder` that the JVM starts within the block, filled at its end."""
    jvm: Any = spark._jvm
    recording = jvm.jdk.jfr.Recording()
    recording.enable("jdk.ProcessStart")
    recording.start()
    commands: list[str] = []
    try:
        yield commands
        recording.stop()
        file = jvm.java.nio.file.Paths.get(
            str(folder / "processes.jfr"), spark.sparkContext._gateway.new_array(jvm.String, 0)
        )
        recording.dump(file)
        events = jvm.jdk.jfr.consumer.RecordingFile.readAllEvents(file)
        started = [event.getString("command") for event in events if event.hasField("command")]
        commands += [command for command in started if str(folder) in command]
    finally:
        recording.close()


def test_processes_are_noticed(spark: SparkSession, tmp_path: Path) -> None:
    with started_processes(spark, tmp_path) as commands:
        spark._jvm.java.lang.ProcessBuilder(["ls", str(tmp_path)]).start().waitFor()
    assert commands == [f"ls {tmp_path}"]


def test_files_of_a_folder_are_written_and_listed_without_processes(
    spark: SparkSession, tmp_path: Path
) -> None:
    files, folder = Files(spark), tmp_path / "checkpoint"
    behind = tmp_path / "behind"
    behind.mkdir()
    with started_processes(spark, tmp_path) as commands:
        files.write(f"{folder}/sources/0/1", "one")
        files.write(f"{folder}/sources/0/1", "two, over one")
        files.write(f"{folder}/metadata", "{}")
        (folder / "sources" / "1").symlink_to(behind)
        files.write(f"{folder}/sources/1/0", "zero")
        stamps = files.stamps(str(folder))
        names = files.names(f"{folder}/sources/1")
        texts = [files.read(f"{folder}/{name}") for name in ("sources/0/1", "sources/1/0")]
        files.delete(f"{folder}/sources/0")
    assert commands == []
    assert {name: size for name, (_, size) in stamps.items()} == {
        "sources/0/1": 13,
        "sources/1/0": 4,
        "metadata": 2,
    }
    assert (names, texts) == (["0"], ["two, over one", "zero"])
    assert (folder / "metadata").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in (folder / "sources").iterdir()) == ["1"]


def test_a_run_starts_two_for_each_file_that_spark_writes_for_a_batch(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path
) -> None:
    pipeline.write("definitions/words.py", DEFINITIONS.format(folder=tmp_path / "texts"))
    for number in range(2):
        pipeline.write(f"texts/{number}.txt", "a\n")
        with started_processes(spark, tmp_path) as commands:
            pipeline.run()
    # Permissions of `sources/0/1`, `offsets/1`, `commits/1` and of their checksums.
    assert {command.split()[0] for command in commands} == {"chmod"}
    assert len(commands) == 6, commands
    assert pipeline.query("SELECT count(*) FROM words") == [(2,)]


def test_a_file_manager_of_the_user_stays(pipeline: Pipeline, spark: SparkSession, tmp_path: Path) -> None:
    pipeline.write("definitions/words.py", DEFINITIONS.format(folder=tmp_path / "texts"))
    pipeline.write("texts/0.txt", "a\n")
    with (pipeline.folder / "spark-pipeline.yml").open("a") as spec:
        package = "org.apache.spark.sql.execution.streaming.checkpointing"
        spec.write("configuration:\n  spark.sql.streaming.checkpointFileManagerClass: ")
        spec.write(f"{package}.FileContextBasedCheckpointFileManager\n")
    with started_processes(spark, tmp_path) as commands:
        pipeline.run()
    assert {command.split()[0] for command in commands} == {"chmod", "readlink"}
