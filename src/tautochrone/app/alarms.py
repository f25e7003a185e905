"""Alarms are evaluated, and messages about them sent: by `taut serve`, by a continuous run, and at the end of
a run that runs once. The store sees to it that each message is sent by one of them.

Each target has a thread of its own. One that does not take a message is tried again after 5, 10, 20 … 600
seconds. A process that dies between a message and its record lets the message be sent twice: it has an id.
"""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tautochrone.errors import TautochroneError
from tautochrone.meta import Store
from tautochrone.model.alarms import AlarmLevel, DueNotification, NotificationForm, Notified
from tautochrone.model.backoff import Backoff
from tautochrone.model.closeable import Closeable
from tautochrone.project.settings import AlarmTarget
from tautochrone.redaction import redacted
from tautochrone.traces import trace_of

__all__ = ["AlarmLoop", "evaluate_and_notify", "send_test"]

_log = logging.getLogger("tautochrone.alarms")

_EVALUATE_EVERY_S = 5.0
_TIMEOUT_S = 10.0
_LEASE_MS = 60_000
_CLAIMED = 5
"""So many messages at once are sent within their lease, also if each takes the longest time."""
_BACKOFF = Backoff(first_s=5.0, longest_s=600.0)


def evaluate_and_notify(store: Store, targets: Sequence[AlarmTarget]) -> None:
    """Bring the alarms up to date, and send all targets at once what they lack."""
    store.alarms.evaluate()
    if targets:
        with ThreadPoolExecutor(len(targets), "tautochrone-alarms") as pool:
            # Errors of the store are raised from here.
            list(pool.map(partial(_notify_target, store), targets))


def _notify_target(
    store: Store, target: AlarmTarget, has_stopped: Callable[[], bool] = lambda: False
) -> None:
    for due in store.alarms.claim_notifications(target.name, _LEASE_MS, _CLAIMED):
        if has_stopped():
            # Whoever evaluates next sends the others, once their lease is over.
            return
        _notify(store, target, due)


def _notify(store: Store, target: AlarmTarget, due: DueNotification) -> None:
    assert due.alarm.id is not None
    error = _send(target, {"message": due.message, **due.alarm.as_json()}, due)
    attempts = due.alarm.notified.get(target.name, Notified()).attempts + 1
    retry_ms = round(_BACKOFF.wait_s(attempts) * 1000)
    store.alarms.record_notified(
        due.alarm.id, target.name, due.message, error, attempts=attempts, retry_ms=retry_ms
    )
    if error is not None:
        _log.warning("alarm %s was not sent to %s: %s", due.alarm.id, target.name, error)


def send_test(target: AlarmTarget) -> str | None:
    """Send a message that is about nothing; why the target did not take it, else None."""
    return _send(target, {"message": "test"}, None)


def _send(target: AlarmTarget, message: Mapping[str, Any], due: DueNotification | None) -> str | None:
    """Why the target did not take the message, without secrets; None: it did."""
    try:
        if target.command is not None:
            return _run(target.command, message)
        is_slack = target.form is NotificationForm.SLACK
        return _post(target.url or "", {"text": _slack_text(due)} if is_slack else message)
    except Exception as error:
        # Whatever a target does must not end the evaluation.
        return redacted(f"{type(error).__name__}: {error}")


def _post(url: str, body: Mapping[str, Any]) -> str | None:
    import httpx

    answer = httpx.post(url, json=body, timeout=_TIMEOUT_S)
    return None if answer.is_success else f"HTTP {answer.status_code}: {redacted(answer.text[:200])}"


def _run(command: str, message: Mapping[str, Any]) -> str | None:
    done = subprocess.run(
        shlex.split(command),
        input=json.dumps(message),
        text=True,
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode == 0:
        return None
    return redacted(f"exit status {done.returncode}: {done.stderr.strip()[-200:]}")


def _slack_text(due: DueNotification | None) -> str:
    if due is None:
        return "Tautochrone: a test of this webhook"
    alarm = due.alarm
    if due.message == "resolved":
        return f":white_check_mark: over: {alarm.rule.value} of `{alarm.subject}`"
    sign = ":rotating_light:" if alarm.level is AlarmLevel.CRITICAL else ":warning:"
    return f"{sign} {alarm.rule.value} of `{alarm.subject}`: {alarm.reason}\nwhat to do: `{alarm.command}`"


class AlarmLoop(Closeable):
    """Evaluates in a thread, and notifies each target in one of its own, from construction until `close`: a
    target that does not answer delays neither the evaluation nor another target."""

    def __init__(
        self, store: Store, targets: Sequence[AlarmTarget], *, every_s: float = _EVALUATE_EVERY_S
    ) -> None:
        self._store, self._every_s = store, every_s
        self._stopped = threading.Event()
        # Set when a target's thread has something to look at.
        self._evaluated = [threading.Event() for _ in targets]
        works: list[tuple[Callable[[], None], str]] = [(self._evaluate, "alarms were not evaluated")]
        for target, evaluated in zip(targets, self._evaluated, strict=True):
            notify = partial(self._notify, target, evaluated)
            works.append((notify, f"messages about alarms were not sent to {target.name}"))
        self._threads = [
            threading.Thread(target=self._repeat, args=work, name="tautochrone-alarms", daemon=True)
            for work in works
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stopped.set()
        for evaluated in self._evaluated:
            evaluated.set()
        deadline = time.monotonic() + _TIMEOUT_S + 1
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    def _repeat(self, work: Callable[[], None], failure: str) -> None:
        while not self._stopped.is_set():
            try:
                work()
            except TautochroneError as error:
                # A busy or unreachable store: the next round tries again.
                _log.warning("%s: [%s] %s", failure, error.error_class, error.message)
                self._stopped.wait(self._every_s)
            except Exception as error:
                # Without this thread nobody would be told anything.
                _log.error("%s: %s", failure, trace_of(error, "alarms"))
                self._stopped.wait(self._every_s)

    def _evaluate(self) -> None:
        self._store.alarms.evaluate()
        for evaluated in self._evaluated:
            evaluated.set()
        self._stopped.wait(self._every_s)

    def _notify(self, target: AlarmTarget, evaluated: threading.Event) -> None:
        evaluated.wait()
        evaluated.clear()
        if not self._stopped.is_set():
            _notify_target(self._store, target, self._stopped.is_set)
