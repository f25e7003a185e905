"""StarRocks's Stream Load transaction interface over HTTP.

A transaction is named by its label. Frontends answer `begin`, `prepare`, `commit` and `rollback`, and send a
`load` on to a backend (307). All requests say `transaction_type: multi`, a transaction over several tables of
one database, which StarRocks has from version 4.0. The source is "Load data using Stream Load transaction
interface" in StarRocks's documentation.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import Any

import httpx

from tautochrone.errors import SinkError
from tautochrone.sinks.common.errors import login_refused_error, rights_missing_error
from tautochrone.sinks.starrocks.options import StarrocksOptions

__all__ = ["AnswerLostError", "LabelState", "TransactionClient"]

_MAX_REDIRECTS = 5
_LOAD_HEADERS = {
    "format": "json",
    "strip_outer_array": "true",
    "ignore_json_size": "true",
    # A value that does not fit fails the load, instead of becoming NULL or being left out.
    "strict_mode": "true",
    "max_filter_ratio": "0",
}


class AnswerLostError(SinkError):
    """No answer to a request: whether it was done is not known."""

    default_retryable = True


class LabelState(StrEnum):
    """Where the transaction of a label is, as `get_load_state` says."""

    UNKNOWN = "UNKNOWN"
    PREPARE = "PREPARE"
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    """Decided, and not seen by readers yet."""
    VISIBLE = "VISIBLE"
    ABORTED = "ABORTED"


@cache
def _tls(ssl_ca: str | None) -> ssl.SSLContext:
    """Reading the system's certificates takes long."""
    return ssl.create_default_context(cafile=ssl_ca)


