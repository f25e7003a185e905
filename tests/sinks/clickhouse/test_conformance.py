"""The ClickHouse sink over the embedded engine passes the suite of all sinks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sinks.clickhouse.benches import CountingBench, EmbeddedBench, ShardedBench

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


class _Counting:
    @pytest.fixture
    def bench(self, folder: Path) -> Iterator[EmbeddedBench]:
        bench = CountingBench(folder, database=f"test_{next(_databases)}")
        yield bench
        bench.close()


class TestRowsOfCountingClickHouse(_Counting, SinkConformance):
    """What may go wrong with rows; states, owners and lost answers do not depend on how rows are compared."""

    test_operation_in_state = None  # type: ignore[assignment]
    test_recovery_decides_every_state = None  # type: ignore[assignment]
    test_recovery_after_an_operation_broke = None  # type: ignore[assignment]
    test_a_lost_answer_is_asked_again = None  # type: ignore[assignment]
    test_an_older_owner_can_do_nothing = None  # type: ignore[assignment]


@pytest.mark.slow
class TestCountingClickHouse(_Counting, SinkConformance): ...


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
