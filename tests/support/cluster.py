"""A real Spark cluster for tests and measurements: a standalone master and workers from PySpark itself.

Every process is a child in a process group of its own; the executors that a worker starts are in the
worker's. All listen on loopback only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pyspark
from tests.support.ports import free_ports

from tautochrone.errors import EnvironmentProblemError
from tautochrone.model.closeable import Closeable

__all__ = ["StandaloneCluster", "executor_writes"]

_HERE = "127.0.0.1"
_START_TIMEOUT_S = 90.0
_END_TIMEOUT_S = 10.0
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class StandaloneCluster(Closeable):
    """A master and `workers` worker processes, each with `cores` cores. Use as a context manager.

    Args:
        folder: of their logs and scratch files.
        memory: that each worker offers to executors, in Spark's spelling.

    Raises:
        EnvironmentProblemError: `CLUSTER_NOT_STARTED`, with the end of the logs.
    """

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        port, self._web = free_ports(2)
        self.master = f"spark://{_HERE}:{port}"
        try:
            self._start("master", _MASTER, "--port", str(port), "--webui-port", str(self._web))
            for number in range(workers):
                self._start(
                    f"worker-{number}", _WORKER, "--cores", str(cores), "--memory", memory,
                    "--work-dir", str(folder / f"work-{number}"), "--webui-port", "0", self.master,
                )  # fmt: skip
            self._wait_for(workers)
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> Sequence[subprocess.Popen[bytes]]:
        """The master and the workers, which start the executors."""
        return self._processes

    def close(self) -> None:
        """End all processes, and the executors that workers started. Repeatable."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                try:
                    os.killpg(process.pid, sign)
                except ProcessLookupError:
                    continue
            for process in self._processes:
                try:
                    process.wait(_END_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    # SIGKILL in the second round ends it.
                    continue
        self._processes.clear()

    def _start(self, name: str, main: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": _HERE,
            # Small heaps: they share a machine with the driver and the executors.
            "SPARK_DAEMON_MEMORY": "256m",
        }
        command = [str(home / "bin" / "spark-class"), main, "--host", _HERE, *arguments]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self._folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _wait_for(self, workers: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and all(p.poll() is None for p in self._processes):
            if self._alive() == workers:
                return
            time.sleep(0.1)
        tails = "\n".join(log.read_text(errors="replace")[-800:] for log in self._folder.glob("*.log"))
        raise EnvironmentProblemError("CLUSTER_NOT_STARTED", f"The cluster did not come up: {tails}")

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://{_HERE}:{self._web}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (urllib.error.URLError, OSError):
            # Not up yet: the caller asks again until its time is over.
            return 0


def executor_writes(event_logs: Path) -> dict[str, int]:
    """Rows that each executor's tasks wrote, by executor id, as Spark's event logs in a folder report.

    Executors that were there and wrote nothing count 0; tasks in the driver's process go under `driver`.
    """
    rows_written: dict[str, int] = {}
    for path in sorted(event_logs.rglob("*")):
        if not path.is_file() or path.name.startswith("."):
            continue
        for line in path.read_text("utf-8").splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerExecutorAdded":
                rows_written.setdefault(event["Executor ID"], 0)
            elif event["Event"] == "SparkListenerTaskEnd":
                # A task that failed has no metrics.
                output = (event.get("Task Metrics") or {}).get("Output Metrics", {})
                executor = event["Task Info"]["Executor ID"]
                rows_written[executor] = rows_written.get(executor, 0) + output.get("Records Written", 0)
    return rows_written
