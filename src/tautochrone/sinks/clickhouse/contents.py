"""What is staged and what arrived, compared with what was sent.

By chunk: `Digest.hash` is that of the rows, or `COUNTED` where they are only counted. By partition it is
`COUNTED` as soon as one of its chunks is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tautochrone.errors import SinkContentError
from tautochrone.model.names import TableName
from tautochrone.model.sink import Digest, SentChunk
from tautochrone.sinks.clickhouse.comparison import Comparison
from tautochrone.sinks.clickhouse.rows import COUNTED
from tautochrone.sinks.clickhouse.tables import ClickHouseTables
from tautochrone.sinks.common.steps import same_content

__all__ = ["Partitions", "move_partitions", "staged_content"]

Partitions = Mapping[str, tuple[int, str]]
"""By partition of ClickHouse: rows and hash."""
_NO_ROWS = Digest(0, "0")


def staged_content(
    sink: str,
    tables: ClickHouseTables,
    stagings: Mapping[TableName, str],
    chunks: Sequence[SentChunk],
    comparison: Comparison,
) -> dict[str, Partitions]:
    """Compare what is staged with what was sent; by table and partition what is staged.

    Args:
        stagings: by table the name of its staging table.

    Raises:
        SinkContentError: they differ.
        SinkError: `SINK_SERVER_RESTARTED`.
    """
    arrived: dict[tuple[TableName, int], Digest] = {}
    content: dict[str, Partitions] = {}
    for table, staging in stagings.items():
        sent = [chunk for chunk in chunks if chunk.table == table]
        hashed = {chunk.number for chunk in sent if chunk.digest.hash != COUNTED}
        if len(hashed) == len(sent):
            digests = tables.staged_digests(staging, table)
        else:
            run, digests = tables.counted_digests(staging, table, hashed)
            if run is not None:
                comparison.require_seen(run)
        partitions: dict[str, tuple[int, str]] = {}
        for number, partition, digest in digests:
            arrived[table, number] = _sum(arrived.get((table, number), _NO_ROWS), digest)
            total = _sum(Digest(*partitions.get(partition, (0, "0"))), digest)
            partitions[partition] = total.rows, total.hash
        content[str(table)] = partitions
    same_content(sink, chunks, arrived)
    return content


def move_partitions(
    sink: str,
    tables: ClickHouseTables,
    table: TableName,
    staging: str,
    partitions: Partitions,
    publication: int,
    *,
    may_have_moved: bool,
) -> None:
    """Move what is staged into the table of rows, and compare what arrived.

    Args:
        partitions: what is staged.
        may_have_moved: some partitions may have been moved before. They are recognised by what they hold.

    Raises:
        SinkContentError: something else arrived; `SINK_STAGING_LOST`.
    """
    hashed = may_have_moved and all(text != COUNTED for _, text in partitions.values())

    def arrived() -> dict[str, tuple[int, str]]:
        return tables.partitions(tables.rows(table), table, publication, hashed=hashed)

    # Who goes on with a commit finds partitions that were moved; nothing moved before it.
    before = arrived() if may_have_moved else {}
    waiting = [partition for partition in partitions if partition not in before]
    if may_have_moved and waiting and staging not in tables.staged():
        raise SinkContentError(
            "SINK_STAGING_LOST",
            f"Sink {sink}: somebody dropped {staging}, the staging table of a transaction that is decided; "
            f"{len(waiting)} partitions of {table} were not moved out of it",
            hint="Drop the sink's database on all its servers and run "
            f"`taut sinks --forget {sink}`: the next run delivers all rows.",
            parameters={"sink": sink, "table": str(table)},
        )
    for partition in waiting:
        tables.move(staging, partition, table)
    expected = partitions if hashed else {key: (rows, COUNTED) for key, (rows, _) in partitions.items()}
    after = arrived()
    if after != expected:
        raise SinkContentError(
            "SINK_CONTENT_DIFFERS",
            f"Sink {sink}, publication {publication} of {table}: staged {expected}, arrived {after}",
            hint="Somebody else writes into the sink's tables. Drop its database and run "
            f"`taut sinks --forget {sink}`: the next run delivers all rows.",
            parameters={"sink": sink, "table": str(table)},
        )


def _sum(first: Digest, second: Digest) -> Digest:
    if COUNTED in (first.hash, second.hash):
        return Digest(first.rows + second.rows, COUNTED)
    total = (int(first.hash, 16) + int(second.hash, 16)) % 2**64
    return Digest(first.rows + second.rows, f"{total:016x}")
