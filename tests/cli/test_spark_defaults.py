"""Every command takes the same settings from spark-defaults.conf, and leaves out the same ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DEFAULTS = """\
spark.sql.session.timeZone  Asia/Tokyo
spark.sql.extensions        io.delta.sql.DeltaSparkSessionExtension
spark.sql.defaultCatalog    delta_lake
spark.remote                sc://localhost:1
"""


def taut(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "SPARK_CONF_DIR": str(folder / "conf")}
    environment.pop("SPARK_HOME", None)
    done = subprocess.run(
        [sys.executable, "-m", "tautochrone.cli.main", *arguments],
        cwd=folder / "project",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_agree_on_spark_defaults(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text(DEFAULTS)
    (tmp_path / "project/t").mkdir(parents=True)
    assert "session" in taut(tmp_path, "doctor")
    (tmp_path / "project/spark-pipeline.yml").write_text(
        "name: p\nstorage: storage\ncatalog: lake\nlibraries:\n  - glob: {include: t/**}\n"
    )
    (tmp_path / "project/t/v.sql").write_text(
        "CREATE MATERIALIZED VIEW v AS SELECT hour(TIMESTAMP '2026-01-01 00:00:00Z') AS hour"
    )
    taut(tmp_path, "run")
    assert taut(tmp_path, "query", "SELECT hour, current_timezone() AS zone FROM v", "--format", "csv") == (
        "hour,zone\n9,Asia/Tokyo\n"
    )
    assert "definitions" in taut(tmp_path, "doctor")
