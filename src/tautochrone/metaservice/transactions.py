"""A client for transactions that a program drives through a MetaService (see docs/transactions.md).

    with TransactionClient("http://127.0.0.1:7117", owner="loader", fence=7) as client:
        for unfinished in client.recover():
            ...  # settle what an earlier run left
        client.begin("load-2026-11-25")
        client.write("load-2026-11-25", chunk)  # after its rows are in the target's staging
        client.commit("load-2026-11-25")
        ...  # move the staged rows, then
        client.confirm("load-2026-11-25")

Every call may be repeated. While the service does not answer, a call is repeated for `retry_ms`.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import TypeAdapter, ValidationError

from tautochrone.metaservice.api.transactions import Answer, Transaction, TransactionDetails
from tautochrone.metaservice.client import error_of_answer, unknown_service_error, unreachable_service_error
from tautochrone.model.backoff import Backoff
from tautochrone.model.closeable import Closeable
from tautochrone.model.sink import TransactionState
from tautochrone.model.transactions import CLIENT, LONGEST_TIMEOUT_MS, TransactionChunk
from tautochrone.redaction import keep_secret

__all__ = ["TransactionClient"]

_TIMEOUT_S = 60.0
_BACKOFF = Backoff(first_s=0.05, longest_s=5.0)
_Result = TypeVar("_Result")


class TransactionClient(Closeable):
    """The transactions of one run of one program.

    Args:
        url: of the service.
        owner: the program's name.
        fence: higher than that of every earlier run of the program.
        token: a bearer token with the role `operate`.
        retry_ms: for how long a call is repeated while the service does not answer, a day at most: the
            service may forget what ended longer ago.
        serial: what `serial` was in an earlier run, if the program has kept it: a store of which an older
            copy was put back refuses (`TRANSACTION_STORE_OLDER`).

    Every operation raises `FencedError` when a newer run of the program exists, and `MetaError` with the
    class that the service answered.
    """

    def __init__(
        self,
        url: str,
        *,
        owner: str,
        fence: int,
        token: str | None = None,
        retry_ms: int = 60_000,
        serial: int | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        if retry_ms > LONGEST_TIMEOUT_MS:
            raise ValueError(f"retry_ms is {retry_ms}, and at most {LONGEST_TIMEOUT_MS} is possible")
        keep_secret(token or "")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        # Without TLS the machine's certificates, which take 30 ms to load, are not needed.
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers=headers,
            timeout=_TIMEOUT_S,
            transport=transport,
            verify=not url.lower().startswith("http://"),
        )
        self._run: dict[str, Any] = {"owner": owner, "fence": fence}
        if serial is not None:
            self._run["serial"] = serial
        self._retry_ms = retry_ms

    @property
    def serial(self) -> int | None:
        """The highest one that the service answered: it counts the changes of this program's transactions."""
        serial: int | None = self._run.get("serial")
        return serial

    def recover(self) -> list[Transaction]:
        """Refuse older runs and roll back what they had not prepared. The transactions that did not end."""
        return self._request(list[Transaction], "POST", "/recover", self._run)

    def begin(
        self, transaction: str, *, timeout_ms: int = 600_000, participant: str = CLIENT
    ) -> TransactionState:
        """Open a transaction; `participant` carries its decision out."""
        return self._operate(transaction, "begin", timeout_ms=timeout_ms, participant=participant)

    def write(self, transaction: str, chunk: TransactionChunk) -> TransactionState:
        """Register rows that are in the target's staging."""
        return self._operate(transaction, "write", chunk=asdict(chunk))

    def prepare(self, transaction: str) -> TransactionState:
        """Everything is written: the transaction no longer times out."""
        return self._operate(transaction, "prepare")

    def commit(self, transaction: str) -> TransactionState:
        """Decide to commit."""
        return self._operate(transaction, "commit")

    def rollback(self, transaction: str) -> TransactionState:
        """Decide to roll back."""
        return self._operate(transaction, "rollback")

    def confirm(self, transaction: str) -> TransactionState:
        """This program carried the decision out."""
        return self._operate(transaction, "confirm")

    def fail(self, transaction: str, error: str, attempt: int) -> Transaction:
        """This program could not carry the decision out; `attempt` counts from 1."""
        body = {**self._run, "error": error, "attempt": attempt}
        return self._request(Transaction, "POST", f"/{quote(transaction, safe='')}/fail", body)

    def get(self, transaction: str) -> TransactionDetails:
        """A transaction and its chunks.

        Raises:
            MetaError: `TRANSACTION_NOT_FOUND`.
        """
        return self._request(TransactionDetails, "GET", f"/{quote(transaction, safe='')}")

    def close(self) -> None:
        self._http.close()

    def _operate(self, transaction: str, operation: str, **more: Any) -> TransactionState:
        path = f"/{quote(transaction, safe='')}/{operation}"
        answer = self._request(Answer, "POST", path, {**self._run, **more})
        self._run["serial"] = max(answer.serial, self.serial or 0)
        return answer.state

    def _request(self, result_type: type[_Result], method: str, path: str, body: Any = None) -> _Result:
        answer = self._send(method, f"/v1/transactions{path}", body)
        if not answer.is_success:
            raise error_of_answer(answer)
        try:
            return TypeAdapter(result_type).validate_json(answer.content)
        except ValidationError:
            raise unknown_service_error(answer) from None

    def _send(self, method: str, path: str, body: Any) -> httpx.Response:
        """One call, repeated while nothing answers. That is safe: every operation may be repeated."""
        until, tries = time.monotonic() + self._retry_ms / 1000, 0
        while True:
            tries += 1
            wait_s = _BACKOFF.wait_s(tries)
            try:
                answer = self._http.request(method, path, json=body)
                if answer.status_code < 500 or time.monotonic() + wait_s > until:
                    return answer
            except httpx.TransportError as error:
                if time.monotonic() + wait_s > until:
                    raise unreachable_service_error(self._http, error) from error
            time.sleep(wait_s)
