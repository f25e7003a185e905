"""Reads Paimon tables by PyPaimon, in an environment of its own: run by `tests.support.paimon`.

A line of JSON comes for each request, and one goes back for each answer.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory


def answer(request: dict[str, Any]) -> dict[str, Any]:
    table = CatalogFactory.create({"warehouse": request["warehouse"]}).get_table(request["table"])
    if request["what"] == "snapshots":
        snapshots = table.snapshot_manager()
        newest = snapshots.get_latest_snapshot().id
        return {"snapshots": [n for n in range(1, newest + 1) if snapshots.get_snapshot_by_id(n) is not None]}
    if request["what"] == "append":
        write = table.new_batch_write_builder()
        writer, committer = write.new_write(), write.new_commit()
        schema = pa.schema([pa.field(name, kind) for name, kind in request["types"].items()])
        writer.write_arrow(pa.Table.from_pylist(request["rows"], schema=schema))
        committer.commit(writer.prepare_commit())
        return {}
    if request["what"] == "tag":
        table.create_tag(request["name"], request["snapshot"])
        return {}
    builder = table.copy(request["options"]).new_read_builder()
    rows = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    with pa.OSFile(request["path"], "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    return {}


for line in sys.stdin:
    try:
        answered = answer(json.loads(line))
    except Exception as error:  # the caller raises it
        answered = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(answered) + "\n")
    sys.stdout.flush()
