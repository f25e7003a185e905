"""Transactions that programs drive. Every step is one write of the store: a crash leaves it done or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta.database import tables as t
from tautochrone.meta.database.repository import Repository
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import (
    ANSWERS,
    CLIENT,
    DECIDED,
    ENDED,
    CoordinatedTransaction,
    TransactionChunk,
    TransactionOperation,
    series_of,
)

__all__ = ["SqlTransactions", "needing_attention"]

_T, _O, _K = t.transactions.c, t.transaction_owners.c, t.transaction_chunks.c
_F = t.forgotten_transactions.c
_FORGOTTEN_AT_ONCE = 500
_S, _Operation = TransactionState, TransactionOperation


class SqlTransactions(Repository):
    """Implements `meta.protocols.Transactions`."""

    def fence(self, owner: str, fence: int) -> None:
        with self._write() as connection:
            _raise_fence(connection, owner, fence)

    def roll_back_older_runs(self, owner: str, fence: int) -> tuple[CoordinatedTransaction, ...]:
        older = (_T.owner == owner) & (_T.state == _S.INITIALIZED) & (_T.fence < fence)
        remaining = select(t.transactions).where(_T.owner == owner, _T.state.not_in(ENDED)).order_by(_T.id)
        with self._write() as connection:
            _raise_fence(connection, owner, fence)
            for row in connection.execute(select(t.transactions).where(older)).all():
                self._set_state(connection, row, _S.ABORTING, fence)
            return tuple(map(_transaction, connection.execute(remaining)))

    def begin(
        self, transaction: str, owner: str, fence: int, timeout_ms: int, participant: str = CLIENT
    ) -> TransactionState:
        with self._as_owner(owner, fence) as connection:
            row = _row(connection, transaction, owner)
            state = self._next_state(_Operation.BEGIN, transaction, row)
            if row is None:
                self._insert(connection, transaction, owner, fence, participant, state, timeout_ms)
            elif (row.participant, row.timeout_ms) != (participant, timeout_ms):
                raise _conflict_error(
                    "TRANSACTION_DIFFERS",
                    f"Transaction {transaction} was begun for the participant {row.participant} with a "
                    f"time-out of {row.timeout_ms} ms",
                )
            else:
                if row.fence < fence:
                    self._begin_anew(connection, row)
                self._set_state(connection, row, state, fence)
            return state

    def write(self, transaction: str, owner: str, fence: int, chunk: TransactionChunk) -> TransactionState:
        with self._as_owner(owner, fence) as connection:
            row = _row(connection, transaction, owner)
            state = self._next_state(_Operation.WRITE, transaction, row)
            query = select(t.transaction_chunks).where(_K.transaction_id == transaction, _K.chunk == chunk.id)
            known = connection.execute(query).first()
            if known is None:
                connection.execute(insert(t.transaction_chunks).values(_chunk_values(transaction, chunk)))
                _count_change(connection, owner)
            elif _chunk(known) != chunk:
                raise _conflict_error(
                    "TRANSACTION_CHUNK_DIFFERS",
                    f"Chunk {chunk.id} of transaction {transaction} was registered with another content",
                )
            self._set_state(connection, row, state, fence)
            return state

    def prepare(
        self, transaction: str, owner: str, fence: int, chunks: int | None = None
    ) -> TransactionState:
        return self._step(_Operation.PREPARE, transaction, owner, fence, chunks)

    def commit(self, transaction: str, owner: str, fence: int, chunks: int | None = None) -> TransactionState:
        return self._step(_Operation.COMMIT, transaction, owner, fence, chunks)

    def rollback(self, transaction: str, owner: str, fence: int) -> TransactionState:
        return self._step(_Operation.ROLLBACK, transaction, owner, fence)

    def confirm(self, transaction: str, owner: str, fence: int) -> TransactionState:
        return self._step(_Operation.CONFIRM, transaction, owner, fence)

    def fail(
        self, transaction: str, owner: str, fence: int, error: str, attempt: int, max_failures: int
    ) -> CoordinatedTransaction:
        with self._as_owner(owner, fence) as connection:
            row = _row(connection, transaction, owner)
            self._next_state(_Operation.FAIL, transaction, row)
            if row is None:
                raise _not_found_error(transaction)
            return self._fail(connection, row, error, attempt, max_failures, row.timeout_ms)

    def record_failure(
        self, transaction: str, error: str, attempt: int, max_failures: int, retry_ms: int
    ) -> CoordinatedTransaction | None:
        with self._write() as connection:
            row = _locked_row(connection, transaction)
            if row is None or row.state not in DECIDED:
                return None
            return self._fail(connection, row, error, attempt, max_failures, retry_ms)

    def settle(self, transaction: str, operation: TransactionOperation) -> TransactionState:
        with self._write() as connection:
            row = _locked_row(connection, transaction)
            if row is None:
                raise _not_found_error(transaction)
            state = self._next_state(operation, transaction, row)
            if operation is _Operation.COMMIT and row.state == _S.INITIALIZED:
                raise _state_error(operation, transaction, _S.INITIALIZED)
            self._set_state(connection, row, state, 0)
            if state in DECIDED:
                values = {"needs_attention": False, "failures": 0, "due_at_ms": self._due(row)}
                connection.execute(update(t.transactions).where(_T.id == transaction).values(values))
            return state

    def roll_back_expired(self) -> tuple[str, ...]:
        expired = (_T.state == _S.INITIALIZED.value) & (_T.due_at_ms <= self._clock())
        query = select(t.transactions).where(expired).order_by(_T.id)
        with self._read() as connection:
            # Most calls find nothing, and a write would wait for other writers.
            if connection.execute(query.limit(1)).first() is None:
                return ()
        with self._write() as connection:
            rows = connection.execute(query.with_for_update()).all()
            for row in rows:
                self._set_state(connection, row, _S.ABORTING, 0)
            return tuple(row.id for row in rows)

    def delete_chunks_of_ended_transactions(self, ended_before_ms: int) -> None:
        ended = select(_T.id).where(_T.state.in_(ENDED), _T.changed_at_ms < ended_before_ms)
        lost = _K.transaction_id.in_(ended)
        with self._read() as connection:
            # Most calls find nothing, and a write would wait for other writers.
            if connection.execute(select(_K.chunk).where(lost).limit(1)).first() is None:
                return
        with self._write() as connection:
            connection.execute(delete(t.transaction_chunks).where(lost))

    def forget_ended(self, ended_before_ms: int) -> None:
        ended = (_T.state.in_(ENDED)) & (_T.changed_at_ms < ended_before_ms)
        query = select(_T.id, _T.owner).where(ended).order_by(_T.id).limit(_FORGOTTEN_AT_ONCE)
        while True:
            with self._read() as connection:
                if connection.execute(query.limit(1)).first() is None:
                    return
            with self._write() as connection:
                rows = connection.execute(query.with_for_update()).all()
                used: dict[tuple[str, str], tuple[int, ...]] = {}
                for row in rows:
                    series, position = series_of(row.id)
                    used[row.owner, series] = max(position, used.get((row.owner, series), ()))
                for (owner, series), position in used.items():
                    _use_up(connection, owner, series, position)
                ids = [row.id for row in rows]
                connection.execute(delete(t.transaction_chunks).where(_K.transaction_id.in_(ids)))
                connection.execute(delete(t.transactions).where(_T.id.in_(ids)))

    def is_forgotten(self, transaction: str) -> bool:
        series, position = series_of(transaction)
        query = select(_F.position).where(_F.series == series)
        with self._read() as connection:
            return any(tuple(json.loads(text)) >= position for text in connection.execute(query).scalars())

    def serial(self, owner: str) -> int:
        with self._read() as connection:
            return int(connection.execute(select(_O.serial).where(_O.owner == owner)).scalar() or 0)

    def get(self, transaction: str) -> CoordinatedTransaction | None:
        with self._read() as connection:
            row = connection.execute(select(t.transactions).where(_T.id == transaction)).first()
            return None if row is None else _transaction(row)

    def chunks(self, transaction: str) -> tuple[TransactionChunk, ...]:
        query = select(t.transaction_chunks).where(_K.transaction_id == transaction).order_by(_K.chunk)
        with self._read() as connection:
            return tuple(map(_chunk, connection.execute(query)))

    def find(
        self,
        owner: str | None = None,
        state: TransactionState | None = None,
        *,
        attention: bool = False,
        after: str = "",
        limit: int = 100,
    ) -> tuple[CoordinatedTransaction, ...]:
        query = select(t.transactions).where(_T.id > after)
        if owner is not None:
            query = query.where(_T.owner == owner)
        if state is not None:
            query = query.where(_T.state == state.value)
        if attention:
            query = query.where(_T.needs_attention)
        with self._read() as connection:
            return tuple(map(_transaction, connection.execute(query.order_by(_T.id).limit(limit))))

    def ended(self, participant: str, since_ms: int) -> tuple[CoordinatedTransaction, ...]:
        query = select(t.transactions).where(
            _T.state.in_(ENDED), _T.changed_at_ms >= since_ms, _T.participant == participant
        )
        with self._read() as connection:
            return tuple(map(_transaction, connection.execute(query.order_by(_T.id))))

    def due(self) -> tuple[CoordinatedTransaction, ...]:
        query = select(t.transactions).where(
            _T.state.in_(DECIDED), _T.needs_attention.is_(False), _T.due_at_ms <= self._clock()
        )
        with self._read() as connection:
            return tuple(map(_transaction, connection.execute(query.order_by(_T.id))))

    def _begin_anew(self, connection: Connection, row: Row[Any]) -> None:
        """A newer run stages all rows itself, perhaps in other chunks: those of the run before would be
        committed beside them. It has the whole time-out for that."""
        connection.execute(delete(t.transaction_chunks).where(_K.transaction_id == row.id))
        values = {"due_at_ms": self._clock() + row.timeout_ms}
        connection.execute(update(t.transactions).where(_T.id == row.id).values(values))
        _count_change(connection, row.owner)

    @contextmanager
    def _as_owner(self, owner: str, fence: int) -> Iterator[Connection]:
        """A write in the owner's name. Its fence is remembered also when the operation is refused."""
        refused: MetaError | None = None
        with self._write() as connection:
            _raise_fence(connection, owner, fence)
            try:
                yield connection
            except MetaError as error:
                refused = error
        if refused is not None:
            raise refused

    def _step(
        self,
        operation: TransactionOperation,
        transaction: str,
        owner: str,
        fence: int,
        chunks: int | None = None,
    ) -> TransactionState:
        with self._as_owner(owner, fence) as connection:
            row = _row(connection, transaction, owner)
            state = self._next_state(operation, transaction, row)
            if chunks is not None and row is not None and row.state == _S.INITIALIZED:
                _require_chunks(connection, transaction, chunks)
            if row is None:
                self._insert(connection, transaction, owner, fence, CLIENT, state, 0)
            else:
                self._set_state(connection, row, state, fence)
            return state

    def _next_state(
        self, operation: TransactionOperation, transaction: str, row: Row[Any] | None
    ) -> TransactionState:
        state = _S.UNKNOWN if row is None else _S(row.state)
        expired = row is not None and state is _S.INITIALIZED and row.due_at_ms <= self._clock()
        # Whether `roll_back_expired` came first must not matter.
        if expired and operation is not _Operation.ROLLBACK:
            raise _conflict_error(
                "TRANSACTION_EXPIRED", f"Transaction {transaction} was not prepared within its time-out"
            )
        following = ANSWERS[operation].get(state)
        if following is None:
            raise _state_error(operation, transaction, state)
        return following

    def _insert(
        self,
        connection: Connection,
        transaction: str,
        owner: str,
        fence: int,
        participant: str,
        state: TransactionState,
        timeout_ms: int,
    ) -> None:
        now_ms = self._clock()
        values = {
            "id": transaction,
            "owner": owner,
            "fence": fence,
            "participant": participant,
            "state": state.value,
            "timeout_ms": timeout_ms,
            "due_at_ms": now_ms + timeout_ms,
            "changed_at_ms": now_ms,
            "failures": 0,
            "needs_attention": False,
        }
        connection.execute(insert(t.transactions).values(values))
        _count_change(connection, owner)

    def _set_state(
        self, connection: Connection, row: Row[Any] | None, state: TransactionState, fence: int
    ) -> None:
        if row is None:
            return
        values: dict[str, object] = {"state": state.value, "fence": fence}
        if state != row.state:
            values |= {"changed_at_ms": self._clock(), "needs_attention": False}
            _count_change(connection, row.owner)
            if state in DECIDED:
                values["due_at_ms"] = self._due(row)
        connection.execute(update(t.transactions).where(_T.id == row.id).values(values))

    def _due(self, row: Row[Any]) -> int:
        """A participant in the service carries a decision out at once, a program within its time-out."""
        return int(self._clock() + (row.timeout_ms if row.participant == CLIENT else 0))

    def _fail(
        self,
        connection: Connection,
        row: Row[Any],
        error: str,
        attempt: int,
        max_failures: int,
        retry_ms: int,
    ) -> CoordinatedTransaction:
        failures = max(row.failures, attempt)
        values = {
            "failures": failures,
            "error": error,
            "needs_attention": failures >= max_failures,
            "due_at_ms": self._clock() + retry_ms,
            "failed_at_ms": self._clock(),
        }
        connection.execute(update(t.transactions).where(_T.id == row.id).values(values))
        return _transaction(connection.execute(select(t.transactions).where(_T.id == row.id)).one())


