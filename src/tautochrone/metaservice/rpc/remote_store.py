"""`RemoteStore`: a `Store` whose methods call a service.

Its parts forward each method of their protocol and raise the same errors. While the service cannot be
reached, a call is repeated with back-off, and events report it. That is safe because every call may be
repeated (see `routes`). Safe to share between threads.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast
from uuid import uuid4

import httpx

from tautochrone.errors import MetaError, TautochroneError
from tautochrone.meta import protocols
from tautochrone.meta.protocols.store import Store
from tautochrone.meta.wire import Call, UnreadableError, calls_of, decode, decode_error
from tautochrone.metaservice.rpc.routes import CALL_ID, PATH
from tautochrone.model import events
from tautochrone.model.backoff import Backoff
from tautochrone.model.closeable import Closeable
from tautochrone.redaction import redacted

__all__ = ["DEFAULT_RETRY_MS", "RemoteStore"]

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
        self._client = httpx.Client(headers=headers, timeout=_TIMEOUT, transport=transport)
        self._calls = {call.method: call for call in calls_of(None, Store)}
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
                    raise error.answered or self._unreachable(error, tries, spent_ms) from error.__cause__
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
            raise self._unknown_service(response) from unread
        if error is not None and error.error_class == "META_STORE_BUSY":
            raise _ServiceUnavailableError(error.message, error)
        if error is not None:
            raise error
        return answer

    @property
    def _shown_url(self) -> str:
        return str(httpx.URL(self._url).copy_with(userinfo=b""))

    def _unknown_service(self, response: httpx.Response) -> MetaError:
        return MetaError(
            "META_SERVICE_UNKNOWN",
            f"What answers at {self._shown_url} (HTTP {response.status_code}) "
            "is no MetaService of this version",
            hint="the setting meta.url: http(s)://host:port of the service",
        )

    def _unreachable(self, error: Exception, tries: int, spent_ms: int) -> MetaError:
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
