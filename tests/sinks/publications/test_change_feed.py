"""Delta's change data feed of a published table: each version's changes are what came and went with it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("hudi")

from tests.sinks.publications.toy_lake import COLUMNS, ORDERS, ToyLake, delta_table, write_file
from tests.support.delta_spark import DeltaSpark

from tautochrone.errors import SinkError
from tautochrone.sinks import open_sink

Files = dict[Path, frozenset[int]]
Row = tuple[int, str]


def live_rows(files: Files) -> list[Row]:
    return [
        (row["id"], row["word"])
        for path, positions in files.items()
        for number, row in enumerate(pq.read_table(path).to_pylist())
        if number not in positions
    ]


def change(lake: ToyLake, files: Files, number: int, pick: random.Random, *, has_vectors: bool) -> Files:
    """Some of: rows of old files go, two files are merged, a file goes, a file comes."""
    if has_vectors:
        files = {
            path: positions | {pick.randrange(4)} if pick.random() < 0.4 else positions
            for path, positions in files.items()
        }
    if len(files) > 2 and pick.random() < 0.4:
        merged, others = dict(list(files.items())[:2]), dict(list(files.items())[2:])
        path = write_file(lake.folder / "data", COLUMNS, *live_rows(merged))
        lake.sequences[path] = max(lake.sequences[each] for each in merged)
        files = {path: frozenset(), **others}
    if len(files) > 2 and pick.random() < 0.3:
        files.pop(next(iter(files)))
    if pick.random() < 0.8:
        rows = [(number * 10 + i, f"{number} {i}") for i in range(4)]
        positions = frozenset({pick.randrange(4)} if has_vectors and pick.random() < 0.5 else ())
        files[write_file(lake.folder / "data", COLUMNS, *rows)] = positions
    return files


def check(
    tmp_path: Path,
    seed: int,
    changes: Callable[[Path, int], Iterable[tuple[int, str, str]]],
    *,
    has_vectors: bool,
) -> None:
    """
    Args:
        changes: of a table and a version the id, word and kind of each change.
    """
    pick, files = random.Random(seed), Files()
    lake = ToyLake(tmp_path, has_feed=True)
    for number in range(12):
        files = change(lake, files, number, pick, has_vectors=has_vectors)
        lake.publish(orders=files, lines={})
    lake.deliver()
    lake.check()
    before = Counter[Row]()
    for version in range(12):
        shown = Counter({(row["id"], row["word"]): 1 for row in lake.rows(ORDERS, version + 1)})
        read = Counter[Row]()
        for number, word, kind in changes(lake.table_folder(ORDERS), version):
            read[number, word] += {"insert": 1, "delete": -1}[kind]
        moved = {row: shown[row] - before[row] for row in {*shown, *before} if shown[row] != before[row]}
        assert {row: weight for row, weight in read.items() if weight} == moved, version
        before = shown


@pytest.mark.parametrize("seed", range(2))
def test_deltalake_reads_what_came_and_went(tmp_path: Path, seed: int) -> None:
    """Of whole files: with deletion vectors it reads wrong rows."""

    def changes(folder: Path, version: int) -> Iterable[tuple[int, str, str]]:
        feed = delta_table(folder).load_cdf(starting_version=version, ending_version=version)
        for row in pa.table(feed).to_pylist():
            yield row["id"], row["word"], row["_change_type"]

    check(tmp_path, seed, changes, has_vectors=False)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_what_came_and_went(tmp_path: Path) -> None:
    with DeltaSpark(tmp_path) as spark:

        def changes(folder: Path, version: int) -> Iterable[tuple[int, str, str]]:
            feed = f"table_changes_by_path('{folder}', {version}, {version})"
            for row in spark.sql(f"SELECT id, word, _change_type FROM {feed}"):
                yield row[0], row[1], row[2]

        check(tmp_path, 1, changes, has_vectors=True)


def test_a_feed_begins_and_ends(tmp_path: Path) -> None:
    """With the first version behind the option that has other files. Its feature stays: older versions have
    it."""
    lake = ToyLake(tmp_path)
    seen = []
    for has_feed in (False, True, False):
        lake.has_feed = has_feed
        lake.add()
        lake.deliver()
        log = lake.table_folder(ORDERS) / "_delta_log"
        lines = [json.loads(line) for path in sorted(log.glob("*.json")) for line in path.open()]
        protocol = [line["protocol"] for line in lines if "protocol" in line][-1]
        metadata = [line["metaData"] for line in lines if "metaData" in line][-1]
        is_on = metadata["configuration"].get("delta.enableChangeDataFeed") == "true"
        seen.append((is_on, "changeDataFeed" in protocol["writerFeatures"]))
    assert seen == [(False, False), (True, True), (False, True)]
    lake.check()


def test_other_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="SINK_OPTION_INVALID"):
        open_sink("mirror", "delta-publication", {"folder": str(tmp_path), "changes": "all"})
