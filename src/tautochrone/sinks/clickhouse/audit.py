"""Which rows differ between the lake and a sink, by the hash of each row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tautochrone.model.lake import Rows
from tautochrone.model.names import TableName
from tautochrone.model.sink import Digest, RowDifference
from tautochrone.sinks.clickhouse.engines import Engine
from tautochrone.sinks.clickhouse.rows import AUDIT_PARTS, batches, digests
from tautochrone.sinks.clickhouse.tables import ClickHouseTables

__all__ = ["AuditedServer", "row_differences"]


@dataclass(frozen=True, slots=True)
class AuditedServer:
    """One server of a sink at a publication."""

    engine: Engine
    tables: ClickHouseTables
    publication: int


def row_differences(
    servers: Sequence[AuditedServer], table: TableName, rows: Rows, chunk_rows: int, limit: int
) -> list[RowDifference]:
    """Rows of which the lake and the sink have different numbers of copies, `limit` at most.

    Args:
        rows: of the lake; read twice or three times.
    """
    columns = servers[0].tables.columns(table)
    in_lake = digests(batches(rows, columns, chunk_rows))
    in_sink: Counter[str] = Counter()
    for server in servers:
        for part, digest in server.tables.audit(table, server.publication).items():
            in_sink[part] += int(digest.hash, 16)
    parts = {
        int(part)
        for part in in_sink.keys() | in_lake.keys()
        if f"{in_sink[part] % 2**64:016x}" != in_lake.get(part, Digest(0, f"{0:016x}")).hash
    }
    if not parts:
        return []
    sink_copies: Counter[bytes] = Counter()
    for server in servers:
        sink_copies.update(_sink_copies(server, table, parts))
    lake_copies: Counter[bytes] = Counter()
    for batch in batches(rows, columns, chunk_rows):
        lake_copies.update(row_hash for row_hash in batch.hashes if row_hash[8] % AUDIT_PARTS in parts)
    keys = sorted(
        key for key in sink_copies.keys() | lake_copies.keys() if sink_copies[key] != lake_copies[key]
    )
    keys = keys[:limit]
    texts: dict[bytes, str] = {}
    for server in servers:
        texts |= _sink_texts(server, table, keys)
    lacking = {key for key in keys if key not in texts}
    for batch in batches(rows, columns, chunk_rows) if lacking else ():
        for index, row_hash in enumerate(batch.hashes):
            if row_hash in lacking:
                values = [array[index].as_py() for array in batch.arrays]
                texts[row_hash] = _text([column.name for column in columns], values)
    return [RowDifference(row=texts[key], in_sink=sink_copies[key], in_lake=lake_copies[key]) for key in keys]


def _sink_copies(server: AuditedServer, table: TableName, parts: set[int]) -> Counter[bytes]:
    listed = ", ".join(map(str, sorted(parts)))
    hashed = server.tables.hashed(table, server.publication)
    copies = server.engine.rows(
        f"SELECT hex(_taut_hash), toString(sum(_taut_sign)) FROM ({hashed}) "
        f"WHERE reinterpretAsUInt8(substring(_taut_hash, 9, 1)) % {AUDIT_PARTS} IN ({listed}) "
        "GROUP BY _taut_hash HAVING sum(_taut_sign) != 0"
    )
    return Counter({bytes.fromhex(key): int(count) for key, count in copies})


def _sink_texts(server: AuditedServer, table: TableName, keys: Sequence[bytes]) -> dict[bytes, str]:
    names = [column.name for column in server.tables.columns(table)]
    hashed = server.tables.hashed(table, server.publication, with_columns=True)
    listed = ", ".join(f"'{key.hex().upper()}'" for key in keys)
    rows = server.engine.rows(
        f"SELECT DISTINCT hex(_taut_hash), * EXCEPT (_taut_hash, _taut_sign) "
        f"FROM ({hashed}) WHERE hex(_taut_hash) IN ({listed})"
    )
    return {bytes.fromhex(key): _text(names, values) for key, *values in rows}


def _text(names: Sequence[str], values: Sequence[object]) -> str:
    return json.dumps(dict(zip(names, values, strict=True)), default=str, ensure_ascii=False)
