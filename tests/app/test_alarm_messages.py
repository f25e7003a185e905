"""Messages about alarms: what targets get, what happens when they take nothing, and that no secret shows."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tautochrone.app.alarms import AlarmLoop, evaluate_and_notify, send_test
from tautochrone.app.locate import Options, locate
from tautochrone.errors import MetaError, SettingsError
from tautochrone.meta import MetaStore
from tautochrone.model.alarms import NotificationForm, Notified
from tautochrone.model.run_report import RunEnd
from tautochrone.project.settings import AlarmTarget


class Receiver:
    """A web server that takes what is posted, with the status that the test sets."""

    def __init__(self) -> None:
        self.status, self.bodies, self.got = 200, list[Any](), Event()
        self.answers = Event()
        self.answers.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.bodies.append(json.loads(body))
                receiver.got.set()
                receiver.answers.wait(30)
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook-of-ops"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


class Plant:
    """A job, whose runs end by an error when a test says so."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = 1_000_000
        self.store = MetaStore.open(f"sqlite:///{folder}/meta.db", clock=lambda: self.now_ms)
        self.store.jobs.start_run("shop", "shop", [])
        self.starts()

    def starts(self) -> None:
        self.fence = self.store.jobs.take_over("shop", lease_ms=10**9)
        # Long enough to be back.
        self.now_ms += 60_000

    def fails(self) -> None:
        self.store.jobs.end_run("shop", self.fence, RunEnd(error="No space left"))


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    plant = Plant(tmp_path)
    yield plant
    plant.store.close()


def test_each_target_gets_each_message_once(plant: Plant, receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "messages"
    script = tmp_path / "take.py"
    script.write_text(f"import sys; open({str(file)!r}, 'a').write(sys.stdin.read() + '\\n')")
    targets = (
        AlarmTarget(name="ops", url=receiver.url),
        AlarmTarget(name="chat", url=receiver.url, form=NotificationForm.SLACK),
        AlarmTarget(name="mail", command=f"{sys.executable} {script}"),
    )
    for act in (plant.fails, plant.starts):
        act()
        for _ in range(3):
            evaluate_and_notify(plant.store, targets)
    posted = [body for body in receiver.bodies if "message" in body]
    assert [(body["message"], body["rule"], body["subject"]) for body in posted] == [
        ("fired", "job_not_running", "shop"),
        ("resolved", "job_not_running", "shop"),
    ]
    assert posted[0]["command"] == "taut run"
    assert "No space left" in posted[0]["reason"]
    slack = [body["text"] for body in receiver.bodies if "message" not in body]
    assert len(slack) == 2
    assert "No space left" in slack[0]
    assert slack[1].startswith(":white_check_mark:")
    by_command = [json.loads(line) for line in file.read_text().splitlines()]
    assert [body["message"] for body in by_command] == ["fired", "resolved"]
    (alarm,) = plant.store.alarms.resolved()
    assert {each.sent for each in alarm.notified.values()} == {"resolved"}


def test_a_message_that_is_not_taken_is_tried_again_later(
    plant: Plant, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    target = AlarmTarget(name="ops", url=receiver.url)
    receiver.status = 500
    plant.fails()
    waits_ms = []
    for attempts in (1, 2, 3):
        with caplog.at_level(logging.WARNING):
            evaluate_and_notify(plant.store, (target,))
            evaluate_and_notify(plant.store, (target,))
        (alarm,) = plant.store.alarms.current()
        sent = alarm.notified["ops"]
        assert (sent.sent, sent.attempts, sent.error) == (None, attempts, "HTTP 500: ")
        waits_ms.append(sent.next_at_ms - plant.now_ms)
        plant.now_ms = sent.next_at_ms
    assert waits_ms == [5_000, 10_000, 20_000]
    assert len(receiver.bodies) == 3
    assert "alarm 1 was not sent to ops: HTTP 500" in caplog.text
    receiver.status = 200
    evaluate_and_notify(plant.store, (target,))
    (alarm,) = plant.store.alarms.current()
    assert alarm.notified["ops"] == Notified(sent="fired", sent_at_ms=plant.now_ms)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (AlarmTarget(name="t", url="http://127.0.0.1:9/x"), "ConnectError"),
        (AlarmTarget(name="t", url="http://[::bad/x"), "InvalidURL"),
        (AlarmTarget(name="t", command="/no/such/program"), "FileNotFoundError"),
        (
            AlarmTarget(name="t", command=f"{sys.executable} -c 'import sys; sys.exit(\"no mail\")'"),
            "no mail",
        ),
    ],
)
def test_whatever_a_target_does_is_an_error_of_it(target: AlarmTarget, words: str) -> None:
    assert words in (send_test(target) or "")


