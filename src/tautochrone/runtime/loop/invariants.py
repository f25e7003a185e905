"""Checking invariants over the versions of an open checkpoint, before the job publishes its part. Only reads.

An invariant is evaluated again only if a version of its tables differs from those at which it last held. The
store remembers that with the checkpoint, so it survives a restart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import DefinitionError
from tautochrone.meta import Store
from tautochrone.model import limits
from tautochrone.model.checkpoint import BrokenInvariant, InvariantEntry
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.graph import Invariant
from tautochrone.runtime.refresh.sessions import CheckpointViews
from tautochrone.spark.analysis.current_time import with_fixed_time
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.jvm_liveness import require_live_jvm

__all__ = ["Checked", "check_invariants", "invariant_entries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The outcome of a job's invariants at a checkpoint.

    Attributes:
        satisfied: those that hold, with their definitions.
        broken: those that do not.
        skipped: those that could not be evaluated, with the reason.
    """

    satisfied: Mapping[str, str] = field(default_factory=dict)
    broken: tuple[BrokenInvariant, ...] = ()
    skipped: Mapping[str, Reason] = field(default_factory=dict)


def invariant_entries(invariants: Sequence[Invariant]) -> list[InvariantEntry]:
    """Invariants as the topology records them."""
    return [
        InvariantEntry(
            name=invariant.name,
            location=str(invariant.query.flow.location),
            definition=invariant.query.fingerprint,
            tables=invariant.tables,
        )
        for invariant in invariants
    ]


def check_invariants(
    invariants: Sequence[Invariant],
    views: CheckpointViews,
    store: Store,
    job: str,
    session: SparkSession,
    versions: Mapping[TableName, Version],
) -> Checked:
    """Evaluate each invariant whose tables changed since it last held.

    Args:
        invariants: those that the job checks.
        views: those that their queries read.
        store: knows when they last held.
        job: the job's name.
        session: shows the lake at the checkpoint.
        versions: of every table and clock at the checkpoint, without tables that failed.
    """
    last = store.invariants.last_check(job) if invariants else None
    last_versions = {} if last is None else store.checkpoints.versions_at(last.checkpoint)
    last_definitions = {} if last is None else last.definitions
    satisfied: dict[str, str] = {}
    broken: list[BrokenInvariant] = []
    skipped: dict[str, Reason] = {}
    for invariant in invariants:
        definition = invariant.query.fingerprint
        missing = sorted(str(table) for table in invariant.tables if table not in versions)
        if missing:
            skipped[invariant.name] = Reason.of(ReasonCode.NO_VERSION_AT_CHECKPOINT, table=missing[0])
            continue
        same_definition = last_definitions.get(invariant.name) == definition
        if same_definition and not _is_changed(invariant, last_versions, versions):
            satisfied[invariant.name] = definition
            continue
        violation = _evaluate(views, invariant, session, versions)
        if violation is None:
            satisfied[invariant.name] = definition
        else:
            broken.append(violation)
    return Checked(satisfied=satisfied, broken=tuple(broken), skipped=skipped)


def _is_changed(
    invariant: Invariant, old: Mapping[TableName, Version], new: Mapping[TableName, Version]
) -> bool:
    if invariant.query.inputs.unversioned:
        # What has no versions may have changed at any time.
        return True
    return any(old.get(table) != new[table] for table in invariant.tables)


def _evaluate(
    views: CheckpointViews,
    invariant: Invariant,
    session: SparkSession,
    versions: Mapping[TableName, Version],
) -> BrokenInvariant | None:
    flow, location = invariant.query.flow, str(invariant.query.flow.location)
    try:
        views.prepare(session, invariant.query.views, versions)
        rows = _as_text(with_fixed_time(flow.evaluate(session), versions))
        sample = rows.limit(limits.INVARIANT_SAMPLE_ROWS + 1).collect()
        if not sample:
            return None
        # Few rows were collected completely: they need not be counted by another query.
        count = len(sample)
        if count > limits.INVARIANT_SAMPLE_ROWS:
            count = rows.limit(limits.MAX_COUNTED_VIOLATIONS + 1).count()
    except (PySparkException, Py4JJavaError) as error:
        problem = problem_of(error)
        return _broken_by_error(invariant, location, f"[{problem.error_class}] {problem.message}")
    except DefinitionError as error:
        return _broken_by_error(invariant, location, str(error))
    names = invariant.query.schema.names
    return BrokenInvariant(
        name=invariant.name,
        location=location,
        rows=min(count, limits.MAX_COUNTED_VIOLATIONS),
        at_least=count > limits.MAX_COUNTED_VIOLATIONS,
        sample=tuple(_row_text(names, tuple(row)) for row in sample[: limits.INVARIANT_SAMPLE_ROWS]),
    )


def _broken_by_error(invariant: Invariant, location: str, problem: str) -> BrokenInvariant:
    # If Spark is gone, the failed query does not mean that the invariant is broken.
    require_live_jvm()
    return BrokenInvariant(name=invariant.name, location=location, rows=0, problem=problem)


def _as_text(frame: DataFrame) -> DataFrame:
    """Every column as text, whatever its type and name: two may be called the same."""
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    return numbered.select(*(numbered[name].cast("string") for name in numbered.columns))


def _row_text(names: list[str], values: tuple[str | None, ...]) -> str:
    pairs = zip(names, values, strict=True)
    text = ", ".join(
        f"{name}={'NULL' if value is None else json.dumps(value, ensure_ascii=False)}"
        for name, value in pairs
    )
    return text if len(text) <= limits.MAX_SAMPLE_CHARACTERS else text[: limits.MAX_SAMPLE_CHARACTERS] + "…"
