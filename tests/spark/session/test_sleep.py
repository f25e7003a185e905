"""A machine that sleeps while a run waits goes on afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

_SCRIPT = """
import os, signal, sys, time
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.iceberg.sessions.spark_sessions import start_session
from tautochrone.spark.session.settings import SparkSettings

settings = SparkSettings(master="local[2]", short_lived=True)
spark = start_session(settings, CatalogSettings.default(sys.argv[1]))
spark.range(9).groupBy("id").count().collect()
java = int(spark._jvm.java.lang.ProcessHandle.current().pid())
os.kill(java, signal.SIGSTOP)
time.sleep(200)
os.kill(java, signal.SIGCONT)
time.sleep(25)
print("rows", spark.range(9).groupBy("id").count().count())
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_keeps_its_executor(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "rows 9" in done.stdout, done.stderr
    # A heartbeat of an executor that the driver has given up: sixty of them end the process.
    assert "awaitResult" not in done.stderr
