"""Which rows differ between the lake and a sink, by the hash of each row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from tautochrone.model.lake import Rows
from tautochrone.model.names import TableName
from tautochrone.model.sink import Digest, RowDifference
from tautochrone.sinks.clickhouse.engines import Engine
from tautochrone.sinks.clickhouse.rows import AUDIT_PARTS, batches, digests
from tautochrone.sinks.clickhouse.tables import Tables

__all__ = ["row_differences"]


def row_differences(
    engine: Engine,
    tables: Tables,
    table: TableName,
    publication: int,
    rows: Rows,
    chunk_rows: int,
    limit: int,
) -> list[RowDifference]:
    """Rows of which the lake and the sink have different numbers of copies, `limit` at most.

    Args:
        rows: of the lake; read twice or three times.
    """
    columns = tables.columns(table)
    in_sink, in_lake = tables.audit(table, publication), digests(batches(rows, columns, chunk_rows))
    nothing = Digest(0, "")
    parts = {
        int(part) for part in in_sink.keys() | in_lake.keys()
        if in_sink.get(part, nothing) != in_lake.get(part, nothing)
    }  # fmt: skip
    if not parts:
        return []
    sink_copies = _sink_copies(engine, tables, table, publication, parts)
    lake_copies: Counter[bytes] = Counter()
    for batch in batches(rows, columns, chunk_rows):
        lake_copies.update(row_hash for row_hash in batch.hashes if row_hash[8] % AUDIT_PARTS in parts)
    keys = sorted(
        key for key in sink_copies.keys() | lake_copies.keys() if sink_copies[key] != lake_copies[key]
    )
    keys = keys[:limit]
    texts = _sink_texts(engine, tables, table, publication, keys)
    lacking = {key for key in keys if key not in texts}
    for batch in batches(rows, columns, chunk_rows) if lacking else ():
        for index, row_hash in enumerate(batch.hashes):
            if row_hash in lacking:
                values = [array[index].as_py() for array in batch.arrays]
                texts[row_hash] = _text([column.name for column in columns], values)
    return [RowDifference(row=texts[key], in_sink=sink_copies[key], in_lake=lake_copies[key]) for key in keys]


def _sink_copies(
    engine: Engine, tables: Tables, table: TableName, publication: int, parts: set[int]
) -> Counter[bytes]:
    listed = ", ".join(map(str, sorted(parts)))
    copies = engine.rows(
        f"SELECT hex(_taut_hash), toString(sum(_taut_sign)) FROM ({tables.hashed(table, publication)}) "
        f"WHERE reinterpretAsUInt8(substring(_taut_hash, 9, 1)) % {AUDIT_PARTS} IN ({listed}) "
        "GROUP BY _taut_hash HAVING sum(_taut_sign) != 0"
    )
    return Counter({bytes.fromhex(key): int(count) for key, count in copies})


def _sink_texts(
    engine: Engine, tables: Tables, table: TableName, publication: int, keys: Sequence[bytes]
) -> dict[bytes, str]:
    names = [column.name for column in tables.columns(table)]
    listed = ", ".join(f"'{key.hex().upper()}'" for key in keys)
    rows = engine.rows(
        f"SELECT DISTINCT hex(_taut_hash), * EXCEPT (_taut_hash, _taut_sign) "
        f"FROM ({tables.hashed(table, publication, with_columns=True)}) WHERE hex(_taut_hash) IN ({listed})"
    )
    return {bytes.fromhex(key): _text(names, values) for key, *values in rows}


def _text(names: Sequence[str], values: Sequence[object]) -> str:
    return json.dumps(dict(zip(names, values, strict=True)), default=str, ensure_ascii=False)
