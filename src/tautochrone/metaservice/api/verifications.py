"""`taut verify` over HTTP: the job that runs recomputes its views in its own Spark.

The answer is a line of JSON for each view as soon as it is compared:

    {"named": ["lake.shop.totals"]}
    {"dataset": "lake.shop.totals", "checkpoint": 12, "equal": true, "missing": 0, "unexpected": 0, …}
    {"complete": true}

A line with `error_class` ends the answer instead; an answer without either was cut off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from tautochrone.errors import TautochroneError
from tautochrone.metaservice.api.queries import check_key
from tautochrone.metaservice.api.reads import Number
from tautochrone.metaservice.http.problems import problem_of
from tautochrone.model.verdict import Verification, Verifier

__all__ = ["JSON_LINES", "add_verifications"]

JSON_LINES = "application/x-ndjson"
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
        return StreamingResponse(_lines_of(verification), media_type=JSON_LINES)


def _lines_of(verification: Verification) -> Iterator[str]:
    yield _line({"named": list(map(str, verification.named))})
    try:
        for verdict in verification.verdicts:
            yield _line({**asdict(verdict), "dataset": str(verdict.dataset)})
    except TautochroneError as error:
        yield bytes(problem_of(error).body).decode() + "\n"
        return
    yield _line({"complete": True})


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content) + "\n"
