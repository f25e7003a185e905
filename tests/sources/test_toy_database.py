"""A database is captured: at every checkpoint the tables are a state that it had, whatever crashes.

A process is killed at every durable step: in this process, and in the slow form as a real process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Strike, StrikingEffects
from tests.support.crash import Taut, fault

from tautochrone.errors import FencedError, MetaError, SettingsError, SourceUnreachableError
from tautochrone.meta import MetaStore
from tautochrone.model import limits
from tautochrone.model.effects import Step
from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.model.reason import ReasonCode
from tautochrone.runtime.loop.run import RunState
from tautochrone.runtime.merges import keyed_apply
from tautochrone.runtime.revision.plan import RevisionRequest
from tautochrone.runtime.revision.revise import revise, survey
from tautochrone.testing.toy_database import ToyChangeLog

from .bank import Attempt, Bank

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(1200)]

IN_THE_BULK = (
    Step.SOURCE_BEGIN,
    Step.LAKE_STAGE,
    Step.LAKE_PREPARE,
    Step.LAKE_COMMIT,
    Step.META_REPORT,
    Step.SOURCE_ACKNOWLEDGE,
)
"""What a run does for each chunk and batch. The first runs of a bank take them while they copy."""

OF_A_CHECKPOINT = (
    Step.META_OPEN,
    Step.LAKE_COMMIT_STAGED,
    Step.META_VERSION,
    Step.META_PUBLISH,
)


@pytest.fixture(scope="module")
def followed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """A bank whose copy is complete, for tests that leave it in order."""
    bank = Bank.make(spark, tmp_path_factory.mktemp("followed") / "bank")
    bank.run().require_completed()
    return bank


@contextmanager
def busy(bank: Bank, times: int = 12) -> Iterator[None]:
    """The database is written to between all that is read of it, so many times."""
    left = times

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            if left > 0:
                left -= 1
                bank.work(1)
            return call(*arguments, **named)

        return wrapped

    chunk, batch = ToyChangeLog.read_chunk, ToyChangeLog.read
    with (
        patch.object(ToyChangeLog, "read_chunk", before(chunk)),
        patch.object(ToyChangeLog, "read", before(batch)),
    ):
        yield


def test_tables_are_states_of_the_database(bank: Bank) -> None:
    with busy(bank):
        bank.run().require_completed()
    bank.work()
    with patch.object(keyed_apply, "added_rows", wraps=keyed_apply.added_rows) as added_rows:
        attempt = bank.run()
    attempt.require_completed()
    assert added_rows.call_count == 1, "three tables take the same rows of the log"
    modes = {event["dataset"].rpartition(".")[2]: event["mode"] for event in attempt.named("refresh")}
    assert modes["accounts"] == modes["savings"] == "incremental"
    assert _steps_of_spark(attempt, "accounts") == {}
    bank.work()
    with patch.object(limits, "MAX_DRIVER_ROWS", 0), patch.object(limits, "MAX_DRIVER_LOOKUP_FILES", 0):
        attempt = bank.run()
    attempt.require_completed()
    assert _steps_of_spark(attempt, "accounts") == {
        "events": ReasonCode.MANY_EVENTS,
        "stored rows of keys": ReasonCode.KEYS_IN_MANY_FILES,
    }
    bank.check()


def _steps_of_spark(attempt: Attempt, table: str) -> dict[str, str]:
    """The steps of a refresh that Spark did because the driver could not, with the codes of the reasons."""
    (refresh,) = [event for event in attempt.named("refresh") if event["dataset"].endswith(f".{table}")]
    apply, *steps = refresh["nodes"]
    assert (apply["node"], apply["reason_code"]) == ("apply", ReasonCode.EVENTS_MERGED)
    assert all(step["reason"] in str(refresh["reason"]) for step in steps)
    return {step["node"]: step["reason_code"] for step in steps}


def test_tables_without_their_bulk_wait(bank: Bank) -> None:
    def stop(log: ToyChangeLog, relation: str, chunk: str) -> Any:
        if relation == "savings":
            raise RuntimeError("the copy does not get this far")
        return read_chunk(log, relation, chunk)

    read_chunk = ToyChangeLog.read_chunk
    with patch.object(ToyChangeLog, "read_chunk", stop):
        attempt = bank.run()
    assert attempt.state is RunState.FAILED
    assert [event["flow"] for event in attempt.named("flow_failed")] == ["bank_log"]
    assert not attempt.named("refresh_failed"), attempt.describe()
    waiting = {event["dataset"].rpartition(".")[2] for event in attempt.named("refresh_waiting")}
    assert waiting == {"savings", "transfers", "total"}
    assert {name for name, mode in bank.modes().items() if mode == "waiting"} == waiting
    bank.work()
    bank.run().require_completed()
    bank.check()


@pytest.mark.parametrize(
    ("steps", "when"),
    [
        # CI dies before the others in `test_log_retention` and `crash/test_steps`.
        ((Step.SOURCE_BEGIN, Step.LAKE_COMMIT, Step.SOURCE_ACKNOWLEDGE), "before"),
        *(pytest.param(IN_THE_BULK, when, marks=pytest.mark.slow) for when in ("before", "after")),
    ],
    ids=["some-before", "before", "after"],
)
def test_crashes_in_the_bulk(bank: Bank, steps: Sequence[Step], when: str) -> None:
    with busy(bank, 40):
        for step in steps:
            bank.run(Strike(step, when, "crash"))
    bank.work()
    bank.run().require_completed()
    bank.check()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashes_in_the_tail(bank: Bank, when: str) -> None:
    bank.run().require_completed()
    for step in (*IN_THE_BULK[1:], *OF_A_CHECKPOINT):
        bank.work()
        bank.run(Strike(step, when, "crash"))
    bank.work()
    bank.run().require_completed()
    bank.check()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_crashes_at_every_occurrence(bank: Bank, when: str) -> None:
    """Every step that a run takes at all, each time that it takes it."""
    seen = bank.run().effects.seen
    bank.work()
    seen |= bank.run().effects.seen
    for step in sorted(seen):
        for nth in range(1, 10):
            bank.work()
            attempt = bank.run(Strike(step, when, "crash", nth), reached=False)
            if not attempt.effects.struck:
                break
    bank.work()
    bank.run().require_completed()
    bank.check()


@pytest.mark.slow
@pytest.mark.parametrize("step", [Step.LAKE_COMMIT, Step.SOURCE_ACKNOWLEDGE])
def test_lost_answers(followed: Bank, step: Step) -> None:
    bank = followed
    bank.work()
    bank.run(Strike(step, "after", "lose"))
    bank.work()
    bank.run().require_completed()
    bank.check()


def test_source_that_does_not_answer_fails_before_the_commit(
    followed: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = followed

    def lag(*_: object) -> dict[str, int]:
        raise SourceUnreachableError("TOY_NOT_REACHABLE", "the database does not answer")

    bank.work()
    with monkeypatch.context() as patched:
        patched.setattr(ToyChangeLog, "lag", lag)
        attempt = bank.run()
    assert attempt.state is RunState.FAILED
    assert Step.LAKE_COMMIT not in attempt.effects.seen
    bank.run().require_completed()
    bank.check()


def test_a_run_that_lost_its_job_acknowledges_nothing(followed: Bank) -> None:
    """Another one takes the job over between the commit and the acknowledgement."""
    bank = followed
    bank.work()
    perform = StrikingEffects.perform

    def taken_over(effects: StrikingEffects, step: Step, subject: str, action: Callable[[], Any]) -> Any:
        if step is Step.SOURCE_ACKNOWLEDGE and effects.seen[Step.LAKE_COMMIT]:
            with MetaStore.open(f"sqlite:///{bank.folder}/storage/meta.db") as store:
                store.jobs.take_over("bank", lease_ms=0)
        return perform(effects, step, subject, action)

    before = max(bank.database.points_acknowledged_by_reader)
    with patch.object(StrikingEffects, "perform", taken_over):
        attempt = bank.run()
    assert isinstance(attempt.error, FencedError), attempt.describe()
    assert max(bank.database.points_acknowledged_by_reader) == before
    bank.run(takeover=True).require_completed()
    assert max(bank.database.points_acknowledged_by_reader) > before
    bank.check()


@pytest.mark.slow
def test_zombie_acknowledges_nothing(bank: Bank, tmp_path: Path) -> None:
    """It sleeps between its commit and the acknowledgement, while another process takes over."""
    taut = Taut(bank.folder, tmp_path)
    bank.run().require_completed()
    bank.work()
    with (
        patch.dict(os.environ, TAUTOCHRONE_LEASE="1h"),
        taut.start(fault=fault(Step.SOURCE_ACKNOWLEDGE, "before", "pause", nth=2)) as zombie,
    ):
        zombie.wait_until_stopped()
        bank.work()
        refused = bank.run()
        assert isinstance(refused.error, MetaError), refused.describe()
        bank.run(takeover=True).require_completed()
        acknowledged = bank.database.points_acknowledged_by_reader
        zombie.resume()
        over = zombie.wait()
        assert over.status == 1, over.describe()
        assert "JOB_FENCED" in over.stderr + over.describe()
        assert bank.database.points_acknowledged_by_reader == acknowledged
    bank.work()
    bank.run().require_completed()
    bank.check()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_kills(bank: Bank, tmp_path: Path, when: str) -> None:
    taut = Taut(bank.folder, tmp_path)
    for step in (*IN_THE_BULK, *OF_A_CHECKPOINT):
        bank.work()
        taut.killed(fault(step, when, "kill"))
        bank.require_acknowledged_is_durable()
    bank.work()
    bank.run().require_completed()
    bank.check()


def test_lost_log_stops_the_flow_until_a_full_refresh(followed: Bank) -> None:
    bank = followed
    bank.database.lose_log()
    bank.work()
    attempt = bank.run()
    assert attempt.state is RunState.FAILED
    assert "SOURCE_LOG_LOST" in attempt.named("flow_failed")[0]["error"]
    bank.run(full=True).require_completed()
    bank.check()


def test_a_revision_does_not_read_the_log_of_a_database_again(bank: Bank) -> None:
    bank.run().require_completed()
    bank.work()
    bank.run().require_completed()
    log, accounts = (TableName("lake", ("default",), table) for table in ("bank_log", "accounts"))
    with bank.open(StrikingEffects(), lambda _event: None) as project:
        job = project.job()
        first = CheckpointNumber(1)
        with pytest.raises(MetaError) as refused:
            survey(job, RevisionRequest(named=(log,), to=first, read_again=True))
        assert refused.value.error_class == "REVISION_NOT_REPLAYABLE"
        assert "name them instead" in str(refused.value.hint)
        request = RevisionRequest(named=(accounts,), to=first)
        revise(job, request, survey(job, request))
    bank.run().require_completed()
    bank.check()


@pytest.mark.slow
def test_batches_are_bounded_by_the_setting(bank: Bank) -> None:
    bank.run().require_completed()
    bank.set("[flows.bank_log]\nmax_events_per_trigger = 4")
    bank.work(4)
    attempt = bank.run()
    attempt.require_completed()
    # A transfer is a transaction of three events: two of them bring a batch to the bound.
    assert [event["rows"] for event in attempt.named("batch")] == [6, 6]


def test_limits_of_other_sources_are_refused(bank: Bank) -> None:
    bank.set("[flows.bank_log]\nmax_offsets_per_trigger = 4")
    attempt = bank.run()
    assert isinstance(attempt.error, SettingsError), attempt.describe()
    assert attempt.error.error_class == "RATE_LIMIT_NOT_SUPPORTED"
    assert "change logs take max_events_per_trigger" in str(attempt.error.hint)
    bank.set("")
