"""`RemoteStore`: a `Store` that lives in a service.

Its parts forward each method of their protocol and raise the same errors. A service that cannot be reached is
asked again with back-off, and `emit` hears of it. That is safe because every call may be repeated (see
`routes`). Safe to share between threads.
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
from tautochrone.model.closing import Closing
from tautochrone.model.events import Emit
from tautochrone.redaction import redacted

__all__ = ["DEFAULT_RETRY_MS", "RemoteStore"]

DEFAULT_RETRY_MS = 60_000
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 5.0
# Longer than a store waits for its lock: a call must not be given up while the service still works on it.
_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_log = logging.getLogger(__name__)


class _AwayError(Exception):
    """The service gave no answer to this try, or one (`said`) that asks for another."""

    def __init__(self, words: str, said: TautochroneError | None = None) -> None:
        super().__init__(redacted(words))
        self.said = said


def _log_event(event: str, /, **fields: Any) -> None:
    if event == "meta_service_away":
        _log.warning("%s; trying again in %d ms", fields["error"], fields["retry_in_ms"])
    else:
        _log.warning("the MetaService at %s answers again", fields["url"])


_Part = TypeVar("_Part")
_Ask = Callable[[Call, dict[str, Any]], Any]


class _RemotePart:
    """A part of the store: every method of its protocol, forwarded to the service."""

    def __init__(self, part: str, protocol: type, ask: _Ask) -> None:
        self._name, self._ask = part, ask
        self._calls = {call.method: call for call in calls_of(part, protocol)}

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call = self._calls.get(method)
        if call is None:
            raise AttributeError(f"store.{self._name} has no method {method}")
        return lambda *args, **kwargs: self._ask(call, call.bind(args, kwargs))


def _remote_part(part: str, protocol: type[_Part], ask: _Ask) -> _Part:
    """An object that implements `protocol` by asking the service."""
    return cast("_Part", _RemotePart(part, protocol, ask))


class RemoteStore(Closing):
    """The store of the service at `url`, which is asked for its incarnation first.

    Args:
        url: `http(s)://host:port`, with a path before `/rpc` if the service has one.
        token: sent as a bearer token.
        retry_ms: so long a call is repeated while the service does not answer.
        emit: hears `meta_service_away` and `meta_service_back`; a warning is logged without it.

    Raises:
        MetaError: `META_SERVICE_UNREACHABLE` (retryable), `META_SERVICE_REFUSED`, `META_SERVICE_UNKNOWN`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retry_ms: int = DEFAULT_RETRY_MS,
        emit: Emit | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._retry_ms = retry_ms
        self._emit = emit or _log_event
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(headers=headers, timeout=_TIMEOUT, transport=transport)
        self._calls = {call.method: call for call in calls_of(None, Store)}
        self.checkpoints = _remote_part("checkpoints", protocols.Checkpoints, self._ask)
        self.datasets = _remote_part("datasets", protocols.Datasets, self._ask)
        self.deliveries = _remote_part("deliveries", protocols.Deliveries, self._ask)
        self.history = _remote_part("history", protocols.History, self._ask)
        self.invariants = _remote_part("invariants", protocols.Invariants, self._ask)
        self.jobs = _remote_part("jobs", protocols.Jobs, self._ask)
        self.pins = _remote_part("pins", protocols.Pins, self._ask)
        self.reads = _remote_part("reads", protocols.Reads, self._ask)
        self.recovery = _remote_part("recovery", protocols.Recovery, self._ask)
        self.registrations = _remote_part("registrations", protocols.Registrations, self._ask)
        self.revisions = _remote_part("revisions", protocols.Revisions, self._ask)
        self.roots = _remote_part("roots", protocols.Roots, self._ask)
        try:
            self._ask(self._calls["incarnation"], {})
        except BaseException:
            self.close()
            raise

    @property
    def incarnation(self) -> str:
        """See `Store.incarnation`."""
        # Asked each time: the service may have got another store meanwhile.
        return str(self._ask(self._calls["incarnation"], {}))

    def schema_revision(self) -> str:
        """The newest migration that the service's store has had."""
        return str(self._ask(self._calls["schema_revision"], {}))

    def now_ms(self) -> int:
        """The clock of the service's store: epoch milliseconds."""
        return int(self._ask(self._calls["now_ms"], {}))

    def close(self) -> None:
        """Close the connections to the service."""
        self._client.close()

    def _ask(self, call: Call, arguments: dict[str, Any]) -> Any:
        """One call, with all its tries."""
        body = call.encode_arguments(arguments)
        if isinstance(body.get("error"), str):
            # What a source or Spark said may hold what no store keeps, and must be recorded all the same.
            body["error"] = body["error"].replace("\0", "\ufffd").encode("utf-8", "replace").decode()
        headers = {CALL_ID: str(uuid4())}
        began, tries, away = time.monotonic(), 0, False
        while True:
            tries += 1
            try:
                answer = self._read_answer(call, self._try(call, body, headers))
                break
            except _AwayError as error:
                spent_ms = round((time.monotonic() - began) * 1000)
                if spent_ms >= self._retry_ms:
                    raise error.said or self._unreachable(error, tries, spent_ms) from error.__cause__
                wait_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (tries - 1)) * random.uniform(0.75, 1.25)
                wait_s = min(wait_s, (self._retry_ms - spent_ms) / 1000)
                away = True
                self._emit(
                    "meta_service_away", url=self._shown, error=str(error), retry_in_ms=round(wait_s * 1000)
                )
                time.sleep(wait_s)
        if away:
            away_ms = round((time.monotonic() - began) * 1000)
            self._emit("meta_service_back", url=self._shown, duration_ms=away_ms)
        return answer

    def _try(self, call: Call, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
        try:
            response = self._client.post(f"{self._url}{PATH}/{call.wire}", json=body, headers=headers)
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            raise _AwayError(f"the MetaService at {self._shown} does not answer: {why}") from error
        if response.status_code >= 500:
            raise _AwayError(f"the MetaService at {self._shown} answered with HTTP {response.status_code}")
        return response

    def _read_answer(self, call: Call, response: httpx.Response) -> Any:
        if response.status_code in (401, 403):
            raise MetaError(
                "META_SERVICE_REFUSED",
                f"The MetaService at {self._shown} refused this job with HTTP {response.status_code}",
                hint="the setting meta.token, or TAUTOCHRONE_META_TOKEN",
                sqlstate="28000",
            )
        content = _content(response)
        if response.is_client_error and isinstance(content.get("error_class"), str):
            # Refused before the store was asked: the body, its type, its length.
            raise MetaError(content["error_class"], str(content.get("detail")), hint=content.get("hint"))
        try:
            error = decode_error(content["error"]) if "error" in content else None
            answer = None if error else decode(content["answer"], call.answer)
        except (KeyError, TypeError, UnreadableError) as unread:
            raise self._unknown(response) from unread
        if error is not None and error.error_class == "META_STORE_BUSY":
            raise _AwayError(error.message, error)
        if error is not None:
            raise error
        return answer

    @property
    def _shown(self) -> str:
        return str(httpx.URL(self._url).copy_with(userinfo=b""))

    def _unknown(self, response: httpx.Response) -> MetaError:
        return MetaError(
            "META_SERVICE_UNKNOWN",
            f"What answers at {self._shown} (HTTP {response.status_code}) is no MetaService of this version",
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
