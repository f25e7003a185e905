"""The coordinator of transactions: records what programs decide, and lets participants carry it out.

A program drives a transaction with `begin`, `write`, `prepare`, `commit` or `rollback`. The decision is in
the store before the participant hears of it, so a crash at any point leaves a transaction that can still be
rolled back, or a decision that is carried out later, by `sweep`, at the start of a service and while it runs.
The participant `client` is the program itself; it carries the decision out and calls `confirm` or `fail`.

A participant that does not answer must not hold up everybody else. What is due is carried out in one thread
per participant, and programs that call have few of the service's threads for each participant. Only those who
need the slow participant wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import BoundedSemaphore, Event, Lock, Thread
from types import MappingProxyType
from weakref import WeakValueDictionary

from tautochrone.errors import MetaError, TautochroneError
from tautochrone.meta import Store
from tautochrone.metaservice.leftovers import Leftovers
from tautochrone.model import events
from tautochrone.model.backoff import Backoff
from tautochrone.model.closeable import Closeable
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import (
    CLIENT,
    DECIDED,
    LONGEST_TIMEOUT_MS,
    CoordinatedTransaction,
    Participant,
    ShardedParticipant,
    TransactionChunk,
    TransactionOperation,
)
from tautochrone.redaction import redacted

__all__ = ["CALLS_AT_ONCE", "MAX_FAILURES", "CoordinatorLoop", "TransactionCoordinator"]

MAX_FAILURES = 10
"""How often a decision is tried before the transaction needs attention."""
CALLS_AT_ONCE = 8
"""How many calls of programs may be with one participant. The service has 40 threads for all requests."""
_BACKOFF = Backoff(first_s=1.0, longest_s=60.0)
_MAX_ERROR = 1_000
_FORGETS_EVERY_MS = 60_000
_CHUNKS_KEPT_MS = 7 * 24 * 3_600_000
_SWEEP_S = 1.0
_LOCK_WAIT_S = 5.0
_OTHERS_TURN_MS = 60_000
_REPORT_EVERY_S = 60.0
_S = TransactionState
_log = logging.getLogger(__name__)


def _log_event(event: events.Event) -> None:
    level = logging.ERROR if isinstance(event, events.TransactionNeedsAttention) else logging.WARNING
    pairs = ", ".join(f"{name}={value}" for name, value in event.json_fields().items())
    _log.log(level, "%s: %s", event.name, pairs)


def _hint_of(error: Exception) -> str | None:
    return error.hint if isinstance(error, TautochroneError) else None


class TransactionCoordinator:
    """Safe to share between threads. Several services may coordinate the transactions of one store.

    Args:
        store: where the transactions are recorded.
        participants: who carries decisions out, by name.
        emit: receives `transaction_needs_attention`, `transaction_failed`, `transaction_expired`,
            `transaction_participant_slow`, `transaction_leftovers_dropped` and
            `transaction_leftovers_not_dropped`; None: they are logged.
        keep_ids_ms: how long ids of ended transactions are kept, a day at least; None: for ever.
        slow_s: a participant that takes longer for one transaction is reported.
    """

    def __init__(
        self,
        store: Store,
        participants: Mapping[str, Participant] = MappingProxyType({}),
        *,
        emit: events.Emit | None = None,
        max_failures: int = MAX_FAILURES,
        keep_ids_ms: int | None = None,
        slow_s: float = 10.0,
    ) -> None:
        self._store = store.transactions
        self._now_ms = store.now_ms
        self._participants = participants
        self._emit: events.Emit = emit or _log_event
        self._max_failures = max_failures
        if keep_ids_ms is not None and keep_ids_ms < LONGEST_TIMEOUT_MS:
            raise ValueError(f"keep_ids_ms is {keep_ids_ms}, and programs repeat calls for a day")
        self._keep_ids_ms = keep_ids_ms
        self._forgets_at_ms = 0
        self._locks: WeakValueDictionary[str, _TransactionLock] = WeakValueDictionary()
        self._locks_guard = Lock()
        self._calls = _ParticipantCalls(self._emit, slow_s=slow_s)
        self._leftovers = Leftovers(self._store, participants, self._emit)

    def begin(
        self, transaction: str, owner: str, fence: int, timeout_ms: int, participant: str = CLIENT
    ) -> TransactionState:
        """As `Transactions.begin`.

        Raises:
            MetaError: `TRANSACTION_PARTICIPANT_UNKNOWN`, nobody is registered under this name.
        """
        if participant != CLIENT and participant not in self._participants:
            raise self._unknown_participant_error(participant)
        return self._store.begin(transaction, owner, fence, timeout_ms, participant)

    def write(self, transaction: str, owner: str, fence: int, chunk: TransactionChunk) -> TransactionState:
        """As `Transactions.write`, if the chunk is on the server where it belongs.

        Raises:
            MetaError: `TRANSACTION_WRONG_SERVER`; its parameter `server` is the right one.
        """
        # Where no participant has servers, the store is not asked twice for each chunk.
        if any(isinstance(each, ShardedParticipant) for each in self._participants.values()):
            self._require_right_server(transaction, owner, fence, chunk)
        return self._store.write(transaction, owner, fence, chunk)

    def prepare(self, transaction: str, owner: str, fence: int) -> TransactionState:
        """As `Transactions.prepare`, after the participant agreed.

        Raises:
            MetaError: `TRANSACTION_NOT_PREPARED`, the participant cannot commit it;
                `TRANSACTION_PARTICIPANT_UNKNOWN`, this service does not have the participant;
                `TRANSACTION_BUSY`, another call of this transaction, or too many of its participant, run;
                `TRANSACTION_CHUNKS_CHANGED`, chunks were registered after the participant was asked.
        """
        with self._exclusive(transaction):
            compared = self._ask_participant(transaction, owner, fence)
            return self._store.prepare(transaction, owner, fence, compared)

    def commit(self, transaction: str, owner: str, fence: int) -> TransactionState:
        """Decide and, unless the program is the participant, carry out. `COMMITTING`: it is tried again.

        Raises:
            MetaError: as `prepare`.
        """
        with self._exclusive(transaction):
            compared = self._ask_participant(transaction, owner, fence)
            state = self._store.commit(transaction, owner, fence, compared)
            return self._carry_out(transaction) if state in DECIDED else state

    def rollback(self, transaction: str, owner: str, fence: int) -> TransactionState:
        """Decide and, unless the program is the participant, carry out. `ABORTING`: it is tried again.

        Raises:
            MetaError: `TRANSACTION_BUSY`, another call of this transaction runs.
        """
        with self._exclusive(transaction):
            state = self._store.rollback(transaction, owner, fence)
            return self._carry_out(transaction) if state in DECIDED else state

    def confirm(self, transaction: str, owner: str, fence: int) -> TransactionState:
        """The program, which is the participant, carried the decision out.

        Raises:
            MetaError: `TRANSACTION_DIFFERS`, a participant of the service does it.
        """
        self._require_client(transaction)
        return self._store.confirm(transaction, owner, fence)

    def fail(
        self, transaction: str, owner: str, fence: int, error: str, attempt: int
    ) -> CoordinatedTransaction:
        """The program, which is the participant, could not carry the decision out.

        Raises:
            MetaError: `TRANSACTION_DIFFERS`, a participant of the service does it.
        """
        self._require_client(transaction)
        failed = self._store.fail(transaction, owner, fence, error[:_MAX_ERROR], attempt, self._max_failures)
        self._report_failure(failed)
        return failed

    def sweep(self) -> None:
        """Roll back what was not prepared in time, and try what is decided and due. Repeatable.

        It waits a second at most for participants; what they have not done by then goes on in their threads.
        """
        for transaction in self._store.roll_back_expired():
            self._emit(events.TransactionExpired(transaction=transaction))
        due: dict[str, list[str]] = {}
        for record in self._store.due():
            if record.participant == CLIENT:
                self._carry_out_due(record.id)
            else:
                due.setdefault(record.participant, []).append(record.id)
        self._calls.sweep(due, self._carry_out_due)
        now_ms = self._now_ms()
        if now_ms >= self._forgets_at_ms:
            self._forgets_at_ms = now_ms + _FORGETS_EVERY_MS
            self._store.delete_chunks_of_ended_transactions(now_ms - _CHUNKS_KEPT_MS)
            if self._keep_ids_ms is not None:
                self._store.forget_ended(now_ms - self._keep_ids_ms)
            # In the participants' threads: one that does not answer holds up nobody else.
            names = {name: [name] for name in self._leftovers.participants}
            self._calls.sweep(names, lambda name: self._leftovers.drop(name, now_ms))

    def join(self, timeout_s: float) -> None:
        """Wait for what participants are carrying out, as long as that at most."""
        self._calls.join(timeout_s)

    def require_newest(self, owner: str, serial: int | None) -> None:
        """Refuse a program that remembers more changes than the store: the store is an older copy.

        Raises:
            MetaError: `TRANSACTION_STORE_OLDER`.
        """
        known = self._store.serial(owner) if serial is not None else 0
        if serial is not None and known < serial:
            raise MetaError(
                "TRANSACTION_STORE_OLDER",
                f"{owner} remembers {serial} changes, and the store has seen {known}: an older copy of the "
                "store was put back, or it is another one",
                hint="What was decided since is to be seen in the target only. Settle it there, then call "
                "without serial.",
                parameters={"owner": owner, "serial": str(serial), "known": str(known)},
                sqlstate="55000",
            )

    def serial(self, owner: str) -> int:
        """How many changes of the program's transactions the store has seen."""
        return self._store.serial(owner)

    def _require_right_server(
        self, transaction: str, owner: str, fence: int, chunk: TransactionChunk
    ) -> None:
        self._store.fence(owner, fence)
        record = self._store.get(transaction)
        if record is None or record.state is not _S.INITIALIZED or record.owner != owner:
            return  # the store refuses the chunk
        participant: object = self._participants.get(record.participant)
        if not isinstance(participant, ShardedParticipant):
            return
        server = participant.server_of(record, chunk)
        if server is not None and server != chunk.server:
            raise MetaError(
                "TRANSACTION_WRONG_SERVER",
                f"Chunk {chunk.id} of transaction {transaction} belongs on the server {server}, "
                f"not on {chunk.server or 'an unnamed one'}",
                hint="Write its rows on that server, then register the chunk again.",
                parameters={"server": server},
                sqlstate="25000",
            )

    def _ask_participant(self, transaction: str, owner: str, fence: int) -> int | None:
        """Before it is prepared for the first time: the participant has to agree.

        Returns:
            To how many chunks it agreed; None: it was not asked.
        """
        self._store.fence(owner, fence)
        record = self._store.get(transaction)
        if record is None or record.state is not _S.INITIALIZED or record.owner != owner:
            return None  # the store refuses or repeats the operation
        if record.participant == CLIENT:
            return None
        participant = self._participants.get(record.participant)
        if participant is None:
            # Another service of this store has it. Without its consent nothing can be decided.
            raise self._unknown_participant_error(record.participant)
        with self._calls.admission(record.participant) as is_admitted:
            if not is_admitted:
                raise _busy_error(
                    f"{CALLS_AT_ONCE} calls already wait for the participant {record.participant} of "
                    f"transaction {transaction}"
                )
            chunks = self._store.chunks(transaction)
            try:
                participant.prepare(record, chunks)
            except Exception as error:
                raise MetaError(
                    "TRANSACTION_NOT_PREPARED",
                    f"The participant {record.participant} cannot commit transaction {transaction}: "
                    f"{redacted(str(error))[:_MAX_ERROR]}",
                    hint=_hint_of(error) or "Write what is missing and commit again, or roll back.",
                    sqlstate="25000",
                ) from error
            return len(chunks)

    def _carry_out_due(self, transaction: str) -> None:
        """For a sweep. A transaction of which a call runs is left to that call."""
        lock = self._lock_of(transaction)
        if lock.lock.acquire(blocking=False):
            try:
                self._carry_out(transaction, overdue=True)
            finally:
                lock.lock.release()

    def _carry_out(self, transaction: str, *, overdue: bool = False) -> TransactionState:
        """Let the participant do what is decided; the state afterwards."""
        record = self._store.get(transaction)
        if record is None or record.state not in DECIDED or record.needs_attention:
            return _S.UNKNOWN if record is None else record.state
        if record.participant == CLIENT:
            if overdue and record.due_at_ms <= self._now_ms():
                late = f"the program did not confirm it within {record.timeout_ms} ms"
                self._record_failure(record, late, record.timeout_ms)
            return record.state
        participant = self._participants.get(record.participant)
        retry_ms = round(1000 * _BACKOFF.wait_s(record.failures + 1))
        if participant is None:
            # Another service has it, and its turns and its failures are not ours to count.
            if self._now_ms() - record.due_at_ms >= _OTHERS_TURN_MS:
                unknown = f"no service did it, and no participant of this one is called {record.participant}"
                self._record_failure(record, unknown, retry_ms)
            return record.state
        chunks = self._store.chunks(transaction)
        step = participant.commit if record.state is _S.COMMITTING else participant.rollback
        try:
            if overdue:  # in the participant's own thread
                step(record, chunks)
            else:
                with self._calls.admission(record.participant) as is_admitted:
                    if not is_admitted:
                        return record.state  # the next sweep does it
                    step(record, chunks)
        except Exception as error:
            # The outcome is unknown, so the same is tried again.
            text = redacted(str(error)) or type(error).__name__
            hint = _hint_of(error)
            self._record_failure(record, f"{text}; {hint}" if hint else text, retry_ms)
            return record.state
        return self._store.settle(transaction, TransactionOperation.CONFIRM)

    def _record_failure(self, record: CoordinatedTransaction, error: str, retry_ms: int) -> None:
        failed = self._store.record_failure(
            record.id, error[:_MAX_ERROR], record.failures + 1, self._max_failures, retry_ms
        )
        if failed is not None:
            self._report_failure(failed)

    def _report_failure(self, failed: CoordinatedTransaction) -> None:
        self._emit(
            events.TransactionFailed(
                transaction=failed.id,
                owner=failed.owner,
                state=failed.state.value,
                error=failed.error,
                failures=failed.failures,
            )
        )
        if failed.needs_attention:
            self._emit(
                events.TransactionNeedsAttention(
                    transaction=failed.id,
                    owner=failed.owner,
                    state=failed.state.value,
                    error=failed.error,
                    failures=failed.failures,
                    hint=f"taut transactions show {failed.id}",
                )
            )

    def _unknown_participant_error(self, name: str) -> MetaError:
        return MetaError(
            "TRANSACTION_PARTICIPANT_UNKNOWN",
            f"No participant of this service is called {name}",
            hint="known participants: " + ", ".join((CLIENT, *sorted(self._participants))),
        )

    def _require_client(self, transaction: str) -> None:
        record = self._store.get(transaction)
        if record is not None and record.participant != CLIENT:
            raise MetaError(
                "TRANSACTION_DIFFERS",
                f"The participant {record.participant} of the service carries transaction {transaction} out",
                sqlstate="25000",
            )

    @contextmanager
    def _exclusive(self, transaction: str) -> Iterator[None]:
        """Within one service a participant gets the calls of one transaction one after the other."""
        lock = self._lock_of(transaction)
        # A program that repeats its call must not take all threads of the service.
        if not lock.lock.acquire(timeout=_LOCK_WAIT_S):
            raise _busy_error(f"Another call of transaction {transaction} runs")
        try:
            yield
        finally:
            lock.lock.release()

    def _lock_of(self, transaction: str) -> _TransactionLock:
        with self._locks_guard:
            return self._locks.setdefault(transaction, _TransactionLock())


def _busy_error(problem: str) -> MetaError:
    return MetaError(
        "TRANSACTION_BUSY",
        f"{problem}: its participant does not answer, or only slowly",
        hint="Call again later. `taut transactions list` shows the decided ones that wait, and their errors.",
        sqlstate="55000",
        retryable=True,
    )


class _TransactionLock:
    """Kept as long as somebody uses it."""

    def __init__(self) -> None:
        self.lock = Lock()


class CoordinatorLoop(Closeable):
    """Sweeps in a thread from construction until `close`. The first round settles what a crash left."""

    def __init__(self, coordinator: TransactionCoordinator, *, interval_s: float = _SWEEP_S) -> None:
        self._coordinator, self._interval_s = coordinator, interval_s
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="tautochrone-transactions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=5)
        self._coordinator.join(5)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._coordinator.sweep()
            except TautochroneError as error:
                # A busy or unreachable store: the next sweep tries again.
                _log.warning("transactions were not swept: [%s] %s", error.error_class, error.message)
            except Exception:
                # Without this thread no transaction would ever time out or be tried again.
                _log.exception("transactions were not swept")
            self._stopped.wait(self._interval_s)


class _ParticipantCalls:
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