class TransactionClient:
    """Sends requests, and settles those of which the answer was lost where the label's state can."""

    def __init__(self, sink: str, options: StarrocksOptions) -> None:
        self._sink = sink
        self._options = options
        self._http = httpx.Client(
            auth=httpx.BasicAuth(options.user, options.password),
            verify=_tls(options.ssl_ca),
            timeout=httpx.Timeout(options.timeout_s, connect=10),
            follow_redirects=False,
        )
        self._frontend = options.http_url
        """The leader of the frontends, once one redirected to it."""

    def begin(self, label: str, table: str) -> None:
        """Open a transaction with a label that this process made for it.

        Raises:
            SinkError: `STARROCKS_REFUSED`, `SINK_NOT_REACHABLE`.
        """
        try:
            self._operate("begin", label, table)
        except AnswerLostError:
            answer = self._answer("POST", "begin", label, table)
            # The label is this process's own, so the transaction is the one that was begun before.
            if answer.get("Status") != "LABEL_ALREADY_EXISTS":
                self._require_ok("begin", label, answer)

    def load(self, label: str, table: str, body: bytes) -> None:
        """Send an array of JSON objects, which have `__op` = 0 (upsert) or 1 (delete) beside their columns.

        After an error the transaction must be rolled back: whether the rows arrived is not known.
        """
        # A frontend only redirects, and may close the connection while a body is being sent.
        url = f"{self._frontend}/api/transaction/load"
        first = self._follow("PUT", url, self._headers("load", label, table), b"", redirects=0)
        if first.is_redirect:
            url = str(first.url.join(first.headers["location"]))
        else:
            self._require_ok("load", label, self._read("load", first))
        answer = self._answer("PUT", "load", label, table, body, url)
        self._require_ok("load", label, answer)
        filtered = answer.get("NumberFilteredRows") or 0
        if filtered:
            raise self._operation_refused_error(
                "load", label, f"{filtered} rows of {table} do not fit its columns"
            )

    def prepare(self, label: str) -> None:
        """Make what was loaded ready for the commit."""
        try:
            answer = self._answer("POST", "prepare", label)
        except AnswerLostError:
            if self.state(label) is LabelState.PREPARED:
                return
            raise
        # Versions of StarRocks that commit a transaction over several tables without this step say so.
        if "unsupported operation" not in str(answer.get("Message")).lower():
            self._require_ok("prepare", label, answer)

    def commit(self, label: str) -> None:
        """Commit. After an error the label's state says what became of the transaction."""
        self._operate("commit", label)

    def rollback(self, label: str) -> None:
        """Roll back. After an error the label's state says what became of the transaction."""
        self._operate("rollback", label)

    def state(self, label: str) -> LabelState:
        """Where the transaction is, as the leader of the frontends says."""
        path = f"/api/{self._options.database}/get_load_state"
        response = self._follow("GET", f"{self._options.http_url}{path}?label={label}", {}, b"")
        text = str(self._read("get_load_state", response).get("state", ""))
        if text not in tuple(LabelState):
            raise self._operation_refused_error("get_load_state", label, f"the state {text!r} is not known")
        return LabelState(text)

    def close(self) -> None:
        self._http.close()

    # -- requests ---------------------------------------------------------------------------------

    def _operate(self, operation: str, label: str, table: str | None = None) -> None:
        self._require_ok(operation, label, self._answer("POST", operation, label, table))

    def _answer(
        self,
        method: str,
        operation: str,
        label: str,
        table: str | None = None,
        body: bytes = b"",
        url: str | None = None,
    ) -> Mapping[str, Any]:
        url = url or f"{self._options.http_url}/api/transaction/{operation}"
        response = self._follow(method, url, self._headers(operation, label, table), body)
        if operation == "begin":
            self._frontend = str(response.url.copy_with(path="/")).rstrip("/")
        return self._read(operation, response)

    def _headers(self, operation: str, label: str, table: str | None) -> dict[str, str]:
        timeout = str(self._options.timeout_s)
        headers = {
            "Expect": "100-continue",
            "label": label,
            "db": self._options.database,
            "transaction_type": "multi",
            "timeout": timeout,
        }
        if table is not None:
            headers["table"] = table
        if operation == "load":
            headers.update(_LOAD_HEADERS)
        if operation == "prepare":
            headers["prepared_timeout"] = timeout
        return headers

    def _follow(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, redirects: int = _MAX_REDIRECTS
    ) -> httpx.Response:
        for _ in range(redirects + 1):
            try:
                response = self._http.request(method, url, headers=headers, content=body)
            except httpx.HTTPError as error:
                raise self._answer_lost_error(url, f"{type(error).__name__}: {error}") from error
            if not (response.is_redirect and redirects):
                return response
            # User and password go along, as with curl's --location-trusted.
            url = str(response.url.join(response.headers["location"]))
        raise self._answer_lost_error(url, "too many redirects")

    def _read(self, operation: str, response: httpx.Response) -> Mapping[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        self._require_access(operation, response, answer)
        if isinstance(answer, dict) and response.status_code < 500:
            return answer
        text = " ".join(response.text.split())[:300]
        if response.status_code >= 500:
            raise self._answer_lost_error(str(response.url), f"status {response.status_code} {text}")
        raise self._operation_refused_error(operation, "", f"status {response.status_code} {text}")

    def _require_access(self, operation: str, response: httpx.Response, answer: object) -> None:
        """StarRocks answers who may not do what in the status of HTTP, or in its message alone."""
        message = str(answer.get("Message") or answer.get("msg") or "") if isinstance(answer, dict) else ""
        is_denied = "access denied" in message.lower()
        if response.status_code not in (401, 403) and not is_denied:
            return
        text = f"{operation}: {message or ' '.join(response.text.split())[:300]}"
        if response.status_code == 401 or "using password" in message:
            settings = "the options user and password"
            raise login_refused_error(f"Sink {self._sink}", "StarRocks", text, settings=settings)
        raise rights_missing_error(
            f"Sink {self._sink}",
            "StarRocks",
            text,
            needed="The user needs INSERT and DELETE on the tables of the database.",
        )

    def _require_ok(self, operation: str, label: str, answer: Mapping[str, Any]) -> None:
        if answer.get("Status") != "OK":
            raise self._operation_refused_error(
                operation, label, f"{answer.get('Status')} {answer.get('Message', '')}"
            )

    def _answer_lost_error(self, url: str, text: str) -> AnswerLostError:
        address = httpx.URL(url)
        return AnswerLostError(
            "SINK_NOT_REACHABLE",
            f"Sink {self._sink}: no answer from StarRocks at {address.host}:{address.port}: {text}",
            hint="Are frontend and backends up, and can this process reach the HTTP port of both?",
            sqlstate="08006",
        )

    def _operation_refused_error(self, operation: str, label: str, text: str) -> SinkError:
        return SinkError(
            "STARROCKS_REFUSED",
            f"Sink {self._sink}: StarRocks refuses {operation} of {label}: {text}",
            hint="Transactions over several tables need StarRocks 4.0 or newer.",
            sqlstate="58000",
            parameters={"sink": self._sink},
        )
