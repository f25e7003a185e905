"""The durable steps of the system, by name, the function through which each is taken, and what a commit
survives.

A step is whatever survives the process: a catalog commit, a file, a row of the store. Code that
takes one calls `perform(step, subject, action)`; its implementation (`runtime.job.effects`) counts
the steps and lets the crash suite kill the process before or after any of them, or lose an answer.
A step that is not listed here cannot be taken, so the suite cannot miss it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol, TypeVar

__all__ = ["Durability", "Effects", "Step"]


class Durability(StrEnum):
    """What a commit survives."""

    PROCESS = "process"
    """The end of any process. A power cut may take or tear the files of the last half minute."""
    POWER_LOSS = "power_loss"
    """A power cut too, for tables on local disks of this machine."""


T = TypeVar("T")


class Step(StrEnum):
    """Every durable step. The value is `<where>.<what>`."""

    LAKE_CREATE = "lake.create"
    LAKE_STAGE = "lake.stage"
    LAKE_PREPARE = "lake.prepare"
    LAKE_COMMIT = "lake.commit"
    LAKE_COMMIT_STAGED = "lake.commit_staged"
    LAKE_COMMIT_METADATA = "lake.commit_metadata"
    LAKE_FENCE = "lake.fence"
    LAKE_ABORT = "lake.abort"
    LAKE_DISCARD = "lake.discard"
    LAKE_ROLL_BACK = "lake.roll_back"
    LAKE_REVERT = "lake.revert"
    LAKE_TAG = "lake.tag"
    LAKE_REDEFINE = "lake.redefine"
    LAKE_BUILD = "lake.build"
    LAKE_APPLY_BUILD = "lake.apply_build"
    LAKE_DROP_BUILD = "lake.drop_build"
    LAKE_FOLLOW = "lake.follow"
    LAKE_EXPIRE = "lake.expire"
    LAKE_CLEAN = "lake.clean"
    LAKE_COMPACT = "lake.compact"
    LAKE_SHORTEN = "lake.shorten"
    LAKE_SEAL = "lake.seal"
    LAKE_ORPHANS = "lake.orphans"
    LAKE_ADOPT = "lake.adopt"
    LAKE_DROP = "lake.drop"
    LAKE_DELETE = "lake.delete"
    LAKE_RELEASE = "lake.release"
    LAKE_RENAME = "lake.rename"
    LAKE_RELOCATE = "lake.relocate"
    LAKE_RELOCATED = "lake.relocated"
    STORAGE_IDENTIFY = "storage.identify"
    INGEST_SOURCE_FILES = "ingest.source_files"
    INGEST_FOLDER = "ingest.folder"
    INGEST_CLEAN = "ingest.clean"
    INGEST_RENAME = "ingest.rename"
    INGEST_RELOCATE = "ingest.relocate"
    SOURCE_BEGIN = "source.begin"
    SOURCE_ACKNOWLEDGE = "source.acknowledge"
    META_START = "meta.start"
    META_TAKE_OVER = "meta.take_over"
    META_DESCRIBE = "meta.describe"
    META_REPORT = "meta.report"
    META_OBSERVE = "meta.observe"
    META_OPEN = "meta.open"
    META_TAKE = "meta.take"
    META_VERSION = "meta.version"
    META_FAILURE = "meta.failure"
    META_PUBLISH = "meta.publish"
    META_ABORT = "meta.abort"
    META_REBUILD = "meta.rebuild"
    META_SKIPPED_FILES = "meta.skipped_files"
    META_RECONCILE = "meta.reconcile"
    META_IDENTIFY = "meta.identify"
    META_EXPIRE = "meta.expire"
    META_REVISE = "meta.revise"
    META_REVISED = "meta.revised"
    META_CONFIRM = "meta.confirm"
    META_CHANGE = "meta.change"
    META_CHANGED = "meta.changed"
    META_BUILD = "meta.build"
    META_BUILT = "meta.built"
    META_APPLY_BUILD = "meta.apply_build"
    META_BUILD_APPLIED = "meta.build_applied"
    META_DROP_BUILD = "meta.drop_build"
    META_BELONG = "meta.belong"
    META_DELIVERY_CLAIM = "meta.delivery_claim"
    META_DELIVERY_RETIRE = "meta.delivery_retire"
    META_DELIVERY_INTEND = "meta.delivery_intend"
    META_DELIVERY_DONE = "meta.delivery_done"
    META_DELIVERY_FAILED = "meta.delivery_failed"
    META_DELIVERY_ABORT = "meta.delivery_abort"
    SINK_FENCE = "sink.fence"
    SINK_RECOVER = "sink.recover"
    SINK_ENSURE = "sink.ensure"
    SINK_BEGIN = "sink.begin"
    SINK_WRITE = "sink.write"
    SINK_PREPARE = "sink.prepare"
    SINK_COMMIT = "sink.commit"
    SINK_ABORT = "sink.abort"
    SINK_MAINTAIN = "sink.maintain"
    SINK_DROP = "sink.drop"
    SINK_RENAME = "sink.rename"
    SINK_SET_ASIDE = "sink.set_aside"


class Effects(Protocol):
    """Takes durable steps. `subject` names what a step changes, usually a table."""

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T: ...