def _raise_fence(connection: Connection, owner: str, fence: int) -> None:
    highest = connection.execute(select(_O.fence).where(_O.owner == owner).with_for_update()).scalar()
    if highest is None:
        connection.execute(insert(t.transaction_owners).values(owner=owner, fence=fence, serial=1))
    elif highest > fence:
        raise FencedError(
            "TRANSACTION_FENCED",
            f"Owner {owner} has a newer run: this one has fence {fence}, the newest {highest}",
            hint="Another run of this program is active; stop this one.",
            parameters={"owner": owner, "fence": str(fence), "newest": str(highest)},
        )
    elif highest < fence:
        values = {"fence": fence, "serial": _O.serial + 1}
        connection.execute(update(t.transaction_owners).where(_O.owner == owner).values(values))


def _count_change(connection: Connection, owner: str) -> None:
    """A repeat changes nothing, so it is not counted."""
    counted = {"serial": _O.serial + 1}
    connection.execute(update(t.transaction_owners).where(_O.owner == owner).values(counted))


def _used_up(connection: Connection, owner: str, series: str) -> tuple[int, ...] | None:
    query = select(_F.position).where(_F.owner == owner, _F.series == series)
    text = connection.execute(query.with_for_update()).scalar()
    return None if text is None else tuple(json.loads(text))


