"""The JVM's stderr comes through ours, without what every start says; a Spark that does not start is an
error with a hint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tautochrone.spark.session.gateway import _Ear

NOISE = (
    "WARNING: Using incubator modules: jdk.incubator.vector\n"
    'Setting default log level to "WARN".\n'
    "To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).\n"
)


def heard(text: bytes) -> _Ear:
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    ear = _Ear(reading)
    ear.run()
    return ear


def test_what_every_start_says_is_left_out_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    ear = heard((NOISE + "java.lang.OutOfMemoryError: Java heap space\n").encode() + b"\xff no text\n")
    assert capsys.readouterr().err == "", "it waits until the JVM is up"
    ear.let_go()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "java.lang.OutOfMemoryError: Java heap space\n� no text\n"


def test_what_comes_later_goes_on_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    ear = _Ear(reading)
    ear.let_go()
    ear.start()
    os.write(writing, b"later\n")
    os.close(writing)
    ear.join(10)
    assert capsys.readouterr().err == "later\n"


def test_it_goes_on_reading_when_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    closed = (tmp_path / "closed").open("w")
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    reading, writing = os.pipe()
    ear = _Ear(reading)
    ear.let_go()
    ear.start()
    # More than a pipe holds: a writer would wait for ever.
    for _ in range(40):
        os.write(writing, b"x" * 9_999 + b"\n")
    os.close(writing)
    ear.join(10)
    assert not ear.is_alive()


@pytest.mark.parametrize(
    ("said", "reason"),
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
        ("", "it did not say why"),
    ],
)
def test_why_the_jvm_did_not_start(said: str, reason: str) -> None:
    assert heard((NOISE + said).encode()).reason() == reason


@pytest.mark.spark
def test_a_master_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "spark-pipeline.yml").write_text("name: x\nstorage: s\nlibraries: []\n")
    done = subprocess.run(
        [sys.executable, "-m", "tautochrone.cli.main", "run", "--master", "nonsense"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    first, error, hint = done.stderr.splitlines()
    assert first.startswith("pipeline x: starting Spark on nonsense")
    assert error.startswith(
        "[JVM_NOT_STARTED] Spark's Java process ended before it could be used: Master must"
    )
    assert "--master" in hint
