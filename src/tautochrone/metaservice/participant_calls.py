"""Keeps a participant that does not answer from holding up everybody else.

What is due is carried out in one thread per participant, and programs that call have few of the service's
threads for each participant. Only those who need the slow participant wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock, Thread

from tautochrone.errors import TautochroneError
from tautochrone.model import events
from tautochrone.model.reason import Reason, ReasonCode

__all__ = ["CALLS_AT_ONCE", "ParticipantCalls"]

CALLS_AT_ONCE = 8
"""How many calls of programs may be with one participant. The service has 40 threads for all requests."""
_REPORT_EVERY_S = 60.0
_log = logging.getLogger(__name__)


class ParticipantCalls:
    """Safe to share between threads.

    Args:
        emit: receives `transaction_participant_slow`.
        wait_s: how long a sweep waits for the participants, and a call to be admitted.
        slow_s: a call that takes longer is reported, and again each minute.
    """

    def __init__(self, emit: events.Emit, *, wait_s: float = 1.0, slow_s: float = 10.0) -> None:
        self._emit, self._wait_s, self._slow_s = emit, wait_s, slow_s
        self._guard = Lock()
        self._admissions: dict[str, BoundedSemaphore] = {}
        self._workers: dict[str, _Worker] = {}

    @contextmanager
    def admission(self, participant: str) -> Iterator[bool]:
        """Admits one call of a program. False: too many run, and the call must not be made."""
        with self._guard:
            admissions = self._admissions.setdefault(participant, BoundedSemaphore(CALLS_AT_ONCE))
        is_admitted = admissions.acquire(timeout=self._wait_s)
        try:
            yield is_admitted
        finally:
            if is_admitted:
                admissions.release()

    def sweep(self, due: Mapping[str, Sequence[str]], carry_out: Callable[[str], None]) -> None:
        """Let each participant carry out what is due, one transaction after the other.

        Returns when all are done, or after `wait_s`; their threads go on. A participant whose thread still
        runs gets no second one.

        Args:
            due: by participant the ids of transactions.
            carry_out: called with an id, in the participant's thread.
        """
        with self._guard:
            started = []
            for participant, transactions in due.items():
                worker = self._workers.get(participant)
                if worker is None or not worker.thread.is_alive():
                    started.append(self._start(participant, transactions, carry_out))
                elif worker.is_to_report(self._slow_s):
                    self._report(participant, worker, len(transactions))
        until = time.monotonic() + self._wait_s
        for worker in started:
            worker.thread.join(max(0.0, until - time.monotonic()))

    def join(self, timeout_s: float) -> None:
        """Wait for the threads of the participants, as long as that at most."""
        with self._guard:
            threads = [worker.thread for worker in self._workers.values()]
        until = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _start(
        self, participant: str, transactions: Sequence[str], carry_out: Callable[[str], None]
    ) -> _Worker:
        worker = self._workers[participant] = _Worker(participant, transactions, carry_out)
        worker.thread.start()
        return worker

    def _report(self, participant: str, worker: _Worker, waiting: int) -> None:
        reason = Reason.of(
            ReasonCode.TRANSACTION_PARTICIPANT_SLOW,
            participant=participant,
            transaction=worker.transaction,
            seconds=int(time.monotonic() - worker.called_at),
        )
        self._emit(
            events.TransactionParticipantSlow(
                participant=participant,
                transaction=worker.transaction,
                waiting=waiting,
                reason=reason,
            )
        )


class _Worker:
    """The thread of one participant while something is due."""

    def __init__(
        self, participant: str, transactions: Sequence[str], carry_out: Callable[[str], None]
    ) -> None:
        self.transaction = ""
        self.called_at = time.monotonic()
        self._reported_at: float | None = None
        self._transactions, self._carry_out = transactions, carry_out
        # A participant that never answers must not keep the process.
        self.thread = Thread(target=self._run, name=f"participant-{participant}", daemon=True)

    def is_to_report(self, slow_s: float) -> bool:
        now = time.monotonic()
        reported_at = self._reported_at
        if now - self.called_at < slow_s or (
            reported_at is not None and reported_at >= self.called_at and now - reported_at < _REPORT_EVERY_S
        ):
            return False
        self._reported_at = now
        return True

    def _run(self) -> None:
        for transaction in self._transactions:
            self.transaction, self.called_at = transaction, time.monotonic()
            try:
                self._carry_out(transaction)
            except TautochroneError as error:
                # A busy or unreachable store: the next sweep tries again.
                _log.warning("transactions were not swept: [%s] %s", error.error_class, error.message)
                return
            except Exception:
                _log.exception("transaction %s was not swept", transaction)
                return
