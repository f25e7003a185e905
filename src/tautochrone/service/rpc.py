"""`POST /rpc/{method}`: the store's public methods for jobs on other machines.

A call carries its arguments by name and an id of its own. The same id again is the same call: a repeat that
comes while the first one is still at work waits for it, one that comes later gets its answer. So a request
that was held up on its way can never take effect behind the one that replaced it. The newest answers are
kept in memory; behind a restart every method is safe to repeat by what it does (see `MetaStore`).

    200 {"answer": …}     409 {"error": …} what the store raised     422 {"error": …} an unreadable call
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Annotated, Any

from fastapi import Body, FastAPI, Header
from fastapi.responses import JSONResponse

from tautochrone.errors import MetaError, TautochroneError
from tautochrone.meta import MetaStore
from tautochrone.service.wire import Call, UnreadableError, encode, encode_error, remote_calls

__all__ = ["CALL_ID", "PATH", "add_store_routes"]

PATH = "/rpc"
CALL_ID = "Tautochrone-Call"
"""The header with a call's id."""

_KEPT = 256
_Answer = tuple[int, dict[str, Any]]


def add_store_routes(app: FastAPI, store: MetaStore) -> None:
    """Put the store's methods under `/rpc` of `app`. Who may call them is the application's business."""
    answers = _Answers()

    @app.post(f"{PATH}/{{method}}", include_in_schema=False)
    def rpc(
        method: str,
        arguments: Annotated[dict[str, Any], Body()],
        call_id: Annotated[str | None, Header(alias=CALL_ID)] = None,
    ) -> JSONResponse:
        status, content = answers.of(call_id, lambda: _answer(store, method, arguments))
        return JSONResponse(content, status_code=status)


def _answer(store: MetaStore, method: str, arguments: dict[str, Any]) -> _Answer:
    call = remote_calls().get(method)
    try:
        if call is None:
            raise UnreadableError(f"this service has no method {method}")
        given = call.decode_arguments(arguments)
    except UnreadableError as error:
        unreadable = MetaError(
            "META_CALL_UNREADABLE",
            f"The MetaService cannot read a call of {method}: {error}",
            hint="The job and the service are of different versions: install the same one.",
        )
        return 422, {"error": encode_error(unreadable)}
    try:
        return 200, {"answer": encode(_call(store, call, given), call.answer)}
    except TautochroneError as error:
        return 409, {"error": encode_error(error)}


def _call(store: MetaStore, call: Call, arguments: dict[str, Any]) -> Any:
    member = getattr(store, call.name)
    return member if call.is_property else member(**arguments)


class _Answers:
    """The answers of the newest calls, and of those under way."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._calls: OrderedDict[str, Future[_Answer]] = OrderedDict()

    def of(self, call_id: str | None, act: Callable[[], _Answer]) -> _Answer:
        if call_id is None:
            return act()
        with self._lock:
            known = self._calls.get(call_id)
            mine: Future[_Answer] = Future()
            if known is None:
                self._calls[call_id] = mine
                self._forget()
        if known is not None:
            return known.result()
        try:
            found = act()
        except BaseException as error:
            # A defect, which the caller meets as a 500: the next try is a try.
            with self._lock:
                self._calls.pop(call_id, None)
            mine.set_exception(error)
            raise
        mine.set_result(found)
        if found[1].get("error", {}).get("retryable"):
            # Nothing took place, and the next try is meant as one.
            with self._lock:
                self._calls.pop(call_id, None)
        return found

    def _forget(self) -> None:
        for call_id in list(self._calls)[: max(0, len(self._calls) - _KEPT)]:
            if self._calls[call_id].done():
                del self._calls[call_id]
