"""A long day of small commits: what a table costs stays the same however many there were.

Without maintenance every commit leaves a data file, a manifest, a list and a metadata file that names all
snapshots before it.
"""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.lake_conformance import SCHEMA, LakeBench, commit_metadata

from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.model.lake import ChangeKind, Retention, TableDefinition
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.runtime.job.effects import DirectEffects

pytestmark = pytest.mark.spark

EVERY, KEPT, BEHIND = 10, 6, 3


@pytest.mark.slow
@pytest.mark.parametrize("commits", [40, pytest.param(3_000, marks=pytest.mark.timeout(3_600))])
def test_a_day(spark: SparkSession, commits: int) -> None:
    name = TableName("lake", ("day",), f"t_{uuid.uuid4().hex[:8]}")
    table = IcebergLake(spark, "lake", DirectEffects()).create(
        TableDefinition(name=name, schema=SCHEMA), commit_metadata()
    )
    location = spark.sql(f"DESCRIBE EXTENDED {name.sql}").where("col_name = 'Location'").collect()[0][1]
    folder = Path(location.removeprefix("file:"))
    versions: list[Version] = []
    sizes: list[tuple[int, int]] = []
    pinned: Version | None = None
    for number in range(commits):
        fork = table.fork()
        staged = table.stage(fork, LakeBench.frame(spark, number), local=True)
        versions.append(table.commit_staged(fork, [staged], commit_metadata()).version)
        if number == BEHIND:
            pinned = versions[-1]
        if number % EVERY != EVERY - 1:
            continue
        # Somebody is some commits behind, somebody reads one version of the morning all day long.
        follower = versions[-BEHIND - 1]
        fork = table.fork()
        table.compact(fork, commit_metadata(), min_files=EVERY // 2, max_files=500, exclusive=nullcontext())
        assert pinned is not None
        readable = frozenset({pinned, *versions[-KEPT:]})
        table.expire(Retention(readable=readable, followed=frozenset({follower}), after_ms=10**15), Fence(1))
        assert table.change_between(follower, table.current_version()).kind is ChangeKind.APPEND
        change = table.changed_rows(spark, follower, table.current_version())
        assert change.rows == BEHIND
        files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
        sizes.append((len(files), sum(path.stat().st_size for path in files)))
    assert LakeBench.ids(spark, table) == list(range(commits))
    assert pinned is not None
    assert sorted(row["id"] for row in table.read(spark, pinned).collect()) == list(range(BEHIND + 1))
    # Twice what the first rounds needed, and not a file a commit.
    most, bytes_ = 2 * sizes[1][0], 2 * sizes[1][1]
    assert all(count <= most and size <= bytes_ for count, size in sizes), sizes
    read = {row[0] for row in table.read(spark, table.current_version()).select("_file").collect()}
    assert len(read) <= EVERY
