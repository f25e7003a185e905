"""The store for jobs on other machines: the service's `POST /rpc/{method}`, and `RemoteStore`, its client.

A call carries its arguments by name and an id. A request with the same id is a repeat of the call: it waits
while the call is executed, and gets the same answer later. So a delayed request cannot take effect after the
repeat that replaced it. The newest answers are cached in memory; after a restart every method is safe to
repeat by what it does (see `Store`). So `RemoteStore` repeats a call, with back-off, while the service cannot
be reached.

The service sets the argument `principal` of calls for pins to the caller's identity; clients cannot send it.

    200 {"answer": …}     409 {"error": …} what the store raised     422 {"error": …} an unreadable call
"""

from __future__ import annotations

import logging
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import Annotated, Any, TypeVar, cast
from uuid import uuid4

import httpx
from fastapi import Body, FastAPI, Header, Request
from fastapi.responses import JSONResponse

from tautochrone.errors import MetaError, TautochroneError
from tautochrone.meta import DEFAULT_LEASE_MS, Store, protocols
from tautochrone.meta.wire import (
    Call,
    UnreadableError,
    calls_of,
    decode,
    decode_error,
    encode,
    encode_error,
    remote_calls,
)
from tautochrone.metaservice.http.access import Caller, Role, caller_of
from tautochrone.metaservice.http.validation import checked_owner
from tautochrone.model import events
from tautochrone.model.backoff import Backoff
from tautochrone.model.closeable import Closeable
from tautochrone.model.project_build import ProjectBuild
from tautochrone.redaction import redacted

__all__ = ["CALL_ID", "DEFAULT_RETRY_MS", "PATH", "RemoteStore", "add_store_routes"]

PATH = "/rpc"
CALL_ID = "Tautochrone-Call"
"""The header with a call's id."""

_CACHED_ANSWERS = 256
_MAX_ID = 200
_MAX_REASON = 500
_MAX_LIMIT = 10_000
# The store adds to numbers and subtracts times: the results must also fit into 64 bits.
_MAX_NUMBER, _MAX_MS = 2**62, 2**53
_WITHOUT_NUMBERS = frozenset({"besides", "numbers", "without"})
_Key = tuple[str, str, str]
_Answer = tuple[int, dict[str, Any]]


def add_store_routes(app: FastAPI, store: Store) -> None:
    """Add the store's methods to `app`, under `/rpc`. The application checks who may call them."""
    answers = _AnswerCache()

    @app.post(f"{PATH}/{{method}}", include_in_schema=False)
    def rpc(
        method: str,
        request: Request,
        arguments: Annotated[dict[str, Any], Body()],
        call_id: Annotated[str | None, Header(alias=CALL_ID, max_length=_MAX_ID)] = None,
    ) -> JSONResponse:
        caller = caller_of(request.scope)
        # The key has the caller and the method, so that nobody gets the answer to another caller's call.
        key = None if call_id is None else (caller.identity, method, call_id)
        status, content = answers.of(key, lambda: _answer(store, method, arguments, caller))
        return JSONResponse(content, status_code=status)


def _answer(store: Store, method: str, arguments: dict[str, Any], caller: Caller) -> _Answer:
    call, method_name = remote_calls().get(method), method[:_MAX_ID]
    try:
        if call is None:
            raise UnreadableError(f"this service has no method {method_name}")
        values = call.decode_arguments(arguments)
        _check_arguments(values)
    except UnreadableError as error:
        unreadable = MetaError(
            "META_CALL_UNREADABLE",
            f"The MetaService cannot read a call of {method_name}: {str(error)[:_MAX_REASON]}",
            hint="The job and the service are of different versions: install the same one.",
        )
        return 422, {"error": encode_error(unreadable)}
    try:
        _set_principal(call, values, caller)
        answer = call.of(store, values)
        if isinstance(answer, ProjectBuild) and caller.role is not Role.OPERATE:
            # Who may only read the store may not be one who may query its tables.
            answer = answer.without_samples()
        return 200, {"answer": encode(answer, call.answer)}
    except TautochroneError as error:
        return 409, {"error": encode_error(error)}


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    """Check the range of the numbers among the arguments of a call of the store.

    Raises:
        UnreadableError: a number is negative or too large.
    """
    for name, value in arguments.items():
        values = value if name in _WITHOUT_NUMBERS else (value,)
        for number in values:
            if isinstance(number, int) and not isinstance(number, bool):
                _check_number(name, number)


def _check_number(name: str, number: int) -> None:
    maximum = _MAX_LIMIT if name == "limit" else _MAX_MS if name.endswith("_ms") else _MAX_NUMBER
    # Times may be negative here: the lease of a pin has its own check.
    minimum = -maximum if name.endswith("_ms") else 0
    if not minimum <= number <= maximum:
        raise UnreadableError(f"{name} is from {minimum} to {maximum}, not {number}")


