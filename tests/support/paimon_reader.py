"""Reads Paimon tables by PyPaimon, in an environment of its own: run by `tests.support.paimon`.

A line of JSON comes for each request, and one goes back for each answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

TYPES = {
    "day": pa.date32(),
    "at": pa.timestamp("us"),
    "money": pa.decimal128(12, 2),
    "ids": pa.list_(pa.int64()),
}


def created(request: dict[str, Any]) -> None:
    catalog = CatalogFactory.create(request["catalog"])
    catalog.create_database(request["table"].partition(".")[0], True)
    schema = pa.schema([pa.field(name, TYPES.get(kind, kind)) for name, kind in request["types"].items()])
    described = Schema.from_pyarrow_schema(
        schema, request["partition_keys"], request["primary_keys"], request["options"]
    )
    catalog.create_table(request["table"], described, False)


def altered(request: dict[str, Any]) -> None:
    changes: dict[str, Callable[..., Any]] = {
        "rename": lambda old, new: SchemaChange.rename_column(old, new),
        "drop": lambda name: SchemaChange.drop_column(name),
        "add": lambda name, kind: SchemaChange.add_column(name, AtomicType(kind)),
        "widen": lambda name, kind: SchemaChange.update_column_type(name, AtomicType(kind)),
        "option": lambda key, value: SchemaChange.set_option(key, value),
    }
    done = [changes[what](*arguments) for what, *arguments in request["changes"]]
    CatalogFactory.create(request["catalog"]).alter_table(request["table"], done, False)


def deleted(table: Any, request: dict[str, Any]) -> None:
    write = table.new_batch_write_builder()
    update = write.new_update()
    predicate = update.new_predicate_builder().is_in("id", request["ids"])
    write.new_commit().commit(update.delete_by_predicate(predicate))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    if request["what"] == "create":
        created(request)
        return {}
    if request["what"] == "alter":
        altered(request)
        return {}
    table = CatalogFactory.create(request["catalog"]).get_table(request["table"])
    if request["what"] == "snapshots":
        snapshots = table.snapshot_manager()
        newest = snapshots.get_latest_snapshot().id
        return {"snapshots": [n for n in range(1, newest + 1) if snapshots.get_snapshot_by_id(n) is not None]}
    if request["what"] == "append":
        write = table.new_batch_write_builder()
        if request["overwrites"]:
            write = write.overwrite()
        writer, committer = write.new_write(), write.new_commit()
        schema = pa.schema([pa.field(name, TYPES.get(kind, kind)) for name, kind in request["types"].items()])
        writer.write_arrow(pa.Table.from_pylist(request["rows"], schema=schema))
        committer.commit(writer.prepare_commit())
        return {}
    if request["what"] == "delete":
        deleted(table, request)
        return {}
    if request["what"] == "roll back":
        table.rollback_to(request["snapshot"])
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
