"""The thread of one sink that takes whole checkpoints."""

from __future__ import annotations

from dataclasses import replace

from tautochrone.errors import SettingsError, SinkError, TautochroneError
from tautochrone.model import events
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import DeliveryPolicy, SinkDeclaration
from tautochrone.runtime.delivery.delivery import Delivery
from tautochrone.runtime.delivery.worker import SinkWorker
from tautochrone.runtime.job.job import Job

__all__ = ["DeliveryWorker", "needs_attention"]

_FIRST_PAUSE_S = 0.2
_POLL_S = 5.0
"""How often a sink looks for checkpoints that other jobs completed."""
_LAST_TRIES = 3
"""Failed tries in a row after which the end of a run waits no longer for a sink."""

_SINK_CLASS = "SINK_"
"""The prefix of the classes of errors that our sinks raise."""
_LOGIN_REFUSED = "SINK_LOGIN_REFUSED"
"""It does change when the file of a password does, as when passwords are rotated."""


def needs_attention(error: Exception) -> bool:
    """Whether no further try can end a failed delivery: the sink's error says so itself.

    Errors that are not of a sink, such as those of the lake, and those of adapters that other people wrote
    are tried again.
    """
    return (
        isinstance(error, TautochroneError)
        and error.error_class.startswith(_SINK_CLASS)
        and not error.retryable
    )


class DeliveryWorker(SinkWorker):
    """Delivers the newest published checkpoint to one sink. See `SinkWorker`."""

    def __init__(self, job: Job, declaration: SinkDeclaration) -> None:
        super().__init__(job, declaration.name, poll_s=_POLL_S, first_pause_s=_FIRST_PAUSE_S)
        self.policy = declaration.policy
        self._declaration = declaration
        self._attempts = declaration.attempts
        self._delivery = Delivery(job, declaration)
        self._is_login_refused = False
        self._needs_attention = False

    @property
    def is_skipping(self) -> bool:
        return self.policy is DeliveryPolicy.SKIP_WITH_ALARM and self._failures >= self._attempts

    def _gives_up(self) -> bool:
        return self._needs_attention or self._failures >= _LAST_TRIES

    def _work(self) -> None:
        if self._needs_attention and not (self._is_login_refused and self._has_new_secrets()):
            return
        self._needs_attention = self._is_login_refused = False
        while self._delivery.deliver():
            pass
        self._failures, self.error = 0, None
        self._settle()

    def _failed(self, error: Exception) -> None:
        self._delivery.failed()
        journal = self._delivery.journal
        error_class = error.error_class if isinstance(error, TautochroneError) else ""
        if isinstance(error, SinkError):
            error.location = error.location or self._declaration.location or None
        self._is_login_refused = error_class == _LOGIN_REFUSED
        has_new_secrets = self._is_login_refused and self._has_new_secrets()
        self._needs_attention = needs_attention(error) and not has_new_secrets
        is_skipped = self.policy is DeliveryPolicy.SKIP_WITH_ALARM and self._failures == self._attempts
        text = self._failure_text(error)
        if journal.fence:
            journal.failed(text, failures=self._failures, skips=is_skipped, attention=self._needs_attention)
        self._report_failure(error, text, is_last=self._needs_attention)
        if is_skipped:
            self._job.emit(
                events.SinkSkipped(
                    sink=self.name,
                    failures=self._failures,
                    reason=Reason.of(ReasonCode.SINK_FAILED_TOO_OFTEN),
                )
            )
        if not self._needs_attention:
            if isinstance(error, SinkError) and error_class == "SINK_NOT_REACHABLE":
                reason = Reason.of(ReasonCode.SINK_SERVER_AWAY, text=error.message)
                self._job.emit(events.SinkWaiting(sink=self.name, reason=reason))
            self._pause()

    def _has_new_secrets(self) -> bool:
        """Read the options again; whether they differ from those that were refused, and are used now."""
        settings = self._job.settings.sinks.get(self.name)
        if settings is None or settings.reread is None:
            return False
        try:
            options = {**self._declaration.options, **settings.reread()}
        except SettingsError:
            # The file may be missing while it is replaced. The refusal, which is reported, still stands.
            return False
        if options == self._declaration.options:
            return False
        self._declaration = replace(self._declaration, options=options)
        self._close()
        self._delivery = Delivery(self._job, self._declaration)
        reason = Reason.of(ReasonCode.SINK_SECRETS_CHANGED)
        self._job.emit(events.SinkLoginAgain(sink=self.name, reason=reason))
        return True

    def _close(self) -> None:
        try:
            self._delivery.close()
        except (SinkError, OSError) as error:
            self._job.emit(events.SinkCloseFailed(sink=self.name, error=str(error), error_class="SINK_CLOSE"))