def _set_principal(call: Call, arguments: dict[str, Any], caller: Caller) -> None:
    """Set the principal of a call for a pin, and check its lease and owner.

    Raises:
        QueryError: `LEASE_INVALID`, `NAME_INVALID`.
    """
    if call.wire == "reads.resolve":
        caller.require_lease(arguments.get("lease_ms", DEFAULT_LEASE_MS), least=0)
        if "owner" in arguments:
            checked_owner(arguments["owner"])
        arguments["principal"] = caller.identity
    elif call.wire == "pins.renew":
        caller.require_lease(arguments["lease_ms"])
        arguments["principal"] = caller.pin_principal
    elif call.wire == "pins.release":
        arguments["principal"] = caller.pin_principal


class _AnswerCache:
    """The answers of the newest calls and of running ones, by their ids."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: OrderedDict[_Key, Future[_Answer]] = OrderedDict()

    def of(self, call_id: _Key | None, execute: Callable[[], _Answer]) -> _Answer:
        if call_id is None:
            return execute()
        with self._lock:
            known = self._calls.get(call_id)
            answer: Future[_Answer] = Future()
            if known is None:
                self._calls[call_id] = answer
                self._drop_oldest()
        if known is not None:
            return known.result()
        try:
            outcome = execute()
        except BaseException as error:
            # The caller gets a 500. A repeat executes the call again.
            with self._lock:
                self._calls.pop(call_id, None)
            answer.set_exception(error)
            raise
        answer.set_result(outcome)
        if outcome[1].get("error", {}).get("retryable"):
            # The call changed nothing. A repeat executes it again.
            with self._lock:
                self._calls.pop(call_id, None)
        return outcome

    def _drop_oldest(self) -> None:
        for call_id in list(self._calls)[: max(0, len(self._calls) - _CACHED_ANSWERS)]:
            if self._calls[call_id].done():
                del self._calls[call_id]


DEFAULT_RETRY_MS = 60_000
_BACKOFF = Backoff(first_s=0.05, longest_s=5.0)
# Longer than a store waits for its lock, so that a call does not time out while the service works on it.
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_log = logging.getLogger(__name__)


class _ServiceUnavailableError(Exception):
    """The service did not answer, or answered the retryable error `answered`: the call is repeated."""

    def __init__(self, message: str, answered: TautochroneError | None = None) -> None:
        super().__init__(redacted(message))
        self.answered = answered


def _log_event(event: events.Event) -> None:
    _log.warning("%s", event.text())


_Part = TypeVar("_Part")
_Send = Callable[[Call, dict[str, Any]], Any]


class _RemotePart:
    """A part of the store: every method of its protocol, forwarded to the service."""

    def __init__(self, part: str, protocol: type, send: _Send) -> None:
        self._name, self._send = part, send
        self._calls = {call.method: call for call in calls_of(part, protocol)}

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call = self._calls.get(method)
        if call is None:
            raise AttributeError(f"store.{self._name} has no method {method}")
        return lambda *args, **kwargs: self._send(call, call.bind(args, kwargs))


def _remote_part(part: str, protocol: type[_Part], send: _Send) -> _Part:
    """An object that implements `protocol` by calls to the service."""
    return cast("_Part", _RemotePart(part, protocol, send))


class RemoteStore(Closeable):
    """The store of the service at `url`. The constructor calls the service once.

    Args:
        url: `http(s)://host:port`, with a path before `/rpc` if the service has one.
        token: sent as a bearer token.
        retry_ms: for how long a call is repeated while the service does not answer.
        emit: receives the events `meta_service_away` and `meta_service_back`; None: they are logged.

    Raises:
        MetaError: `META_SERVICE_UNREACHABLE` (retryable), `META_SERVICE_REFUSED`, `META_SERVICE_UNKNOWN`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry_ms: int = DEFAULT_RETRY_MS,
        emit: events.Emit | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._retry_ms = retry_ms
        self._emit = emit or _log_event
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        # Without TLS the machine's certificates, which take 30 ms to load, are not needed.
        verify = not url.lower().startswith("http://")
        self._client = httpx.Client(headers=headers, timeout=_TIMEOUT, transport=transport, verify=verify)
        self._calls = {call.method: call for call in calls_of(None, Store)}
        self.alarms = _remote_part("alarms", protocols.Alarms, self._send)
        self.builds = _remote_part("builds", protocols.Builds, self._send)
        self.checkpoints = _remote_part("checkpoints", protocols.Checkpoints, self._send)
        self.datasets = _remote_part("datasets", protocols.Datasets, self._send)
        self.deliveries = _remote_part("deliveries", protocols.Deliveries, self._send)
        self.history = _remote_part("history", protocols.History, self._send)
        self.invariants = _remote_part("invariants", protocols.Invariants, self._send)
        self.jobs = _remote_part("jobs", protocols.Jobs, self._send)
        self.pins = _remote_part("pins", protocols.Pins, self._send)
        self.reads = _remote_part("reads", protocols.Reads, self._send)
        self.recovery = _remote_part("recovery", protocols.Recovery, self._send)
        self.registrations = _remote_part("registrations", protocols.Registrations, self._send)
        self.revisions = _remote_part("revisions", protocols.Revisions, self._send)
        self.roots = _remote_part("roots", protocols.Roots, self._send)
        self.transactions = _remote_part("transactions", protocols.Transactions, self._send)
        try:
            self._send(self._calls["incarnation"], {})
        except BaseException:
            self.close()
            raise

    @property
    def incarnation(self) -> str:
        """See `Store.incarnation`."""
        # Not cached, because the service may be restarted on another store.
        return str(self._send(self._calls["incarnation"], {}))

    def schema_revision(self) -> str:
        """The newest migration that the service's store has had."""
        return str(self._send(self._calls["schema_revision"], {}))

    def now_ms(self) -> int:
        """The clock of the service's store: epoch milliseconds."""
        return int(self._send(self._calls["now_ms"], {}))

    def close(self) -> None:
        """Close the connections to the service."""
        self._client.close()

    def _send(self, call: Call, arguments: dict[str, Any]) -> Any:
        """One call, repeated until it succeeds or `retry_ms` is over."""
        body = call.encode_arguments(arguments)
        if isinstance(body.get("error"), str):
            # Messages of Spark or a source may contain characters that no store accepts: they are replaced.
            body["error"] = body["error"].replace("\0", "\ufffd").encode("utf-8", "replace").decode()
        headers = {CALL_ID: str(uuid4())}
        started, tries, failed = time.monotonic(), 0, False
        while True:
            tries += 1
            try:
                answer = self._read_answer(call, self._send_once(call, body, headers))
                break
            except _ServiceUnavailableError as error:
                spent_ms = round((time.monotonic() - started) * 1000)
                if spent_ms >= self._retry_ms:
                    raise error.answered or self._unreachable_error(
                        error, tries, spent_ms
                    ) from error.__cause__
                wait_s = _BACKOFF.wait_s(tries) * random.uniform(0.75, 1.25)
                wait_s = min(wait_s, (self._retry_ms - spent_ms) / 1000)
                failed = True
                self._emit(
                    events.MetaServiceAway(
                        url=self._shown_url,
                        error=str(error),
                        retry_in_ms=round(wait_s * 1000),
                    )
                )
                time.sleep(wait_s)
        if failed:
            away_ms = round((time.monotonic() - started) * 1000)
            self._emit(events.MetaServiceBack(url=self._shown_url, duration_ms=away_ms))
        return answer

    def _send_once(self, call: Call, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        try:
            response = self._client.post(f"{self._url}{PATH}/{call.wire}", json=body, headers=headers)
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            raise _ServiceUnavailableError(
                f"the MetaService at {self._shown_url} does not answer: {why}"
            ) from error
        if response.status_code >= 500:
            raise _ServiceUnavailableError(
                f"the MetaService at {self._shown_url} answered with HTTP {response.status_code}"
            )
        return response

    def _read_answer(self, call: Call, response: httpx.Response) -> Any:
        if response.status_code in (401, 403):
            raise MetaError(
                "META_SERVICE_REFUSED",
                f"The MetaService at {self._shown_url} refused this job with HTTP {response.status_code}",
                hint="the setting meta.token, or TAUTOCHRONE_META_TOKEN",
                sqlstate="28000",
            )
        content = _content(response)
        if response.is_client_error and isinstance(content.get("error_class"), str):
            # The service refused the request itself: its body, type or length.
            raise MetaError(content["error_class"], str(content.get("detail")), hint=content.get("hint"))
        try:
            error = decode_error(content["error"]) if "error" in content else None
            answer = None if error else decode(content["answer"], call.answer)
        except (KeyError, TypeError, UnreadableError) as unread:
            raise self._unknown_service_error(response) from unread
        if error is not None and error.error_class == "META_STORE_BUSY":
            raise _ServiceUnavailableError(error.message, error)
        if error is not None:
            raise error
        return answer

    @property
    def _shown_url(self) -> str:
        return str(httpx.URL(self._url).copy_with(userinfo=b""))

    def _unknown_service_error(self, response: httpx.Response) -> MetaError:
        return MetaError(
            "META_SERVICE_UNKNOWN",
            f"What answers at {self._shown_url} (HTTP {response.status_code}) "
            "is no MetaService of this version",
            hint="the setting meta.url: http(s)://host:port of the service",
        )

    def _unreachable_error(self, error: Exception, tries: int, spent_ms: int) -> MetaError:
        return MetaError(
            "META_SERVICE_UNREACHABLE",
            f"No answer in {tries} tries and {spent_ms / 1000:.0f} s: {error}",
            hint="is it up, and is [meta] url right? [meta] retry says how long a job waits for it",
            sqlstate="08001",
            retryable=True,
        )


def _content(response: httpx.Response) -> dict[str, Any]:
    try:
        content = response.json()
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
