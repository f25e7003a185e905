"""Files of foreign tables, as Python opens them here and Hadoop elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tautochrone.sources import storage
from tautochrone.sources.storage import Storage

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("below", [False, True])
def test_hadoop_lists_the_same_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: bool
) -> None:
    for path in ("a.parquet", ".hidden", "k 1=ü/b.parquet", "k 1=ü/.deep/c"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    reader, folder = Storage(spark), f"file:{tmp_path}"
    own = sorted(reader.files(folder, below=below), key=str)
    assert len(own) == (4 if below else 2)
    assert reader.files(f"{folder}/none") == []
    some = sorted(reader.files(folder, below=below, without="k 1=ü"), key=str)
    assert [file.path for file in some] == [".hidden", "a.parquet"]
    monkeypatch.setattr(storage, "local_folder", lambda _: None)
    assert sorted(reader.files(folder, below=below, without="k 1=ü"), key=str) == some
    assert sorted(reader.files(folder, below=below), key=str) == own
    assert sorted(reader.names(folder)) == [".hidden", "a.parquet"]
    assert reader.names(f"{folder}/none") == []
    assert reader.files(f"{folder}/none") == []


def test_without_those_below_no_folder_is_listed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "deep").mkdir()
    # Each folder in it has all that is in it.
    (tmp_path / "deep/again").symlink_to(tmp_path / "deep")
    monkeypatch.setattr(storage, "local_folder", lambda _: None)
    assert [file.path for file in Storage(spark).files(f"file:{tmp_path}")] == ["a"]
