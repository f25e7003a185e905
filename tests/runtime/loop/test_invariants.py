"""Invariants: a checkpoint that breaks one is never seen, everybody hears why, corrected data goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from tautochrone.meta import Store
from tautochrone.model.checkpoint import BrokenInvariant, CheckpointState, Consistency
from tautochrone.model.effects import Step
from tautochrone.model.names import TableName
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Invariant
from tautochrone.runtime.job.effects import CountingEffects
from tautochrone.runtime.job.topology import select
from tautochrone.runtime.loop import invariants as invariants
from tautochrone.runtime.loop.checkpoint_loop import Outcome
from tautochrone.runtime.loop.run import Run

pytestmark = pytest.mark.spark

T = TypeVar("T")

SOURCE = """
    from pyspark import pipelines as dp
    from pyspark.sql import SparkSession

    @dp.table
    def payments():
        spark = SparkSession.active()
        return spark.readStream.schema("account STRING, amount BIGINT").json("{source}")
"""
VIEWS = """
    CREATE MATERIALIZED VIEW balances AS
      SELECT account, sum(amount) AS total FROM payments GROUP BY account;
    CREATE MATERIALIZED VIEW named AS SELECT account, owner FROM lake.src.accounts;
"""
LOG = "CREATE STREAMING TABLE log AS SELECT account FROM STREAM payments;"
SOLVENT = """
    -- No account may be overdrawn.
    SELECT account, total FROM balances WHERE total < 0
"""
KNOWN = "SELECT account FROM payments EXCEPT SELECT account FROM named;"


class DiedError(BaseException):
    """A process that dies runs no handler."""


class Dying(CountingEffects):
    """Dies before the first step of a kind."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        if step is self._step:
            raise DiedError(step)
        return super().perform(step, subject, action)


