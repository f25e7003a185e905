"""What `taut diff` says of two checkpoints is what plain Spark says of their rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

import tautochrone.app.launch
import tautochrone.app.open
from tautochrone.cli.main import main
from tautochrone.errors import CheckpointUnavailableError, MetaError
from tautochrone.runtime.delivery.differences import TableDifference, differences, first_rows

pytestmark = pytest.mark.spark

VIEWS = """
CREATE MATERIALIZED VIEW copies AS SELECT id, k FROM src.t;
CREATE MATERIALIZED VIEW totals AS
SELECT k, count(*) AS n, CAST(sum(id) AS STRING) AS s FROM src.t GROUP BY k;
CREATE MATERIALIZED VIEW fixed AS SELECT 1 AS number;
"""
PAIRS = [*combinations(range(1, 6), 2), (5, 1), (3, 2), (2, 2)]


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Five checkpoints: rows are added, updated and removed; `totals` gets a column; a view comes."""
    pipeline = Pipeline(tmp_path_factory.mktemp("diff"), spark)
    sql = pipeline.session.sql
    sql("CREATE NAMESPACE IF NOT EXISTS lake.src")
    sql("CREATE TABLE lake.src.t (id BIGINT, k BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    sql("INSERT INTO lake.src.t SELECT id, id % 5 FROM range(1500)")
    pipeline.write("definitions/v.sql", VIEWS)
    pipeline.run()
    sql("INSERT INTO lake.src.t VALUES (7, 2), (7, 2), (5000, 9), (NULL, NULL)")
    pipeline.run()
    sql("UPDATE lake.src.t SET k = 3 WHERE id IN (1, 2, 4)")
    sql("DELETE FROM lake.src.t WHERE id = 7")
    pipeline.run()
    pipeline.write("definitions/v.sql", VIEWS.replace("AS s FROM", "AS s, max(id) AS m FROM"))
    pipeline.reload()
    pipeline.run()
    pipeline.write("definitions/more.sql", "CREATE MATERIALIZED VIEW more AS SELECT k FROM totals")
    sql("DELETE FROM lake.src.t WHERE k = 9")
    pipeline.reload()
    pipeline.run()
    yield pipeline
    pipeline.close()


def compared(pipeline: Pipeline, old: int, new: int, *names: str) -> dict[str, TableDifference]:
    job = pipeline.job
    all_compared = differences(job.store, job.lake, pipeline.session, old, new, names)
    return {difference.table.table: difference for difference in all_compared}


def rows_at(pipeline: Pipeline, number: int, table: str, columns: str = "*") -> Counter[tuple[Any, ...]]:
    rows = pipeline.reader.sql(f"SELECT {columns} FROM {table}", checkpoint=number).collect()
    return Counter(map(tuple, rows))


def as_rows(rows: Any) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def test_every_pair_of_checkpoints(history: Pipeline) -> None:
    for old, new in PAIRS:
        by_name = compared(history, old, new)
        assert old != new or not by_name
        for name in ("copies", "totals", "src.t"):
            difference = by_name.get(name.rpartition(".")[2])
            with_column = name == "totals" and max(old, new) >= 4
            if with_column and min(old, new) < 4:
                assert difference is not None
                assert ("m",) in (difference.columns_added, difference.columns_removed)
                continue
            before, after = (rows_at(history, number, name) for number in (old, new))
            if difference is None:
                assert before == after, (old, new, name)
                continue
            sides = [
                Counter() if rows is None else as_rows(first_rows(rows, 10_000))
                for rows in (difference.added, difference.removed)
            ]
            assert sides == [after - before, before - after], (old, new, name)
            counts = [difference.rows_added, difference.rows_removed]
            assert counts == [side.total() for side in sides]
            assert difference.reason is None
        assert "fixed" not in by_name


def test_a_table_of_one_side_only(history: Pipeline) -> None:
    rows = sum(rows_at(history, 5, "more").values())
    assert [compared(history, 4, 5)["more"].rows_added, compared(history, 5, 4)["more"].rows_removed] == [
        rows
    ] * 2
    assert compared(history, 5, 4)["more"].rows_added == 0


def test_keys_of_changed_rows(history: Pipeline) -> None:
    difference = compared(history, 2, 3, "copies")["copies"]
    assert (difference.rows_added, difference.rows_removed) == (3, 6)
    assert [difference.changed_keys(["id"]), difference.changed_keys(["id", "k"])] == [3, 0]


def test_only_files_that_changed_are_read(history: Pipeline) -> None:
    history.session.sparkContext.setJobGroup("differences", "")
    assert compared(history, 2, 3, "copies")["copies"].rows_added == 3
    assert not history.session.sparkContext.statusTracker().getJobIdsForGroup("differences")


def test_what_cannot_be_asked(history: Pipeline) -> None:
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_NOT_FOUND"):
        compared(history, 1, 99)
    with pytest.raises(MetaError, match="DATASET_NOT_FOUND"):
        compared(history, 1, 2, "nothing")
    owners = {pin.owner for pin in history.job.store.pins.live()}
    assert "diff" not in owners
    (same,) = compared(history, 1, 2, "lake.default.FIXED").values()
    assert same.is_same


def test_command(
    history: Pipeline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    class Opened(SimpleNamespace):
        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *_: object) -> None: ...

    job = history.job
    opened = Opened(store=lambda: job.store, lake=job.lake, base=history.session)
    monkeypatch.setattr(tautochrone.app.launch, "locate_and_launch", lambda *_, **__: None)
    monkeypatch.setattr(tautochrone.app.open, "Project", lambda *_, **__: opened)

    def taut(*arguments: str) -> tuple[int, str]:
        status = main(["diff", *arguments])
        return status, capsys.readouterr().out

    status, text = taut("2", "3", "copies", "--rows", "2", "--key", "id", "--parquet", str(tmp_path / "out"))
    assert status == 0
    assert text.splitlines()[2].split() == ["lake.default.copies", "3", "6", "3"]
    assert "+ lake.default.copies" in text
    added = pq.read_table(tmp_path / "out" / "lake.default.copies.added.parquet")
    assert as_rows(added) == rows_at(history, 3, "copies") - rows_at(history, 2, "copies")
    status, text = taut("3", "4", "totals", "--json", "--rows", "1")
    line = json.loads(text)
    assert (line["columns_added"], line["reason_code"]) == (["m"], "CHANGES_UNKNOWN")
    assert len(line["rows_added"]) == 1
    assert taut("1", "1", "--exit-code") == (0, "no table differs\n")
    assert taut("1", "2", "--exit-code")[0] == 1
    # Of all tables some have no such column; one that is named must.
    status, text = taut("3", "4", "--key", "k", "--json")
    changed = {line["table"]: line["changed"] for line in map(json.loads, text.splitlines())}
    assert changed["lake.default.totals"] == 6
    assert {
        json.loads(line)["changed"] for line in taut("2", "3", "--key", "id", "--json")[1].splitlines()
    } == {3, None}
    assert main(["diff", "1", "2", "copies", "--key", "x"]) == 1
    assert "UNRESOLVED_COLUMN" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["diff", "1", "2", "--rows", "-1"])
    capsys.readouterr()
    assert main(["diff", "2", "3", "copies", "--key", "x"]) == 1
    assert "UNRESOLVED_COLUMN" in capsys.readouterr().err
    assert pa.types.is_int64(added.schema.field("id").type)