def _use_up(connection: Connection, owner: str, series: str, position: tuple[int, ...]) -> None:
    highest = _used_up(connection, owner, series)
    if highest is None:
        values = {"owner": owner, "series": series, "position": json.dumps(position)}
        connection.execute(insert(t.forgotten_transactions).values(values))
    elif position > highest:
        statement = update(t.forgotten_transactions).where(_F.owner == owner, _F.series == series)
        connection.execute(statement.values(position=json.dumps(position)))


def _locked_row(connection: Connection, transaction: str) -> Row[Any] | None:
    query = select(t.transactions).where(_T.id == transaction)
    return connection.execute(query.with_for_update()).first()


def _row(connection: Connection, transaction: str, owner: str) -> Row[Any] | None:
    """The transaction's row, which must be the owner's."""
    row = _locked_row(connection, transaction)
    if row is None:
        series, position = series_of(transaction)
        highest = _used_up(connection, owner, series)
        if highest is not None and position <= highest:
            raise MetaError(
                "TRANSACTION_ID_FORGOTTEN",
                f"Transaction {transaction} may have ended long ago: ids of {owner} like it are not kept, "
                f"and are used up to {', '.join(map(str, highest)) or 'this one'}",
                hint="Take a higher number for a new transaction. Whether this one was committed is to be "
                "seen in its target only.",
                parameters={"owner": owner, "series": series},
                sqlstate="25000",
            )
    elif row.owner != owner:
        raise _conflict_error("TRANSACTION_DIFFERS", f"Transaction {transaction} is driven by {row.owner}")
    return row


