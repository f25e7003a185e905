"""Whether the JVM has ended is decided by its process, not by the error of a call."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from tautochrone.cli.run import Restarts
from tautochrone.errors import SparkDiedError
from tautochrone.runtime.loop.run import wait_while_alive
from tautochrone.spark.session import jvm_liveness
from tautochrone.spark.session.jvm_liveness import jvm_error, require_live_jvm, set_stderr_tail


class Gateway(SimpleNamespace):
    """A Py4J gateway with a given process, whose JVM answers or does not."""

    def __init__(self, process: subprocess.Popen[bytes] | None, *, answers: bool = True) -> None:
        super().__init__(proc=process)
        self.jvm: Any = SimpleNamespace()
        if answers:
            system = SimpleNamespace(nanoTime=lambda: 1)
            self.jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
        else:
            self.jvm = _Refusing()


class _Refusing:
    def __getattr__(self, _name: str) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(jvm_liveness, "_stderr_tail", None)
    monkeypatch.setattr(jvm_liveness, "_EXIT_TIMEOUT_S", 0.2)
    return lambda gateway: monkeypatch.setattr(SparkContext, "_gateway", gateway)


def test_killed_process_is_reported_with_its_signal_and_last_lines(gateway: Any, process: Any) -> None:
    gateway(Gateway(process))
    require_live_jvm()
    set_stderr_tail(lambda: ["one", "", "java.lang.OutOfMemoryError"])
    process.kill()
    with pytest.raises(SparkDiedError, match=r"SIGKILL.*one / java\.lang\.OutOfMemoryError") as raised:
        wait_while_alive(threading.Event(), 60)
    assert raised.value.error_class == "SPARK_DIED"
    assert "memory" in str(raised.value.hint)
    assert raised.value.parameters["status"] == "-9"


def test_exited_process_is_reported_with_its_status(
    gateway: Any, process: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway(Gateway(process, answers=False))
    process.communicate(b"\n")
    monkeypatch.chdir(tmp_path)
    report = tmp_path / f"hs_err_pid{process.pid}.log"
    report.write_text("# a crash")
    failure = jvm_error()
    assert failure is not None
    assert "exit status 0; it wrote no output" in str(failure)
    assert str(report) in str(failure.hint)


def test_running_process_that_does_not_answer_is_a_jvm_failure(gateway: Any, process: Any) -> None:
    for silent in (Gateway(process, answers=False), Gateway(None, answers=False)):
        gateway(silent)
        assert jvm_error() is None
        failure = jvm_error(ask=True)
        assert failure is not None
        assert failure.error_class == "SPARK_NOT_ANSWERING"


def test_without_spark_there_is_no_jvm_failure(gateway: Any) -> None:
    gateway(None)
    require_live_jvm()


def test_waits_between_restarts_grow_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_TAUT_RESTARTS", raising=False)
    restarts = Restarts()
    assert [restarts.count() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    monkeypatch.setenv("_TAUT_RESTARTS", "3")
    following = Restarts()
    assert following.count() == 8
    assert following.folder == os.getcwd()
    long_ago = Restarts(in_a_row=5, _since=-1e9)
    assert long_ago.count() == 1
    assert following.count(anew=True) == 1
    assert following.count() == 2


def test_restart_knows_the_full_refreshes_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("_TAUT_RESTARTS", "_TAUT_FULL_REFRESHES_LEFT"):
        monkeypatch.setenv(variable, "")
    monkeypatch.setattr(os, "execv", lambda *_: None)
    restarts = Restarts()
    assert restarts.full_refreshes_left is None
    restarts.restart_process()
    # Spark did not start, so no run has begun.
    assert Restarts().full_refreshes_left is None
    restarts.full_refreshes_left = ["lake.shop.orders"]
    restarts.restart_process()
    assert Restarts().full_refreshes_left == ["lake.shop.orders"]
