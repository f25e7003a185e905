"""The ClickHouse sink over the embedded engine passes the suite of all sinks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.sinks.benches import FewRefusals
from tests.sinks.clickhouse.benches import CountingBench, EmbeddedBench, ShardedBench
from tests.sinks.observation import RefusesToWrite

from tautochrone.errors import SinkFencedError
from tautochrone.model.names import Fence
from tautochrone.model.sink import Sink
from tautochrone.testing.sink_conformance import ORDERS, SinkConformance
from tautochrone.testing.sink_contents_conformance import SinkContentsConformance

_databases = iter(range(1_000_000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("clickhouse")
    # The engine stays up for the module: each test has a database of its own.
    keeper = EmbeddedBench(folder)
    yield folder
    keeper.close()


class TestEmbeddedClickHouse(FewRefusals):
    @pytest.fixture
    def bench(self, folder: Path) -> Iterator[EmbeddedBench]:
        bench = EmbeddedBench(folder, database=f"test_{next(_databases)}")
        yield bench
        bench.close()


class TestObservedClickHouse(RefusesToWrite):
    @pytest.fixture
    def bench(self, folder: Path) -> Iterator[EmbeddedBench]:
        bench = EmbeddedBench(folder, database=f"test_{next(_databases)}")
        yield bench
        bench.close()

    def test_a_dropped_view_is_left_to_the_owner(self, bench: EmbeddedBench, delivered: Sink) -> None:
        bench.reader.run(f"DROP VIEW {bench.options.database}.shop__orders SYNC")
        before = bench.objects()
        with closing(bench.observe()) as observed:
            assert observed.changed_tables((ORDERS,), 100).keys() == {ORDERS}
        # Neither somebody who opened the sink to write, nor an older owner.
        assert bench.open().changed_tables((ORDERS,), 100).keys() == {ORDERS}
        assert bench.objects() == before
        bench.open().fence(Fence(2))
        with pytest.raises(SinkFencedError):
            delivered.changed_tables((ORDERS,), 100)
        delivered = bench.open()
        delivered.fence(Fence(2))
        before = bench.objects()
        assert not delivered.changed_tables((ORDERS,), 100)
        assert bench.objects() != before


class _Counting:
    @pytest.fixture
    def bench(self, folder: Path) -> Iterator[EmbeddedBench]:
        bench = CountingBench(folder, database=f"test_{next(_databases)}")
        yield bench
        bench.close()


class TestRowsOfCountingClickHouse(_Counting, SinkConformance):
    """What may go wrong with rows; nothing else depends on how rows are compared."""

    test_a_new_sink_shows_nothing = None  # type: ignore[assignment]
    test_nothing_is_seen_before_the_commit = None  # type: ignore[assignment]
    test_a_checkpoint_without_changes_moves_the_pointer = None  # type: ignore[assignment]
    test_ensure_adds_columns_and_keeps_rows = None  # type: ignore[assignment]
    test_a_lower_fence_is_refused = None  # type: ignore[assignment]
    test_an_audit_of_an_unknown_checkpoint_is_refused = None  # type: ignore[assignment]
    test_operation_in_state = None  # type: ignore[assignment]
    test_recovery_decides_every_state = None  # type: ignore[assignment]
    test_recovery_after_an_operation_broke = None  # type: ignore[assignment]
    test_a_lost_answer_is_asked_again = None  # type: ignore[assignment]
    test_an_older_owner_can_do_nothing = None  # type: ignore[assignment]


@pytest.mark.slow
class TestCountingClickHouse(_Counting, SinkConformance): ...


class _Sharded:
    @pytest.fixture
    def bench(self, folder: Path) -> Iterator[ShardedBench]:
        bench = ShardedBench(folder, database=f"test_{next(_databases)}")
        yield bench
        bench.close()


@pytest.mark.slow
class TestShardedClickHouse(_Sharded, SinkConformance, SinkContentsConformance): ...


class TestContentsOfEmbeddedClickHouse(SinkContentsConformance):
    @pytest.fixture
    def bench(self, folder: Path) -> Iterator[EmbeddedBench]:
        bench = EmbeddedBench(folder, database=f"test_{next(_databases)}")
        yield bench
        bench.close()


class TestContentsOfShardedClickHouse(_Sharded, SinkContentsConformance):
    """The base of a transaction is compared by every server as by a single one. A rebuild that breaks off at
    its commit on several servers goes through all that others do."""

    test_other_columns_rebuild_one_table_at_the_commit = None  # type: ignore[assignment]
    test_a_rebuild_that_is_given_up_leaves_the_older_table = None  # type: ignore[assignment]
    test_a_rebuild_that_died_before_its_commit = None  # type: ignore[assignment]
    test_a_transaction_from_another_base_does_not_begin = None  # type: ignore[assignment]
    test_a_new_sink_shows_no_base = None  # type: ignore[assignment]