def test_the_loop_goes_on_after_a_failure(
    plant: Plant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, calls = plant.store.alarms.evaluate, []

    def failing_once() -> object:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("unexpected")
        return evaluate()

    monkeypatch.setattr(plant.store.alarms, "evaluate", failing_once)
    plant.fails()
    with AlarmLoop(plant.store, (AlarmTarget(name="ops", url=receiver.url),), every_s=0.01):
        assert receiver.got.wait(30)
    assert receiver.bodies[0]["message"] == "fired"


def test_an_error_of_a_target_is_not_one_of_the_evaluation(
    plant: Plant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> object:
        refused.set()
        raise MetaError("META_STORE_BUSY", "it stayed locked")

    refused = Event()
    monkeypatch.setattr(plant.store.alarms, "claim_notifications", refuse)
    with AlarmLoop(plant.store, (AlarmTarget(name="ops", url=receiver.url),), every_s=0.01):
        assert refused.wait(30)
    assert "messages about alarms were not sent to ops: [META_STORE_BUSY]" in caplog.text
    assert "not evaluated" not in caplog.text


def test_a_loop_that_stops_sends_no_further_message(
    plant: Plant, silent: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its store may be closed by the time a slow target has taken several."""
    claim, claimed = plant.store.alarms.claim_notifications, list[int]()

    def claim_twice(*claimed_by: Any) -> object:
        due = claim(*claimed_by)
        claimed.append(2 * len(due))
        return (*due, *due)

    monkeypatch.setattr(plant.store.alarms, "claim_notifications", claim_twice)
    plant.fails()
    loop = AlarmLoop(plant.store, (AlarmTarget(name="ops", url=silent.url),), every_s=0.01)
    assert silent.got.wait(30)
    closing = Thread(target=loop.close)
    closing.start()
    while not loop._stopped.is_set():
        closing.join(0.01)
    silent.answers.set()
    closing.join(30)
    assert claimed == [2]
    assert len(silent.bodies) == 1


@pytest.fixture
def silent() -> Iterator[Receiver]:
    """It takes what is posted and does not answer before the end of the test."""
    silent = Receiver()
    silent.answers.clear()
    yield silent
    silent.answers.set()
    silent.stop()


def test_a_silent_target_delays_no_other(plant: Plant, receiver: Receiver, silent: Receiver) -> None:
    targets = (AlarmTarget(name="silent", url=silent.url), AlarmTarget(name="ops", url=receiver.url))
    with AlarmLoop(plant.store, targets, every_s=0.01):
        for act in (plant.fails, plant.starts):
            receiver.got.clear()
            act()
            assert receiver.got.wait(5)
        assert silent.got.is_set()
        assert not silent.answers.is_set()
        silent.answers.set()
    assert [body["message"] for body in receiver.bodies] == ["fired", "resolved"]


def test_the_end_of_a_run_sends_to_all_targets_at_once(
    plant: Plant, receiver: Receiver, silent: Receiver
) -> None:
    plant.fails()
    targets = (AlarmTarget(name="silent", url=silent.url), AlarmTarget(name="ops", url=receiver.url))
    sending = Thread(target=evaluate_and_notify, args=(plant.store, targets))
    sending.start()
    assert receiver.got.wait(5)
    assert sending.is_alive()
    silent.answers.set()
    sending.join(30)


def test_targets_are_settings_and_their_urls_are_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text("name: shop\nstorage: storage\nlibraries:\n  - glob: {include: t/**}\n")
    settings = tmp_path / "tautochrone.toml"
    monkeypatch.setenv("OPS_URL", "http://127.0.0.1:9/T0KEN-of-ops")
    settings.write_text(
        '[alarms]\nsink_behind = "1h"\ndataset_late = "2h"\n'
        '[alarms.notify.ops]\nurl = { env = "OPS_URL" }\nform = "slack"\n'
    )
    loaded = locate(Options(spec=str(spec)))[1]
    assert loaded.alarm_limits.sink_behind_ms == 3_600_000
    assert loaded.alarm_limits.dataset_late_ms == 7_200_000
    (target,) = loaded.alarm_targets
    assert (target.name, target.form) == ("ops", NotificationForm.SLACK)
    assert "T0KEN" not in repr(loaded)
    assert "T0KEN" not in (send_test(target) or "T0KEN")
    for section in ('url = "ftp://x"', 'url = "http://x"\ncommand = "x"', 'form = "slack"'):
        settings.write_text(f"[alarms.notify.ops]\n{section}\n")
        with pytest.raises(SettingsError, match="INVALID_SETTING"):
            locate(Options(spec=str(spec)))
