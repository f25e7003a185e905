"""Spark loads its classes from the archive made at set-up, and starts without one too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tautochrone.spark.session import java
from tautochrone.spark.session.java import archive_file, archive_options, find_java, make_archive


@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_java_maps_the_archive(spark: SparkSession) -> None:
    assert spark is not None
    assert make_archive(find_java()) is None
    gateway = SparkContext._gateway
    assert gateway is not None
    mapped = Path(f"/proc/{gateway.proc.pid}/maps").read_text()
    assert str(archive_file(find_java())) in mapped, "made by `make setup` and accepted by Java"


def test_no_archive_is_used_before_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    command = find_java()
    assert archive_options(command) == []
    archive_file(command).parent.mkdir(parents=True)
    archive_file(command).touch()
    assert archive_options(command)[0] == f"-XX:SharedArchiveFile={archive_file(command)}"


def test_another_java_has_another_archive(tmp_path: Path) -> None:
    other_java = tmp_path / "java"
    other_java.touch()
    assert archive_file(str(other_java)) != archive_file(find_java())


def test_reason_when_the_folder_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "share").write_text("no folder")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    reason = make_archive(find_java())
    assert reason is not None
    assert "share" in reason


def test_failed_warm_up_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(java, "_WARM_UP", "tautochrone.spark.nothing")
    reason = make_archive(find_java())
    assert reason is not None
    assert "tautochrone.spark.nothing" in reason
    assert list(archive_file(find_java()).parent.iterdir()) == []
