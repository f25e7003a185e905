"""Every durable step and how a run is led to it. A step that is in neither table fails a test."""

from __future__ import annotations

from collections.abc import Callable

from tautochrone.model.effects import Step
from tautochrone.testing.sqlite_sink import Mishap, SqliteSink

from .faults import Strike
from .world import World

__all__ = ["CHAINS", "ELSEWHERE", "IN_LONG_FORM", "lead_to", "settle"]


def _rows(world: World) -> None:
    world.sources.add()


def _dropped(world: World) -> None:
    # Alone: with one row that stays, the batch would be a version and not only a commit metadata.
    world.run().require_completed()
    world.sources.add_dropped()


def _redefined(world: World) -> None:
    world.sources.add()
    world.sources.widen()


def _broken(world: World) -> None:
    world.sources.add()
    world.sources.break_view(True)


def _replaced(world: World) -> None:
    world.sources.add()
    world.run().require_completed()
    world.sources.touch()


def _folders_wiped(world: World) -> None:
    world.sources.add()
    world.sources.wipe_folders()


def _folders_left(world: World) -> None:
    # A run in order leaves its folders, which are those of an older owner for the next one.
    world.sources.add()
    world.run().require_completed()
    world.sources.add()


def _store_deleted(world: World) -> None:
    world.sources.add()
    world.sources.delete_store()


def _store_swapped(world: World) -> None:
    world.sources.add()
    world.sources.swap_store()


def _table_added(world: World) -> None:
    world.sources.add()
    world.sources.add_root()


def _outside_moved(world: World) -> None:
    world.sources.add()
    world.write_outside((len(world.sources.outside), "more"))
    world.sources.read_outside()


def _left_open(world: World) -> None:
    world.sources.add()
    world.run(Strike(Step.META_OPEN, "after", "crash"))


def _root_added(world: World) -> None:
    # A target whose cut knows nothing of a table that the project has by now cannot be finished.
    world.sources.add()
    world.run(Strike(Step.META_OPEN, "after", "crash"))
    world.sources.add_root()


def _expirable(world: World) -> None:
    # One checkpoint and a few versions of every table may go at each run, also at one that dies of it.
    world.sources.maintain()
    for _ in range(0 if world.published else 2):
        world.sources.add()
        world.run().require_completed()
    world.sources.add()


def _orphaned(world: World) -> None:
    _expirable(world)
    world.sources.orphan()


def _mirrored(world: World) -> None:
    world.sources.mirror()
    world.sources.add()


def _mirror_left(world: World) -> None:
    # A transaction that was begun and has no known end.
    world.sources.mirror()
    world.sources.add()
    world.run(Strike(Step.SINK_WRITE, "after", "crash"))
    world.sources.add()


def _mirror_fails(world: World) -> None:
    _mirrored(world)
    SqliteSink.mishaps[str(world.sources.mirror_file)] = [Mishap.ANSWER_LOST]


def _mirror_loses_a_row(world: World) -> None:
    _mirrored(world)
    SqliteSink.mishaps[str(world.sources.mirror_file)] = [Mishap.ROW_LOST]


def _mirror_dropped(world: World) -> None:
    world.sources.mirror()
    world.sources.add()
    world.run().require_completed()
    world.sources.stop_mirror()
    world.sources.add()


CHAINS: dict[str, dict[Step, Callable[[World], None]]] = {
    "first start": {
        Step.STORAGE_IDENTIFY: _rows,
        Step.META_START: _rows,
        Step.META_TAKE_OVER: _rows,
        Step.LAKE_CREATE: _rows,
        Step.LAKE_FENCE: _rows,
    },
    "ingestion": {
        Step.LAKE_STAGE: _rows,
        Step.INGEST_SOURCE_FILES: _rows,
        Step.LAKE_PREPARE: _rows,
        Step.LAKE_COMMIT: _rows,
        Step.META_REPORT: _rows,
        Step.LAKE_COMMIT_METADATA: _dropped,
    },
    "checkpoint": {
        Step.META_OPEN: _rows,
        Step.META_TAKE: _left_open,
        Step.LAKE_COMMIT_STAGED: _rows,
        Step.META_VERSION: _rows,
        Step.META_PUBLISH: _rows,
        Step.META_OBSERVE: _outside_moved,
        Step.LAKE_TAG: _outside_moved,
    },
    "operations": {
        Step.META_FAILURE: _broken,
        Step.META_DESCRIBE: _redefined,
        Step.LAKE_REDEFINE: _redefined,
        Step.INGEST_FOLDER: _folders_wiped,
        Step.META_SKIPPED_FILES: _replaced,
        Step.INGEST_CLEAN: _folders_left,
        Step.META_REBUILD: _store_deleted,
        Step.META_RECONCILE: _store_swapped,
        Step.META_ABORT: _root_added,
        Step.META_IDENTIFY: _table_added,
    },
    "delivery": {
        Step.META_DELIVERY_RETIRE: _mirror_dropped,
        Step.META_DELIVERY_CLAIM: _mirrored,
        Step.SINK_FENCE: _mirrored,
        Step.SINK_RECOVER: _mirror_left,
        Step.SINK_ENSURE: _mirrored,
        Step.META_DELIVERY_INTEND: _mirrored,
        Step.SINK_BEGIN: _mirrored,
        Step.SINK_WRITE: _mirrored,
        Step.SINK_PREPARE: _mirrored,
        Step.SINK_COMMIT: _mirrored,
        Step.META_DELIVERY_DONE: _mirrored,
        Step.META_DELIVERY_ABORT: _mirror_left,
    },
    "maintenance": {
        Step.META_EXPIRE: _expirable,
        Step.LAKE_COMPACT: _expirable,
        Step.LAKE_EXPIRE: _expirable,
        Step.LAKE_CLEAN: _expirable,
        Step.LAKE_SEAL: _orphaned,
        Step.LAKE_ORPHANS: _orphaned,
    },
}
"""Steps that `taut run` takes, in chains: the run that dies at one step repairs what died before it."""

