"""Queries over HTTP: the whole result as one stream of Arrow record batches.

The metadata of the stream's schema has one key, `tautochrone`: JSON with the `checkpoint` that was read and
the tables that are `behind`.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from tautochrone.errors import AccessError, QueryError
from tautochrone.metaservice.api.reads import (
    AfterToken,
    ConsistencyType,
    Flag,
    Number,
    WaitMs,
)
from tautochrone.metaservice.write_tokens import read_after, token_time_ms
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.query import ARROW_STREAM, QUERY_KEY, QUERY_METADATA, Query, QueryAnswer, QueryRunner

__all__ = ["add_queries", "arrow_stream", "check_key"]

_PART_BYTES = 1 << 20
_MAX_CHARACTERS = 100_000


class QueryRequest(BaseModel):
    """Spark SQL that only reads, and the instant that it reads."""

    model_config = ConfigDict(extra="forbid")
    sql: Annotated[str, Field(min_length=1, max_length=_MAX_CHARACTERS)]
    consistency: ConsistencyType = ConsistencyType.STRONG
    checkpoint: Number | None = Field(
        default=None, description="a published checkpoint, instead of the newest"
    )
    only_named: Flag = False
    after: AfterToken = None
    wait_ms: WaitMs = 0


_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The rows, as Arrow's IPC stream", "content": {ARROW_STREAM: {}}}
}


def add_queries(
    router: APIRouter, runner: QueryRunner | None, unavailable_reason: str, key: str = ""
) -> None:
    """`/query`, which answers `QUERIES_UNAVAILABLE` without a runner.

    Args:
        key: what a query must show in the header `QUERY_KEY`; empty: nothing.
    """

    @router.post("/query", tags=["queries"], response_class=StreamingResponse, responses=_ANSWERS)
    async def query(request: QueryRequest, http: Request) -> StreamingResponse:
        """The rows of a query, all tables at one checkpoint, or each at its newest version (`weak`)."""
        if runner is None:
            raise QueryError(
                "QUERIES_UNAVAILABLE",
                f"There are no queries here. {unavailable_reason}",
                hint="ask with `taut query` in the project",
            )
        check_key(http, key)
        token_time_ms(request.after)
        query_of_request = Query(
            sql=request.sql,
            consistency=Consistency(request.consistency),
            checkpoint=request.checkpoint,
            only_named=request.only_named,
            after=request.after,
        )
        read = partial(runner.arrow, query_of_request)
        # Not with those threads that answer other reads: a query may take a minute.
        answer = await read_after(read, request.after, request.wait_ms, in_thread=run_in_threadpool)
        return StreamingResponse(arrow_stream(answer), media_type=ARROW_STREAM)


def check_key(request: Request, key: str) -> None:
    """Refuse a request that does not show `key`, if there is one.

    Raises:
        AccessError: `QUERY_KEY_MISSING`.
    """
    if key and not hmac.compare_digest(request.headers.get(QUERY_KEY, "").encode(), key.encode()):
        raise AccessError(
            "QUERY_KEY_MISSING",
            "This service of a running job answers only who may read the job's storage",
            hint="`taut query` in the project; `taut serve` answers others",
        )


def arrow_stream(answer: QueryAnswer) -> Iterator[bytes]:
    """The answer as parts of Arrow's IPC stream."""
    import pyarrow as pa

    instant = json.dumps({"checkpoint": answer.checkpoint, "behind": dict(answer.behind)})
    metadata = {**(answer.rows.schema.metadata or {}), QUERY_METADATA: instant.encode()}
    rows = answer.rows.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    whole = memoryview(sink.getvalue())
    for start in range(0, len(whole), _PART_BYTES):
        yield bytes(whole[start : start + _PART_BYTES])
