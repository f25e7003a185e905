"""Nexmark's queries over streaming tables that only grow, and over tables that others change as they like."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tautochrone.testing import nexmark
from tautochrone.testing.nexmark import Events

from .stand import STRICT, Stand

pytestmark = pytest.mark.spark

POLICY = "incremental_strict" if STRICT else None
VIEWS = {*nexmark.queries(), "q14"}

STREAMS = """
    from pyspark import pipelines as dp

    SCHEMAS = {schemas!r}

    def table(name, schema):
        @dp.table(name=name)
        def made():
            return spark.readStream.schema(schema).json({folder!r} + "/" + name)

    for name, schema in SCHEMAS.items():
        table(name, schema)
"""


def define(stand: Stand, prefix: str) -> None:
    for file, text in nexmark.project(prefix, POLICY).items():
        stand.pipeline.write(f"definitions/{file}", text)


def moved(stand: Stand, so_far: set[str]) -> None:
    """One checkpoint; collects the views that got other rows."""
    for told in stand.checkpoint().of("refresh"):
        if told["rows_inserted"] + told["rows_deleted"]:
            so_far.add(told["dataset"].rsplit(".", 1)[-1])


def test_the_mix_of_events() -> None:
    found = Events().next(1000)
    assert {table: len(rows) for table, rows in found.items()} == {"person": 20, "auction": 60, "bid": 920}
    assert Events().next(1000) == found
    assert len(VIEWS) == 23


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_streaming_tables(stand: Stand) -> None:
    folder = stand.pipeline.folder / "in"

    def drop(number: int, rows: dict[str, list[dict[str, Any]]]) -> None:
        for table, events in rows.items():
            text = "".join(json.dumps(event) + "\n" for event in events)
            (folder / table).mkdir(parents=True, exist_ok=True)
            draft = stand.pipeline.write(f"draft-{table}-{number}", text)
            draft.rename(folder / table / f"{number}.json")

    define(stand, "")
    streams = STREAMS.format(schemas=dict(nexmark.SCHEMAS), folder=str(folder))
    stand.pipeline.write("definitions/streams.py", streams)
    events = Events(seed=4)
    drop(0, {**events.next(500), "side": Events.side()[:50]})
    stand.checkpoint()
    changed: set[str] = set()
    for number, count in enumerate((100, 300, 7), 1):
        side = {"side": Events.side()[50:]} if number == 2 else {}
        drop(number, {**events.next(count), **side})
        moved(stand, changed)
    assert changed == VIEWS, VIEWS - changed


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("steps", [1, 4])
def test_tables_that_are_updated_and_deleted_from(stand: Stand, steps: int) -> None:
    stand.sql("CREATE NAMESPACE lake.nexmark")
    for table, columns in nexmark.SCHEMAS.items():
        modes = ", ".join(f"'write.{w}.mode' = 'merge-on-read'" for w in ("delete", "update", "merge"))
        stand.sql(
            f"CREATE TABLE lake.nexmark.{table} ({columns}) USING iceberg "
            f"TBLPROPERTIES ('format-version' = '3', {modes})"
        )

    def insert(rows: dict[str, list[dict[str, Any]]]) -> None:
        for table, events in rows.items():
            file = stand.pipeline.write(f"draft-{table}.json", "".join(json.dumps(e) + "\n" for e in events))
            frame = stand.outside.read.schema(nexmark.SCHEMAS[table]).json(str(file))
            frame.writeTo(f"lake.nexmark.{table}").append()

    define(stand, "nexmark.")
    events = Events(seed=5)
    insert({**events.next(500), "side": Events.side()})
    stand.checkpoint()
    changed: set[str] = set()
    for step in range(1, steps + 1):
        insert(events.next(60))
        stand.sql(*(text.replace("@", "lake.nexmark.") for text in CHANGES[step]))
        moved(stand, changed)
    assert len(VIEWS - changed) <= 3 if steps == 1 else changed == VIEWS, VIEWS - changed


CHANGES = {
    1: [
        "UPDATE @bid SET price = price * 10, channel = 'Apple' WHERE pmod(xxhash64(bidder, price), 20) = 1",
        "DELETE FROM @auction WHERE id % 7 = 1",
        "UPDATE @person SET state = 'CA' WHERE id % 3 = 0",
    ],
    2: [
        "DELETE FROM @bid WHERE pmod(xxhash64(auction, bidder, price), 15) = 2",
        "UPDATE @auction SET category = 10, expires = expires + INTERVAL 30 SECONDS WHERE id % 5 = 2",
        "INSERT INTO @bid SELECT * FROM @bid WHERE auction % 123 = 0",
        "DELETE FROM @side WHERE key % 8 = 2",
    ],
    3: [
        "UPDATE @bid SET bidder = NULL, date_time = date_time + INTERVAL 3 SECONDS WHERE auction % 11 = 3",
        "UPDATE @auction SET seller = seller + 1 WHERE id % 4 = 0",
        "DELETE FROM @person WHERE id % 4 = 2",
        "MERGE INTO @side s USING (SELECT explode(sequence(1051, 1061)) AS key) n ON s.key = n.key "
        "WHEN NOT MATCHED THEN INSERT (key, value) VALUES (n.key, 'late')",
    ],
    4: [
        "UPDATE @bid SET auction = auction - auction % 3, extra = NULL WHERE price < 500",
        "DELETE FROM @bid WHERE price = (SELECT max(price) FROM @bid)",
        "UPDATE @auction SET date_time = NULL WHERE id % 13 = 0",
    ],
}
