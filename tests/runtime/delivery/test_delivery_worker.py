"""What the thread of a sink does after errors that no further try can change."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from tautochrone.errors import SinkError
from tautochrone.model.events import Event, SinkFailed, SinkLoginAgain
from tautochrone.model.reason import ReasonCode
from tautochrone.model.sink import SinkDeclaration
from tautochrone.project.setting_layers import Reference, Value
from tautochrone.project.settings import sink_settings
from tautochrone.runtime.delivery import delivery
from tautochrone.runtime.delivery.delivery import DeliveryWorker, needs_attention
from tautochrone.sinks.common.errors import login_refused_error, rights_missing_error, statement_refused_error

E = TypeVar("E", bound=Event)
RIGHT = "right-password"


class Server:
    """Lets in who has the password. Passwords that were tried are in `tried`."""

    def __init__(self) -> None:
        self.password, self.tried = RIGHT, list[str]()
        self.error: SinkError | None = None

    def delivery(self, _job: object, declaration: SinkDeclaration) -> Any:
        password = declaration.options["password"]
        delivered: list[bool] = []

        def deliver() -> bool:
            self.tried.append(password)
            if self.error is not None:
                raise self.error
            if password != self.password:
                raise login_refused_error("Sink mirror", "The server", "no", settings="the option password")
            delivered.append(True)
            return len(delivered) == 1

        journal = SimpleNamespace(fence=0)
        return SimpleNamespace(
            deliver=deliver, reset_after_failure=lambda: None, close=lambda: None, journal=journal
        )


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Mirror:
    """A sink whose password is in a file, with the events of its thread."""

    def __init__(self, folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.events = folder / "password", list[Event]()
        self.file.write_text(RIGHT)
        monkeypatch.setattr(delivery, "Delivery", server.delivery)
        monkeypatch.setattr(delivery, "_POLL_S", 0.02)
        monkeypatch.setattr(delivery, "_FIRST_PAUSE_S", 0.01)
        path = ("sinks", "mirror", "options", "password")
        reference = Reference("file", "password", folder, {})
        value = Value(path=path, value=reference, text="", origin="tautochrone.toml:7")
        settings = SimpleNamespace(sinks=sink_settings({path: value}))
        self.job: Any = SimpleNamespace(
            settings=settings,
            emit=self.events.append,
            ownership=SimpleNamespace(cancelled=SimpleNamespace(is_set=lambda: False)),
        )

    def worker(self) -> DeliveryWorker:
        options = self.job.settings.sinks["mirror"].options
        declaration = SinkDeclaration(
            name="mirror", format="test", tables=(), options=options, location="tautochrone.toml:5"
        )
        return DeliveryWorker(self.job, declaration)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def mirror(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    return Mirror(tmp_path, server, monkeypatch)


def test_a_refused_log_in_is_tried_again_only_with_another_password(mirror: Mirror, server: Server) -> None:
    server.password = "rotated-password"
    worker = mirror.worker()
    worker.start()
    eventually(lambda: mirror.of(SinkFailed))
    time.sleep(0.2)
    assert server.tried == [RIGHT]
    (failed,) = mirror.of(SinkFailed)
    assert (failed.error_class, failed.retry_in_ms) == ("SINK_LOGIN_REFUSED", None)
    assert "tautochrone.toml:5" in failed.error
    mirror.file.unlink()  # as a file that is replaced
    time.sleep(0.1)
    mirror.file.write_text("rotated-password")
    eventually(lambda: worker.is_settled)
    assert server.tried == [RIGHT, "rotated-password", "rotated-password"]
    (again,) = mirror.of(SinkLoginAgain)
    assert again.reason.code is ReasonCode.SINK_SECRETS_CHANGED
    assert worker.error is None
    worker.stop()


def test_a_password_that_was_rotated_before_is_read_at_once(mirror: Mirror, server: Server) -> None:
    worker = mirror.worker()
    server.password = "rotated-password"
    mirror.file.write_text("rotated-password")
    worker.start()
    worker.wait_until_settled()
    assert worker.is_settled
    assert worker.error is None
    assert [failed.retry_in_ms is None for failed in mirror.of(SinkFailed)] == [False]
    worker.stop()


@pytest.mark.parametrize("first", ["rights", "login"])
def test_the_end_of_a_run_does_not_wait_for_what_nobody_changes(
    mirror: Mirror, server: Server, first: str
) -> None:
    if first == "rights":
        server.error = rights_missing_error("Sink mirror", "The server", "no", needed="A right.")
    else:
        server.password = "another-password"
    worker = mirror.worker()
    worker.start()
    worker.wait_until_settled()
    assert worker.error is not None
    assert server.tried == [RIGHT]
    worker.stop()


def test_classes_that_are_not_tried_again_are_not_retryable() -> None:
    for error in (
        login_refused_error("Sink mirror", "The server", "no", settings="x"),
        rights_missing_error("Sink mirror", "The server", "no", needed="A right."),
    ):
        assert isinstance(error, SinkError)
        assert needs_attention(error)
        assert not error.retryable
        assert error.hint


@pytest.mark.parametrize("retryable", [True, False])
def test_an_error_of_a_sink_says_itself_whether_it_is_tried_again(
    mirror: Mirror, server: Server, retryable: bool
) -> None:
    server.error = statement_refused_error(
        "mirror", "The server", "no", "it", retryable=retryable, sqlstate="58000"
    )
    worker = mirror.worker()
    worker.start()
    worker.wait_until_settled()
    assert len(server.tried) == (3 if retryable else 1)
    assert [failed.retry_in_ms is None for failed in mirror.of(SinkFailed)][:1] == [not retryable]
    worker.stop()
