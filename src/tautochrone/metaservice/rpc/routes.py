"""`POST /rpc/{method}`: the methods of the store's parts, for jobs on other machines.

A call carries its arguments by name and an id of its own. The same id again is the same call: a repeat that
comes while the first one is still at work waits for it, one that comes later gets its answer. So a request
that was held up on its way can never take effect behind the one that replaced it. The newest answers are
kept in memory; behind a restart every method is safe to repeat by what it does (see `Store`).

Who asks is known here and said by nobody: the argument `holder` of calls for pins is set to it.

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

_KEPT = 256
_LONGEST_ID = 200
_LONGEST_REASON = 500
_Key = tuple[str, str, str]
_Answer = tuple[int, dict[str, Any]]


def add_store_routes(app: FastAPI, store: Store) -> None:
    """Put the store's methods under `/rpc` of `app`. Who may call them is the application's business."""
    answers = _Answers()

    @app.post(f"{PATH}/{{method}}", include_in_schema=False)
    def rpc(
        method: str,
        request: Request,
        arguments: Annotated[dict[str, Any], Body()],
        call_id: Annotated[str | None, Header(alias=CALL_ID, max_length=_LONGEST_ID)] = None,
    ) -> JSONResponse:
        caller = caller_of(request.scope)
        # An answer is for who asked: another caller's id, or another method's, is another call.
        key = None if call_id is None else (caller.identity, method, call_id)
        status, content = answers.of(key, lambda: _answer(store, method, arguments, caller))
        return JSONResponse(content, status_code=status)


def _answer(store: Store, method: str, arguments: dict[str, Any], caller: Caller) -> _Answer:
    call, shown = remote_calls().get(method), method[:_LONGEST_ID]
    try:
        if call is None:
            raise UnreadableError(f"this service has no method {shown}")
        given = call.decode_arguments(arguments)
        check_arguments(given)
    except UnreadableError as error:
        unreadable = MetaError(
            "META_CALL_UNREADABLE",
            f"The MetaService cannot read a call of {shown}: {str(error)[:_LONGEST_REASON]}",
            hint="The job and the service are of different versions: install the same one.",
        )
        return 422, {"error": encode_error(unreadable)}
    try:
        _hold(call, given, caller)
        return 200, {"answer": encode(call.of(store, given), call.answer)}
    except TautochroneError as error:
        return 409, {"error": encode_error(error)}


def _hold(call: Call, arguments: dict[str, Any], caller: Caller) -> None:
    """Say whose the pin is, and bound what it may be.

    Raises:
        QueryError: `LEASE_INVALID`, `NAME_INVALID`.
    """
    if call.wire == "resolve":
        caller.require_lease(arguments.get("lease_ms", DEFAULT_LEASE_MS), least=0)
        if "owner" in arguments:
            checked_owner(arguments["owner"])
        arguments["holder"] = caller.identity
    elif call.wire == "renew_pin":
        caller.require_lease(arguments["lease_ms"])
        arguments["holder"] = caller.holder
    elif call.wire == "release_pin":
        arguments["holder"] = caller.holder


class _Answers:
    """The answers of the newest calls, and of those under way."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: OrderedDict[_Key, Future[_Answer]] = OrderedDict()

    def of(self, call_id: _Key | None, act: Callable[[], _Answer]) -> _Answer:
        if call_id is None:
            return act()
        with self._lock:
            known = self._calls.get(call_id)
            answer: Future[_Answer] = Future()
            if known is None:
                self._calls[call_id] = answer
                self._forget()
        if known is not None:
            return known.result()
        try:
            outcome = act()
        except BaseException as error:
            # A defect, which the caller meets as a 500: the next try is a try.
            with self._lock:
                self._calls.pop(call_id, None)
            answer.set_exception(error)
            raise
        answer.set_result(outcome)
        if outcome[1].get("error", {}).get("retryable"):
            # Nothing took place, and the next try is meant as one.
            with self._lock:
                self._calls.pop(call_id, None)
        return outcome

    def _forget(self) -> None:
        for call_id in list(self._calls)[: max(0, len(self._calls) - _KEPT)]:
            if self._calls[call_id].done():
                del self._calls[call_id]
