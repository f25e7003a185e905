"""Checking invariants over the versions of a target, before the job does its part of it. Only reads.

An invariant is asked again only when one of its tables is another one than when it last held: the store
remembers that with the checkpoint, so a new process need not ask either.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import DefinitionError
from tautochrone.model import limits
from tautochrone.model.invariants import BrokenInvariant, InvariantEntry
from tautochrone.model.names import TableName, Version
from tautochrone.project.graph import Invariant
from tautochrone.runtime.job.job import Job
from tautochrone.spark.analysis.current_time import with_fixed_time
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.jvm_liveness import require_live_jvm

__all__ = ["Checked", "check", "entries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What became of a job's invariants at a target: definitions of those that hold, those that are broken,
    and why others could not be asked."""

    held: Mapping[str, str] = field(default_factory=dict)
    broken: tuple[BrokenInvariant, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)


def entries(job: Job) -> list[InvariantEntry]:
    """The job's invariants as the topology records them."""
    return [
        InvariantEntry(
            name=one.name,
            location=str(one.query.flow.location),
            definition=one.query.fingerprint,
            tables=one.tables,
        )
        for one in job.graph.invariants
    ]


def check(job: Job, session: SparkSession, shown: Mapping[TableName, Version]) -> Checked:
    """Ask each invariant of the job that has news.

    Args:
        session: shows the lake at the target.
        shown: the version of every table and clock at the target, without those that failed.
    """
    last = job.store.held(job.name) if job.graph.invariants else None
    before = {} if last is None else job.store.versions_at(last.checkpoint)
    known = {} if last is None else last.definitions
    held: dict[str, str] = {}
    broken: list[BrokenInvariant] = []
    skipped: dict[str, str] = {}
    for one in job.graph.invariants:
        definition = one.query.fingerprint
        absent = sorted(str(table) for table in one.tables if table not in shown)
        if absent:
            skipped[one.name] = f"{absent[0]} has no version for this checkpoint"
            continue
        if known.get(one.name) == definition and not _moved(one, before, shown):
            held[one.name] = definition
            continue
        found = _ask(job, one, session, shown)
        if found is None:
            held[one.name] = definition
        else:
            broken.append(found)
    return Checked(held=held, broken=tuple(broken), skipped=skipped)


def _moved(
    one: Invariant, before: Mapping[TableName, Version], shown: Mapping[TableName, Version]
) -> Collection[TableName]:
    if one.query.inputs.unversioned:
        # Nothing tells whether these are what they were.
        return one.tables
    return [table for table in one.tables if before.get(table) != shown[table]]


def _ask(
    job: Job, one: Invariant, session: SparkSession, shown: Mapping[TableName, Version]
) -> BrokenInvariant | None:
    flow, place = one.query.flow, str(one.query.flow.location)
    try:
        job.definitions.prepare(session, one.query.views)
        rows = _as_text(with_fixed_time(flow.evaluate(session), shown))
        found = rows.limit(limits.INVARIANT_SAMPLE_ROWS + 1).collect()
        if not found:
            return None
        # Most often nothing breaks it, or little: then there is nothing more to count.
        count = (
            len(found)
            if len(found) <= limits.INVARIANT_SAMPLE_ROWS
            else rows.limit(limits.MAX_COUNTED_VIOLATIONS + 1).count()
        )
    except (PySparkException, Py4JJavaError) as error:
        problem = problem_of(error)
        return _failed(one, place, f"[{problem.error_class}] {problem.message}")
    except DefinitionError as error:
        return _failed(one, place, str(error))
    names = one.query.schema.names
    return BrokenInvariant(
        name=one.name,
        location=place,
        rows=min(count, limits.MAX_COUNTED_VIOLATIONS),
        at_least=count > limits.MAX_COUNTED_VIOLATIONS,
        sample=tuple(_shown(names, tuple(row)) for row in found[: limits.INVARIANT_SAMPLE_ROWS]),
    )


def _failed(one: Invariant, place: str, problem: str) -> BrokenInvariant:
    # Of a Spark that is gone nothing follows for the rows.
    require_live_jvm()
    return BrokenInvariant(name=one.name, location=place, rows=0, problem=problem)


def _as_text(frame: DataFrame) -> DataFrame:
    """Every column as text, whatever its type and name: two may be called the same."""
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    return numbered.select(*(numbered[name].cast("string") for name in numbered.columns))


def _shown(names: list[str], values: tuple[str | None, ...]) -> str:
    pairs = zip(names, values, strict=True)
    text = ", ".join(
        f"{name}={'NULL' if value is None else json.dumps(value, ensure_ascii=False)}"
        for name, value in pairs
    )
    return text if len(text) <= limits.MAX_SAMPLE_CHARACTERS else text[: limits.MAX_SAMPLE_CHARACTERS] + "…"