def _require_chunks(connection: Connection, transaction: str, compared: int) -> None:
    """Within one run chunks never change and never go, so their number says whether these are the ones."""
    query = select(func.count()).select_from(t.transaction_chunks).where(_K.transaction_id == transaction)
    present = connection.execute(query).scalar_one()
    if present != compared:
        raise MetaError(
            "TRANSACTION_CHUNKS_CHANGED",
            f"Transaction {transaction} has {present} chunks, and its participant has compared {compared}: "
            "others were registered meanwhile",
            hint="Register all chunks before the transaction is prepared or committed, then call again.",
            sqlstate="25000",
            retryable=True,
        )


def _chunk_values(transaction: str, chunk: TransactionChunk) -> dict[str, object]:
    return {
        "transaction_id": transaction,
        "chunk": chunk.id,
        "table_name": chunk.table,
        "partition": chunk.partition,
        "row_count": chunk.rows,
        "content_hash": chunk.hash,
        "server": chunk.server,
    }


def _chunk(row: Row[Any]) -> TransactionChunk:
    return TransactionChunk(
        id=row.chunk,
        table=row.table_name,
        partition=row.partition,
        rows=row.row_count,
        hash=row.content_hash,
        server=row.server,
    )


def needing_attention(connection: Connection, limit: int) -> tuple[CoordinatedTransaction, ...]:
    """Those that a person has to settle, by id."""
    query = select(t.transactions).where(_T.needs_attention).order_by(_T.id).limit(limit)
    return tuple(map(_transaction, connection.execute(query)))


def _transaction(row: Row[Any]) -> CoordinatedTransaction:
    values = dict(row._mapping)  # noqa: SLF001
    return CoordinatedTransaction(**{**values, "state": _S(row.state)})


def _state_error(operation: TransactionOperation, transaction: str, state: TransactionState) -> MetaError:
    return MetaError(
        "TRANSACTION_STATE",
        f"{operation} is refused, transaction {transaction} is {state}",
        hint="docs/transactions.md says what each operation does in each state.",
        sqlstate="25000",
        parameters={"operation": operation.value, "state": state.value},
    )


def _not_found_error(transaction: str) -> MetaError:
    return MetaError("TRANSACTION_NOT_FOUND", f"No transaction has the id {transaction}", sqlstate="25000")


def _conflict_error(error_class: str, message: str) -> MetaError:
    return MetaError(error_class, message, sqlstate="25000")
