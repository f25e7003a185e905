"""Changes that a light capture writes into files are what one change after the other makes of the rows."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tautochrone.model.log_table import NetRows
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.sources.capture.log_table import ARROW_SCHEMA
from tautochrone.sources.capture.typed_rows import TextFormat, net_rows

SCHEMA = pa.schema(
    [("region", pa.string()), ("ID", pa.int32()), ("price", pa.decimal128(10, 2)), ("ok", pa.bool_())]
)
KEYS = ("id", "region")
FORMAT = TextFormat(true="t")


def event(operation: str, **columns: str | None) -> dict[str, Any]:
    return {"operation": operation, "columns": [*columns.items()], "unchanged": [], "relation": "public.t"}


def netted(events: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> NetRows | Reason:
    rows = [
        {**dict.fromkeys(ARROW_SCHEMA.names), "point": 8, "sequence": number, **each}
        for number, each in enumerate(events)
    ]
    return net_rows(pa.Table.from_pylist(rows, ARROW_SCHEMA), schema, KEYS, FORMAT)


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_after_all_events(seed: int) -> None:
    pick = random.Random(seed)
    events, rows, touched = [], {}, set()
    for _ in range(pick.randrange(1, 60)):
        key = {"region": pick.choice("ab"), "id": str(pick.randrange(6))}
        touched.add((key["region"], int(key["id"])))
        if pick.random() < 0.4:
            events.append(event("delete", **key))
            rows.pop((key["region"], int(key["id"])), None)
            continue
        price, ok = pick.choice([None, "1", "-2.50"]), pick.choice([None, "t", "f"])
        events.append(event(pick.choice(["insert", "update"]), **key, price=price, ok=ok))
        rows[key["region"], int(key["id"])] = (
            None if price is None else float(price),
            {"t": True, "f": False}.get(ok),
        )
    net = netted(events)
    assert isinstance(net, NetRows)
    assert net.rows.schema == SCHEMA
    stored = [tuple(row.values()) for row in net.rows.to_pylist()]
    kept = {
        (region, id_): (None if price is None else float(price), ok)
        for region, id_, price, ok in stored[: net.kept]
    }
    assert (kept, len(kept)) == (rows, net.kept)
    gone = stored[net.kept :]
    assert all(row[2:] == (None, None) for row in gone)
    assert sorted(row[:2] for row in gone) == sorted(touched - rows.keys())


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([event("truncate")], ReasonCode.TABLE_TRUNCATED),
        ([event("copy", id="1", region="a")], ReasonCode.ROWS_COPIED),
        ([event("update", id="1", region="a") | {"unchanged": ["price"]}], ReasonCode.VALUES_LEFT_UNCHANGED),
        ([event("update", id="1", region="a", price="NaN")], ReasonCode.TEXTS_READ_BY_SPARK),
        ([event("delete", id="one", region="a")], ReasonCode.TEXTS_READ_BY_SPARK),
        ([event("insert", id="1", region="a", new="1")], ReasonCode.COLUMNS_OF_ROWS_DIFFER),
    ],
)
def test_other_changes_stay_in_the_log(events: list[dict[str, Any]], code: ReasonCode) -> None:
    reason = netted([event("insert", id="2", region="b"), *events])
    assert isinstance(reason, Reason)
    assert reason.code is code


def test_keys_of_floating_point_numbers_stay_in_the_log() -> None:
    schema = SCHEMA.set(1, pa.field("id", pa.float64()))
    reason = netted([event("insert", id="-0.0", region="b")], schema)
    assert isinstance(reason, Reason)
    assert reason.code is ReasonCode.COLUMN_COMPARED_BY_SPARK
