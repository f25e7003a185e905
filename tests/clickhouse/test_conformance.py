"""The ClickHouse sink over the embedded engine passes the suite of all sinks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clickhouse.benches import CountingBench, EmbeddedBench, ShardedBench

from tautochrone.testing.sink_conformance import SinkConformance
from tautochrone.testing.sink_contents_conformance import SinkContentsConformance

_databases = iter(range(1_000_000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("clickhouse")
    # The engine stays up for the module: each test has a database of its own.
    keeper = EmbeddedBench(folder)
    yield folder
    keeper.close()


class TestEmbeddedClickHouse(SinkConformance):
    @pytest.fixture
    def bench(self, folder: Path) -> Iterator[EmbeddedBench]:
        bench = EmbeddedBench(folder, database=f"test_{next(_databases)}")
        yield bench
        bench.close()


class TestCountingClickHouse(SinkConformance):
    @pytest.fixture
    def bench(self, folder: Path) -> Iterator[EmbeddedBench]:
        bench = CountingBench(folder, database=f"test_{next(_databases)}")
        yield bench
        bench.close()


@pytest.mark.slow
class TestShardedClickHouse(SinkConformance):
    @pytest.fixture
    def bench(self, folder: Path) -> Iterator[ShardedBench]:
        bench = ShardedBench(folder, database=f"test_{next(_databases)}")
        yield bench
        bench.close()


class TestContentsOfEmbeddedClickHouse(SinkContentsConformance):
    @pytest.fixture
    def bench(self, folder: Path) -> Iterator[EmbeddedBench]:
        bench = EmbeddedBench(folder, database=f"test_{next(_databases)}")
        yield bench
        bench.close()


class TestContentsOfShardedClickHouse(SinkContentsConformance):
    @pytest.fixture
    def bench(self, folder: Path) -> Iterator[ShardedBench]:
        bench = ShardedBench(folder, database=f"test_{next(_databases)}")
        yield bench
        bench.close()
