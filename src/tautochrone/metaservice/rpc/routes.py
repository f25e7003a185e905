"""`POST /rpc/{method}`: the methods of the store's parts, for jobs on other machines.

A call carries its arguments by name and an id. A request with the same id is a repeat of the call: it waits
while the call is executed, and gets the same answer later. So a delayed request cannot take effect after the
repeat that replaced it. The newest answers are cached in memory; after a restart every method is safe to
repeat by what it does (see `Store`).

The service sets the argument `principal` of calls for pins to the caller's identity; clients cannot send it.

    200 {"answer": …}     409 {"error": …} what the store raised     422 {"error": …} an unreadable call
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Annotated, Any

from fastapi import Body, FastAPI, Header, Request
from fastapi.responses import JSONResponse

from tautochrone.errors import MetaError, TautochroneError
from tautochrone.meta import DEFAULT_LEASE_MS, Store
from tautochrone.meta.wire import Call, UnreadableError, encode, encode_error, remote_calls
from tautochrone.metaservice.http.pin_owners import Caller, caller_of, checked_owner
from tautochrone.metaservice.http.request_limits import check_arguments

__all__ = ["CALL_ID", "PATH", "add_store_routes"]

PATH = "/rpc"
CALL_ID = "Tautochrone-Call"
"""The header with a call's id."""

_CACHED_ANSWERS = 256
_MAX_ID = 200
_MAX_REASON = 500
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
        check_arguments(values)
    except UnreadableError as error:
        unreadable = MetaError(
            "META_CALL_UNREADABLE",
            f"The MetaService cannot read a call of {method_name}: {str(error)[:_MAX_REASON]}",
            hint="The job and the service are of different versions: install the same one.",
        )
        return 422, {"error": encode_error(unreadable)}
    try:
        _set_principal(call, values, caller)
        return 200, {"answer": encode(call.of(store, values), call.answer)}
    except TautochroneError as error:
        return 409, {"error": encode_error(error)}


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