class World:
    """Payments that arrive as files, and a table of accounts that somebody else writes."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.source = folder / "source"
        self.source.mkdir()
        self.pipeline = Pipeline(folder, spark)
        self.pipeline.write("definitions/payments.py", SOURCE.format(source=self.source))
        self.pipeline.write("definitions/views.sql", VIEWS)
        self.pipeline.write("invariants/solvent.sql", SOLVENT)
        self.pipeline.write("invariants/known.sql", KNOWN)
        for statement in (
            "CREATE NAMESPACE IF NOT EXISTS lake.src",
            "CREATE TABLE lake.src.accounts (account STRING, owner STRING) USING iceberg",
            "INSERT INTO lake.src.accounts VALUES ('a', 'Ann'), ('b', 'Bo')",
        ):
            self.sql(statement)

    def pay(self, *payments: tuple[str, int]) -> None:
        number = len(list(self.source.iterdir()))
        lines = [json.dumps({"account": account, "amount": amount}) for account, amount in payments]
        (self.source / f"{number}.json").write_text("\n".join(lines))

    def sql(self, statement: str) -> None:
        self.pipeline.session.sql(statement).collect()

    def run(self) -> Happened:
        return self.pipeline.run()

    def balances(self, consistency: Consistency = Consistency.STRONG) -> list[tuple[object, ...]]:
        return self.pipeline.query("SELECT * FROM balances", consistency=consistency)


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> Iterator[World]:
    project = World(tmp_path, spark)
    yield project
    project.pipeline.close()


def test_a_broken_invariant_keeps_the_old_checkpoint(world: World) -> None:
    world.pay(("a", 5), ("b", 7))
    assert world.run().state == "COMPLETED"

    world.pay(("a", -9))
    happened = world.run()
    assert happened.state == "FAILED"
    (broken,) = happened.of("invariant_broken")
    assert (broken["invariant"], broken["location"], broken["rows"]) == (
        "solvent",
        "invariants/solvent.sql:3",
        1,
    )
    assert broken["sample"] == ['account="a", total="-4"']
    assert "[INVARIANT_BROKEN]" in broken["error"]

    store = world.pipeline.job.store
    newest = store.checkpoints.newest(1)[0]
    assert newest.state is CheckpointState.ABORTED
    assert newest.broken[0].sample == tuple(broken["sample"])
    for consistency in Consistency:
        assert world.balances(consistency) == [("a", 5), ("b", 7)]
        assert world.pipeline.query("SELECT count(*) FROM payments", consistency=consistency) == [(2,)]
        resolution = store.reads.resolve(consistency, lease_ms=0)
        assert all("[INVARIANT_BROKEN]" in resolution.behind[t] for t in world.pipeline.job.graph.order), (
            resolution
        )
    errors = {str(status.dataset): status.error for status in store.datasets.statuses()}
    assert "[INVARIANT_BROKEN]" in str(errors["lake.default.payments"])

    # The process dies just before it gives the checkpoint up: the next one asks again, and says the same.
    world.pay(("b", 1))
    with world.pipeline.opened(Dying(Step.META_ABORT)) as (job, _), pytest.raises(DiedError):
        world.pipeline.execute(job)
    assert world.balances(Consistency.WEAK) == [("a", 5), ("b", 7)]
    assert world.run().of("invariant_broken")[0]["sample"] == broken["sample"]

    # Corrected data goes on from what is committed: nothing is lost, nothing is counted twice.
    world.pay(("a", 10))
    with world.pipeline.opened(Dying(Step.META_PUBLISH)) as (job, _), pytest.raises(DiedError):
        world.pipeline.execute(job)
    assert world.balances(Consistency.WEAK) == [("a", 5), ("b", 7)]
    corrected = world.run()
    assert corrected.state == "COMPLETED"
    assert world.balances() == world.balances(Consistency.WEAK) == [("a", 6), ("b", 8)]
    assert store_of(world).reads.resolve(Consistency.STRONG, lease_ms=0).behind == {}
    assert all(status.error is None for status in store_of(world).datasets.statuses())
    world.pipeline.verify()


def test_only_what_changed_is_asked_and_nothing_spins(world: World) -> None:
    world.pipeline.write("definitions/log.sql", LOG)
    world.pay(("a", 5))
    first = world.run()
    assert first.state == "COMPLETED"
    for dataset in ("balances", "named", "log"):
        (record,) = store_of(world).history.refreshes(TableName.parse(f"lake.default.{dataset}"))
        assert record.refresh is not None
        assert 0 < (record.refresh.cpu_ms or 0) < 60_000
    last_check = store_of(world).invariants.last_check("test")
    assert last_check is not None
    assert set(last_check.definitions) == {"known", "solvent"}

    evaluated: list[str] = []
    evaluate = invariants._evaluate

    def evaluate_and_note(
        definitions: Definitions, invariant: Invariant, *rest: Any
    ) -> BrokenInvariant | None:
        evaluated.append(invariant.name)
        return evaluate(definitions, invariant, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(invariants, "_evaluate", evaluate_and_note)
        # Another new process; only an external table moved, which one of the two reads through a view.
        world.sql("INSERT INTO lake.src.accounts VALUES ('c', 'Cy')")
        assert world.run().state == "COMPLETED"
        assert evaluated == ["known"]

        # An unknown account, in a loop: one number, one question, until something moves.
        world.pay(("d", 1))
        with world.pipeline.opened() as (job, happened):
            run = Run(job, select(job.topology, (), (), everything=False))
            run._begin_run(availableNow=True)
            run._ingestion.wait(Event())
            outcomes = [run._checkpoints.advance() for _ in range(5)]
            assert outcomes == [Outcome.DONE, *[Outcome.NOTHING_NEW] * 4]
            assert evaluated == ["known", "known", "solvent"]
            assert len(happened.of("checkpoint_aborted")) == 1
            assert "known" in str(run.problems)
            world.sql("INSERT INTO lake.src.accounts VALUES ('d', 'Di')")
            assert run._checkpoints.advance() is Outcome.DONE
            assert run.problems == {}
            run._heartbeat.close()
            run._ingestion.stop()
        assert happened.of("checkpoint")[-1]["state"] == "published"
        assert world.balances() == [("a", 5), ("d", 1)]

        # A new invariant is asked although nothing else is new.
        evaluated.clear()
        world.pipeline.write("invariants/small.sql", "SELECT * FROM balances WHERE total > 4")
        with_new_invariant = world.run()
        assert evaluated == ["small"]
        assert with_new_invariant.state == "FAILED"
        assert world.balances() == [("a", 5), ("d", 1)]

    world.pipeline.write("invariants/small.sql", "SELECT 1 / (total - total) FROM balances")
    failed = world.run().of("invariant_broken")[0]
    assert "[INVARIANT_FAILED]" in failed["error"]
    assert "DIVIDE_BY_ZERO" in failed["error"]


def store_of(world: World) -> Store:
    return world.pipeline.job.store
