"""Nexmark's queries over append-only streaming tables, and over tables that another program changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support import nexmark
from tests.support.nexmark import Events

from .testbed import STRICT, ViewTestbed

pytestmark = pytest.mark.spark

POLICY = "incremental_strict" if STRICT else None
VIEWS = {*nexmark.queries(), "q14"}

STREAMS = """
    from pyspark import pipelines as dp

    SCHEMAS = {schemas!r}

    def table(name, schema):
        @dp.table(name=name)
        def stream():
            return spark.readStream.schema(schema).json({folder!r} + "/" + name)

    for name, schema in SCHEMAS.items():
        table(name, schema)
"""


def define(testbed: ViewTestbed, prefix: str) -> None:
    for file, text in nexmark.project(prefix, POLICY).items():
        testbed.pipeline.write(f"definitions/{file}", text)


def collect_changed_views(testbed: ViewTestbed, changed_views: set[str]) -> None:
    """Make one checkpoint; add the views whose rows changed to `changed_views`."""
    for refresh in testbed.checkpoint().of("refresh"):
        if refresh["rows_inserted"] + refresh["rows_deleted"]:
            changed_views.add(refresh["dataset"].rsplit(".", 1)[-1])


def test_share_of_each_kind_of_event() -> None:
    events = Events().next(1000)
    assert {table: len(rows) for table, rows in events.items()} == {"person": 20, "auction": 60, "bid": 920}
    assert Events().next(1000) == events
    assert len(VIEWS) == 23


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_append_only_streaming_tables(testbed: ViewTestbed) -> None:
    folder = testbed.pipeline.folder / "in"

    def add_files(number: int, rows: dict[str, list[dict[str, Any]]]) -> None:
        for table, events in rows.items():
            text = "".join(json.dumps(event) + "\n" for event in events)
            (folder / table).mkdir(parents=True, exist_ok=True)
            draft = testbed.pipeline.write(f"draft-{table}-{number}", text)
            draft.rename(folder / table / f"{number}.json")

    define(testbed, "")
    streams = STREAMS.format(schemas=dict(nexmark.SCHEMAS), folder=str(folder))
    testbed.pipeline.write("definitions/streams.py", streams)
    events = Events(seed=4)
    add_files(0, {**events.next(500), "side": Events.side()[:50]})
    testbed.checkpoint()
    changed: set[str] = set()
    for number, count in enumerate((100, 300, 7), 1):
        side = {"side": Events.side()[50:]} if number == 2 else {}
        add_files(number, {**events.next(count), **side})
        collect_changed_views(testbed, changed)
    assert changed == VIEWS, VIEWS - changed


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("steps", [1, 4])
def test_tables_with_updates_and_deletes(testbed: ViewTestbed, steps: int) -> None:
    testbed.sql("CREATE NAMESPACE lake.nexmark")
    for table, columns in nexmark.SCHEMAS.items():
        modes = ", ".join(f"'write.{w}.mode' = 'merge-on-read'" for w in ("delete", "update", "merge"))
        testbed.sql(
            f"CREATE TABLE lake.nexmark.{table} ({columns}) USING iceberg "
            f"TBLPROPERTIES ('format-version' = '3', {modes})"
        )

    def insert(rows: dict[str, list[dict[str, Any]]]) -> None:
        for table, events in rows.items():
            file = testbed.pipeline.write(
                f"draft-{table}.json", "".join(json.dumps(e) + "\n" for e in events)
            )
            frame = testbed.external_session.read.schema(nexmark.SCHEMAS[table]).json(str(file))
            frame.writeTo(f"lake.nexmark.{table}").append()

    define(testbed, "nexmark.")
    events = Events(seed=5)
    insert({**events.next(500), "side": Events.side()})
    testbed.checkpoint()
    changed: set[str] = set()
    for step in range(1, steps + 1):
        insert(events.next(60))
        testbed.sql(*(text.replace("@", "lake.nexmark.") for text in CHANGES[step]))
        collect_changed_views(testbed, changed)
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
