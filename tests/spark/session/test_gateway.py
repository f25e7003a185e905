"""The JVM's stderr is forwarded to this process's stderr without the lines of every start; a Spark that does
not start is an error with a hint."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark import SparkContext, java_gateway

from tautochrone.errors import EnvironmentProblemError
from tautochrone.spark.jvm.driver_calls import COMPILED
from tautochrone.spark.session import gateway, launch_command
from tautochrone.spark.session.gateway import _started_jvm, _StderrReader, _without_spark_defaults, launch

NOISE = (
    "WARNING: Using incubator modules: jdk.incubator.vector\n"
    'Setting default log level to "WARN".\n'
    "To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).\n"
)


def reader_of(text: bytes) -> _StderrReader:
    """A reader that has read a JVM's whole output."""
    read_end, write_end = os.pipe()
    os.write(write_end, text)
    os.close(write_end)
    reader = _StderrReader(read_end)
    reader.run()
    return reader


def test_start_noise_is_left_out_and_other_lines_are_forwarded(capsys: pytest.CaptureFixture[str]) -> None:
    reader = reader_of((NOISE + "java.lang.OutOfMemoryError: Java heap space\n").encode() + b"\xff no text\n")
    assert capsys.readouterr().err == "", "lines are buffered until the JVM is up"
    reader.forward()
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "java.lang.OutOfMemoryError: Java heap space\n� no text\n"


def test_later_lines_are_forwarded_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    read_end, write_end = os.pipe()
    reader = _StderrReader(read_end)
    reader.forward()
    reader.start()
    os.write(write_end, b"later\n")
    os.close(write_end)
    reader.join(10)
    assert capsys.readouterr().err == "later\n"


def test_reading_goes_on_when_stderr_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed = (tmp_path / "closed").open("w")
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    read_end, write_end = os.pipe()
    reader = _StderrReader(read_end)
    reader.forward()
    reader.start()
    # More than a pipe holds: without a reader the writes would block.
    for _ in range(40):
        os.write(write_end, b"x" * 9_999 + b"\n")
    os.close(write_end)
    reader.join(10)
    assert not reader.is_alive()


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            'Exception in thread "main" org.apache.spark.SparkException: Master must be local\n'
            "\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1065)\n\t... 3 more\n",
            "Master must be local",
        ),
        (
            "Invalid maximum heap size: -Xmx9x\nError: Could not create the Java Virtual Machine.\n",
            "Invalid maximum heap size: -Xmx9x Error: Could not create the Java Virtual Machine.",
        ),
        ("", "it gave no reason"),
    ],
)
def test_start_failure_is_the_jvms_message(output: str, reason: str) -> None:
    assert reader_of((NOISE + output).encode()).start_failure() == reason


@pytest.mark.parametrize("given", [None, "--verbose pyspark-shell"])
def test_spark_submit_reads_no_defaults(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    if given is not None:
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", given)
    with _without_spark_defaults():
        option, file, *rest = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
        assert (option, Path(file).read_text()) == ("--properties-file", "")
        assert rest == (given or "pyspark-shell").split()
    assert os.environ.get("PYSPARK_SUBMIT_ARGS") == given


def test_a_session_without_a_prepared_folder_uses_the_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file in the current folder says nothing about it."""
    for name in [name for name in os.environ if name.startswith(launch_command._READ_BY_SCRIPT)]:
        monkeypatch.delenv(name)
    command = {"java": "java", "arguments": [], "variables": {"SPARK_CONF_DIR": "/none"}}
    (tmp_path / launch_command._FILE).write_text(json.dumps(command))
    monkeypatch.chdir(tmp_path)
    for how in ("_by_script", "_run"):
        monkeypatch.setattr(gateway, how, Mock(return_value=how))
    assert gateway._start_jvm({"spark.master": "local"})[0] == "_by_script"
    assert gateway._start_jvm({"spark.master": "local", COMPILED: str(tmp_path)})[0] == "_run"


def test_interrupts_are_handled_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with gateway._interrupts_left_alone():
        # As PySpark does it.
        signal.signal(signal.SIGINT, lambda *_: None)
    assert signal.getsignal(signal.SIGINT) is before


def test_names_of_java_are_those_of_pyspark() -> None:
    source = inspect.getsource(java_gateway.launch_gateway)
    assert re.findall(r'java_import\(gateway\.jvm, "(.*)"\)', source) == [*gateway._IMPORTS]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """The settings with which JVMs were started; no JVM is, and one with the setting `fails` cannot be."""
    settings: list[dict[str, str]] = []

    def start(conf: dict[str, str]) -> tuple[Mock, dict[str, str]]:
        settings.append(conf)
        if "fails" in conf:
            raise EnvironmentProblemError("JVM_NOT_STARTED", "no such option")
        return Mock(), conf

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(gateway, "_start_jvm", start)
    yield settings
    assert not gateway._launches


def test_a_launched_jvm_is_used_once(started: list[dict[str, str]]) -> None:
    launch({"a": "1", "password": "x"}, ["password"])
    launch({"a": "2"})
    jvm, conf = _started_jvm({"a": "1"})
    assert conf == {"a": "1"}
    jvm.shutdown.assert_not_called()
    assert started == [{"a": "1"}]
    assert _started_jvm({"a": "1"})[0] is not jvm


def test_a_jvm_with_other_settings_is_ended(started: list[dict[str, str]]) -> None:
    launch({"a": "1"})
    gateway.finish_launch()
    (launched,) = gateway._launches
    assert launched.jvm is not None
    assert _started_jvm({"a": "2"})[1] == {"a": "2"}
    launched.jvm[0].proc.stdin.close.assert_called_once()
    assert started == [{"a": "1"}, {"a": "2"}]


def test_what_goes_wrong_at_the_launch_is_said_at_the_start(started: list[dict[str, str]]) -> None:
    launch({"fails": "yes"})
    with pytest.raises(EnvironmentProblemError, match="no such option"):
        _started_jvm({"fails": "yes"})
    # What failed is of no interest to a session with other settings.
    launch({"fails": "yes"})
    assert _started_jvm({"a": "1"})[1] == {"a": "1"}
    assert len(started) == 3


@pytest.mark.spark
def test_unknown_master_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: x\nstorage: s\nlibraries: []\n")
    process = subprocess.run(
        [sys.executable, "-m", "tautochrone.cli.main", "run", "--master", "nonsense"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 1
    first, error, hint = process.stderr.splitlines()
    assert first.startswith("pipeline x: starting Spark on nonsense")
    assert error.startswith(
        "[JVM_NOT_STARTED] Spark's Java process ended before it could be used: Master must"
    )
    assert "--master" in hint