_TABLES = {
    "first start": ("totals",),
    "ingestion": ("right", "names", "clean"),
    "checkpoint": ("totals", "balance"),
    "operations": ("big",),
    "delivery": (),
    "maintenance": ("totals",),
}
"""What the project of a chain defines beside `events`."""

ELSEWHERE: dict[Step, str] = {
    Step.LAKE_ABORT: "needs a prepared batch whose table moved: test_aborts",
    Step.LAKE_DISCARD: "needs a batch that is refused: test_aborts",
    Step.LAKE_SHORTEN: "only logs with a retention take it: tests/sources/test_log_retention",
    Step.LAKE_FOLLOW: "only views over foreign tables take it: tests/foreign",
    Step.LAKE_ADOPT: "only `taut adopt` takes it: tests/adopt",
    Step.SINK_DROP: "only `taut drop` takes it: tests/runtime/dataset_changes",
    Step.SINK_RENAME: "only `taut rename` takes it: tests/runtime/dataset_changes",
    Step.LAKE_BUILD: "only `taut plan --build` takes it: tests/runtime/planning/test_builds",
    Step.LAKE_APPLY_BUILD: "only `taut apply` leads to it: tests/runtime/planning/test_builds",
    Step.LAKE_DROP_BUILD: "only built plans lead to it: tests/runtime/planning/test_builds",
    Step.META_BUILD: "only `taut plan --build` takes it: tests/runtime/planning/test_builds",
    Step.META_BUILT: "only `taut plan --build` takes it: tests/runtime/planning/test_builds",
    Step.META_APPLY_BUILD: "only `taut apply` takes it: tests/runtime/planning/test_builds",
    Step.META_BUILD_APPLIED: "only `taut apply` leads to it: tests/runtime/planning/test_builds",
    Step.META_DROP_BUILD: "only `taut plan --drop` takes it: tests/runtime/planning/test_builds",
    Step.META_CHANGE: "only `taut drop` and `taut rename` take it: tests/runtime/dataset_changes",
    Step.META_CHANGED: "only `taut drop` and `taut rename` take it: tests/runtime/dataset_changes",
    Step.LAKE_DROP: "only `taut drop` takes it: tests/runtime/dataset_changes",
    Step.LAKE_DELETE: "only `taut drop` takes it: tests/runtime/dataset_changes",
    Step.LAKE_RELEASE: "only `taut drop --keep-table` takes it: tests/runtime/dataset_changes",
    Step.LAKE_RENAME: "only `taut rename` takes it: tests/runtime/dataset_changes",
    Step.INGEST_RENAME: "only `taut rename` takes it: tests/runtime/dataset_changes",
    Step.LAKE_RELOCATE: "only `taut relocate` takes it: tests/relocation",
    Step.LAKE_RELOCATED: "only `taut relocate` takes it: tests/relocation",
    Step.INGEST_RELOCATE: "only `taut relocate` takes it: tests/relocation",
    Step.META_BELONG: "only `taut relocate` and `taut adopt --from-pipeline` take it: tests/relocation",
    Step.LAKE_REVERT: "only `taut revise` takes it: tests/revision",
    Step.META_REVISE: "only `taut revise` takes it: tests/revision",
    Step.META_REVISED: "only `taut revise` takes it: tests/revision",
    Step.META_CONFIRM: "only `taut revise` takes it: tests/revision",
    Step.SOURCE_BEGIN: "only flows over a change log take it: tests/sources/test_toy_database",
    Step.SOURCE_ACKNOWLEDGE: "only flows over a change log take it: tests/sources/test_toy_database",
    Step.SINK_MAINTAIN: "only sinks that keep history take it: tests/sinks/clickhouse/test_folding",
    Step.SINK_SET_ASIDE: "only `taut publish --repair` takes it: tests/sinks/publications/test_repair",
    Step.SINK_ABORT: "needs a row that is lost on its way: test_deliveries",
    Step.META_DELIVERY_FAILED: "needs a sink that fails: test_deliveries",
    Step.LAKE_ROLL_BACK: "an operator's act through the port: test_folders, test_zombies",
}


_OVER_LISTS = "tests/runtime/delivery/test_delivery dies there, over a lake of lists"
IN_LONG_FORM = {
    Step.LAKE_STAGE: "nothing durable came since the takeover",
    Step.META_OPEN: "nothing durable came since META_REPORT, before which CI dies",
    Step.META_DESCRIBE: "only people read it; CI dies before LAKE_REDEFINE of the same change",
    Step.META_OBSERVE: "nothing durable of it came since the table moved; CI dies before LAKE_TAG",
    Step.SINK_RECOVER: _OVER_LISTS,
    Step.SINK_ENSURE: _OVER_LISTS,
    Step.META_DELIVERY_INTEND: _OVER_LISTS,
    Step.SINK_WRITE: _OVER_LISTS,
    Step.SINK_PREPARE: _OVER_LISTS,
}
"""Steps of the chains before which no run dies in CI, with the reason."""


def lead_to(world: World, chain: str, step: Step) -> None:
    """Change the world so that the next run takes `step`."""
    settle(world)
    if not world.sources.events:
        world.sources.define_only(*_TABLES[chain])
    if chain == "operations" and not world.published:
        # These need tables that were built before.
        world.sources.add()
        world.run().require_completed()
    CHAINS[chain][step](world)


def settle(world: World) -> None:
    """Take back what would make a run fail on purpose."""
    if world.sources.defines("big"):
        world.sources.break_view(False)
