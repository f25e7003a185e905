"""`taut verify` over HTTP: the job that runs recomputes its views in its own Spark.

The answer is a line of JSON for each view as soon as it is compared:

    {"named": ["lake.shop.totals"]}
    {"dataset": "lake.shop.totals", "checkpoint": 12, "equal": true, "missing": 0, "unexpected": 0, …}
    {"complete": true}

A line with `error_class` ends the answer instead; an answer without either was cut off.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from tautochrone.errors import TautochroneError
from tautochrone.metaservice.api.queries import check_key
from tautochrone.metaservice.api.reads import Number
from tautochrone.metaservice.http.problems import problem_of
from tautochrone.model.verdict import Verdict, Verification, Verifier
from tautochrone.traces import defect_error, trace_of

__all__ = ["JSON_LINES", "add_verifications"]

_log = logging.getLogger(__name__)

JSON_LINES = "application/x-ndjson"
_LOOK_S = 1.0
"""How often to look whether the client still waits."""
_MAX_NAMES = 1_000


class VerificationRequest(BaseModel):
    """The views to recompute, and the instant."""

    model_config = ConfigDict(extra="forbid")
    names: Annotated[list[str], Field(max_length=_MAX_NAMES)] = []
    checkpoint: Number | None = Field(
        default=None, description="a published checkpoint, instead of the newest"
    )


def add_verifications(router: APIRouter, verifier: Verifier, key: str) -> None:
    """`/verifications`, which only the service of a job has.

    Args:
        key: what a request must show in the header `QUERY_KEY`.
    """

    @router.post("/verifications", tags=["queries"], response_class=StreamingResponse)
    def verify(request: VerificationRequest, http: Request) -> StreamingResponse:
        """Recompute views with plain Spark and compare."""
        check_key(http, key)
        verification = verifier.verify(request.names, request.checkpoint)
        return StreamingResponse(_lines_of(verification, http), media_type=JSON_LINES)


async def _lines_of(verification: Verification, http: Request) -> AsyncIterator[str]:
    yield _line({"named": list(map(str, verification.named))})
    try:
        while (verdict := await _next_verdict(verification, http)) is not None:
            yield _line({**asdict(verdict), "dataset": str(verdict.dataset)})
    except TautochroneError as error:
        yield bytes(problem_of(error).body).decode() + "\n"
    except Exception as error:
        # The answer has begun, so the handler of unexpected errors cannot tell.
        trace = trace_of(error, "verification")
        _log.error("a verification failed; %s", trace, exc_info=error)
        yield bytes(problem_of(defect_error(error, trace)).body).decode() + "\n"
    else:
        yield _line({"complete": True})
    finally:
        verification.stop()


async def _next_verdict(verification: Verification, http: Request) -> Verdict | None:
    """None after the last one, and when nobody waits for it any more."""
    verdict = asyncio.ensure_future(asyncio.to_thread(next, verification.verdicts, None))
    while not verdict.done():
        await asyncio.wait({verdict}, timeout=_LOOK_S)
        if not verdict.done() and await http.is_disconnected():
            verification.stop()
    return verdict.result()


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content) + "\n"
