"""What a reader's Spark is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tautochrone.app.stores
import tautochrone.reader
from tautochrone.app import connect
from tautochrone.app.locate import Options

SPEC = """
name: shop
storage: file://{folder}/storage
libraries: []
configuration:
  spark.sql.session.timeZone: America/New_York
  spark.sql.ansi.enabled: "false"
  spark.executor.memory: 2g
"""


def test_readers_compute_persisted_views_with_the_settings_of_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    monkeypatch.setattr(tautochrone.app.stores, "existing_store", lambda settings: None)
    started: list[Any] = []
    monkeypatch.setattr(
        tautochrone.reader, "Reader", lambda store, catalog, spark, database: started.append(spark.conf)
    )
    spec = str(tmp_path / "spark-pipeline.yml")
    connect.open_connection(Options(spec=spec))
    connect.open_connection(Options(spec=spec, conf={"spark.sql.session.timeZone": "UTC"}))
    zones = [conf["spark.sql.session.timeZone"] for conf in started]
    assert zones == ["America/New_York", "UTC"]
    assert started[0]["spark.sql.ansi.enabled"] == "false"
