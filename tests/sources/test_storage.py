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
    monkeypatch.setattr(storage, "local_folder", lambda _: None)
    assert sorted(reader.files(folder, below=below), key=str) == own
    assert reader.files(f"{folder}/none") == []
