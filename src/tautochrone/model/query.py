"""A query over published tables, and its answer as Arrow: what readers, the service and its clients share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tautochrone.model.checkpoint import Consistency

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ARROW_STREAM", "QUERY_KEY", "QUERY_METADATA", "Answer", "Query", "QueryAnswer", "QueryRunner"]

ARROW_STREAM = "application/vnd.apache.arrow.stream"
"""The media type of an answer over HTTP."""

QUERY_KEY = "X-Tautochrone-Key"
"""The header with the key of a job's own service, which other users of the machine do not have."""

QUERY_METADATA = b"tautochrone"
"""The key in the metadata of the answer's schema, over HTTP: JSON with `checkpoint` and `behind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query and the instant that it reads; see `Reader.sql`.

    Attributes:
        sql: Spark SQL that only reads.
        consistency: all tables at one checkpoint, or each at its newest version.
        checkpoint: a published checkpoint, instead of the newest readable one.
        only_named: do not wait for other tables that share a root with the query's tables.
        after: a write token.
        wait_ms: for how many milliseconds to wait for a checkpoint after the token.
    """

    sql: str
    consistency: Consistency = Consistency.STRONG
    checkpoint: int | None = None
    only_named: bool = False
    after: str | None = None
    wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswer:
    """The whole result of a query.

    Attributes:
        rows: a `pyarrow.Table`. Timestamps have the session's time zone. Columns of or with VARIANT,
            intervals of months or of Spark's old type, or structs with a name twice, are texts.
        checkpoint: that was read; None: the newest version of each table, or no table of a pipeline.
        behind: the tables that keep the query from a newer checkpoint, each with its reason.
    """

    rows: pa.Table
    checkpoint: int | None = None
    behind: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The first rows of a query's result, each value as text (None: NULL; a text that is cut ends with `…`).

    `checkpoint` was read; None: the newest version of each table. `more`: there are more rows than these.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    checkpoint: int | None
    more: bool


class QueryRunner(Protocol):
    """Answers queries that only read, for a service."""

    def arrow(self, query: Query) -> QueryAnswer:
        """The whole result. `wait_ms` is left to the caller.

        Raises:
            QueryError: the query is wrong, would write (`QUERY_NOT_READ_ONLY`) or took too long.
            CheckpointUnavailableError: no such checkpoint; `READ_NOT_YET` (retryable).
        """
