"""`/v1/transactions`: transactions that any program drives. They lie beside the Iceberg catalog in `/v1`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, FastAPI, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from tautochrone.errors import MetaError
from tautochrone.meta import Store
from tautochrone.metaservice.api.reads import Switch
from tautochrone.metaservice.coordinator import TransactionCoordinator
from tautochrone.metaservice.http.problems import PROBLEMS
from tautochrone.metaservice.http.validation import checked_text
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import (
    CLIENT,
    LONGEST_TIMEOUT_MS,
    CoordinatedTransaction,
    TransactionChunk,
)

__all__ = ["Answer", "Transaction", "TransactionDetails", "add_transactions", "transaction_model"]

_MAX_NUMBER = 2**62
Id = Annotated[str, Path(pattern=r"^[A-Za-z0-9._:@=+-]{1,200}$", description="chosen by the program")]
Number = Annotated[int, Field(strict=True, ge=0, le=_MAX_NUMBER)]
Text = Annotated[str, Field(max_length=1_000)]
Name = Annotated[str, Field(min_length=1, max_length=255)]


class Caller(BaseModel):
    """Which program calls, and which of its runs: a newer run has a higher fence."""

    model_config = ConfigDict(extra="forbid")
    owner: Name
    fence: Number
    serial: Number | None = Field(
        default=None,
        description="the highest one that the program was answered: a store that has seen fewer changes is "
        "an older copy, and refuses",
    )


class BeginRequest(Caller):
    """The time-out, and who carries the decision out."""

    timeout_ms: Annotated[int, Field(strict=True, ge=1, le=LONGEST_TIMEOUT_MS)] = 600_000
    participant: Name = CLIENT


class WrittenChunk(BaseModel):
    """Rows that the program wrote to the target. `id` is chosen by the program: a repeat counts once."""

    model_config = ConfigDict(extra="forbid")
    id: Name
    table: Annotated[str, Field(min_length=1, max_length=1_000)]
    rows: Number
    hash: Name
    partition: Text = ""
    server: Annotated[str, Field(max_length=255)] = ""


class WriteRequest(Caller):
    """A chunk to register."""

    chunk: WrittenChunk


class FailureRequest(Caller):
    """Why the decision could not be carried out; `attempt` counts from 1, so that a repeat counts once."""

    error: Annotated[str, Field(min_length=1, max_length=10_000)]
    attempt: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]


class Answer(BaseModel):
    """The state after the operation."""

    id: str
    state: TransactionState
    serial: int = Field(description="counts changes of the owner's transactions; send it with later calls")


class Transaction(BaseModel):
    """A transaction. Times are epoch milliseconds."""

    id: str
    owner: str
    fence: int
    participant: str
    state: TransactionState
    timeout_ms: int
    due_at_ms: int = Field(description="when it is rolled back, or a decision is tried again")
    changed_at_ms: int
    failures: int
    needs_attention: bool
    error: str | None
    failed_at_ms: int | None


class TransactionDetails(Transaction):
    """A transaction with its chunks."""

    chunks: list[WrittenChunk]


def add_transactions(app: FastAPI, store: Store, coordinator: TransactionCoordinator) -> None:
    """Put the routes on `app`, before the catalog is mounted on `/v1`."""
    router = APIRouter(prefix="/v1/transactions", responses=PROBLEMS, tags=["transactions"])
    _add_reads(router, store)
    _add_operations(router, store, coordinator)
    app.include_router(router)


def _add_reads(router: APIRouter, store: Store) -> None:
    @router.get("")
    def transactions(
        owner: Annotated[str | None, Query(max_length=255)] = None,
        state: TransactionState | None = None,
        attention: Annotated[Switch, Query(description="only those that need attention")] = False,
        after: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    ) -> list[Transaction]:
        """Transactions by their ids; `after` is the last id of the page before."""
        records = store.transactions.find(owner, state, attention=attention, after=after, limit=limit)
        return [transaction_model(record) for record in records]

    @router.get("/{transaction}")
    def transaction(transaction: Id) -> TransactionDetails:
        """One transaction and its chunks."""
        record = store.transactions.get(transaction)
        if record is None and store.transactions.is_forgotten(transaction):
            raise MetaError(
                "TRANSACTION_ID_FORGOTTEN",
                f"Transaction {transaction} may have ended long ago: its id is not kept",
                hint="Whether it was committed is to be seen in its target only.",
                sqlstate="25000",
            )
        if record is None:
            raise MetaError(
                "TRANSACTION_NOT_FOUND", f"No transaction has the id {transaction}", sqlstate="25000"
            )
        chunks = store.transactions.chunks(transaction)
        return TransactionDetails(
            **transaction_model(record).model_dump(), chunks=[_chunk_model(chunk) for chunk in chunks]
        )


def _add_operations(router: APIRouter, store: Store, coordinator: TransactionCoordinator) -> None:
    def answer(transaction: str, run: Caller, state: TransactionState) -> Answer:
        return Answer(id=transaction, state=state, serial=coordinator.serial(run.owner))

    @router.post("/recover")
    def recover(run: Caller) -> list[Transaction]:
        """What a new run calls first: older runs are refused, what they had not prepared is rolled back.

        The answer is what has not ended: prepared transactions to decide, and decisions to carry out."""
        records = store.transactions.roll_back_older_runs(_owner(coordinator, run), run.fence)
        return [transaction_model(record) for record in records]

    @router.post("/{transaction}/begin")
    def begin(transaction: Id, request: BeginRequest) -> Answer:
        """Open the transaction."""
        checked_text(request.participant, "A participant", 255)
        state = coordinator.begin(
            transaction, _owner(coordinator, request), request.fence, request.timeout_ms, request.participant
        )
        return answer(transaction, request, state)

    @router.post("/{transaction}/write")
    def write(transaction: Id, request: WriteRequest) -> Answer:
        """Register a chunk that was written to the target."""
        chunk = TransactionChunk(**request.chunk.model_dump())
        state = coordinator.write(transaction, _owner(coordinator, request), request.fence, chunk)
        return answer(transaction, request, state)

    @router.post("/{transaction}/prepare")
    def prepare(transaction: Id, run: Caller) -> Answer:
        """All chunks are written and durable. From now on it does not time out."""
        return answer(transaction, run, coordinator.prepare(transaction, _owner(coordinator, run), run.fence))

    @router.post("/{transaction}/commit")
    def commit(transaction: Id, run: Caller) -> Answer:
        """Decide to commit. `committing`: the program, or a retry of the service, has to carry it out."""
        return answer(transaction, run, coordinator.commit(transaction, _owner(coordinator, run), run.fence))

    @router.post("/{transaction}/rollback")
    def rollback(transaction: Id, run: Caller) -> Answer:
        """Decide to roll back. `aborting`: the program, or a retry of the service, has to carry it out."""
        return answer(
            transaction, run, coordinator.rollback(transaction, _owner(coordinator, run), run.fence)
        )

    @router.post("/{transaction}/confirm")
    def confirm(transaction: Id, run: Caller) -> Answer:
        """The program carried the decision out."""
        return answer(transaction, run, coordinator.confirm(transaction, _owner(coordinator, run), run.fence))

    @router.post("/{transaction}/fail")
    def fail(transaction: Id, request: FailureRequest) -> Transaction:
        """The program could not carry the decision out."""
        failed = coordinator.fail(
            transaction, _owner(coordinator, request), request.fence, request.error, request.attempt
        )
        return transaction_model(failed)


def transaction_model(record: CoordinatedTransaction) -> Transaction:
    """A transaction as the API shows it."""
    return Transaction.model_validate(record, from_attributes=True)


def _chunk_model(chunk: TransactionChunk) -> WrittenChunk:
    return WrittenChunk.model_validate(chunk, from_attributes=True)


def _owner(coordinator: TransactionCoordinator, run: Caller) -> str:
    """The program's name, after a check that the store knows all that the program remembers."""
    owner = checked_text(run.owner, "An owner", 255)
    coordinator.require_newest(owner, run.serial)
    return owner
