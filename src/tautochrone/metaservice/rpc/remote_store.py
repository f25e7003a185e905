"""`RemoteStore`: a `MetaStore` that lives in a service.

It has the public surface of `MetaStore`, made from its signatures, and raises the same errors. What is its
own is patience: a service that cannot be reached is asked again with back-off, and whoever listens is told.
That is safe because every call may be repeated (see `rpc`). Safe to share between threads.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from typing import Any
from uuid import uuid4

import httpx

from tautochrone.errors import MetaError, TautochroneError
from tautochrone.meta import MetaStore
from tautochrone.meta.wire import Call, UnreadableError, decode, decode_error, remote_calls
from tautochrone.metaservice.rpc.routes import CALL_ID, PATH
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


class RemoteStore(MetaStore):
    """The store of the service at `url`; the first word with it is spoken here.

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
        # Not the database's: there is none here, and a method that asked for it would be a defect.
        self._url = url.rstrip("/")
        self._retry_ms = retry_ms
        self._emit = emit or _log_event
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client = httpx.Client(headers=headers, timeout=_TIMEOUT, transport=transport)
        try:
            self._ask(remote_calls()["incarnation"], {})
        except BaseException:
            self.close()
            raise

    @property
    def incarnation(self) -> str:
        # Asked each time: the service may have got another store meanwhile.
        return str(self._ask(remote_calls()["incarnation"], {}))

    def close(self) -> None:
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
            response = self._client.post(f"{self._url}{PATH}/{call.name}", json=body, headers=headers)
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


def _forwarded(call: Call) -> Any:
    def method(self: RemoteStore, *args: Any, **kwargs: Any) -> Any:
        _, *given = call.signature.bind(self, *args, **kwargs).arguments.items()
        return self._ask(call, dict(given))

    return property(method) if call.is_property else functools.wraps(getattr(MetaStore, call.name))(method)


for _call in remote_calls().values():
    if _call.name not in vars(RemoteStore):
        setattr(RemoteStore, _call.name, _forwarded(_call))
