"""The folder `invariants/` next to the spec: each SQL file is one query that must return no row.

The statement is a plain query; its tables need not exist when the file is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from py4j.java_gateway import JavaObject
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import SourceLocation
from tautochrone.model.names import TableName
from tautochrone.project.definitions import Flow
from tautochrone.project.graph import Invariant, ResolvedFlow
from tautochrone.project.queries import Project, SqlQuery
from tautochrone.project.spec import INVARIANTS_FOLDER
from tautochrone.project.sqltext import NameScope, split
from tautochrone.project.statements import syntax_error
from tautochrone.spark.analysis.session_context import parsed_plan
from tautochrone.spark.jvm.catalyst import cached_packages, kind, walk

__all__ = ["as_invariant", "read_invariants"]

_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical"
_HINT = "An invariant is one SELECT over datasets; every row that it returns breaks it."


def read_invariants(
    root: Path, project: Project, scope: NameScope, conf: dict[str, str], session: SparkSession
) -> tuple[Flow, ...]:
    """The queries of the folder, sorted by name, as flows whose target is never written.

    Raises:
        DefinitionError: a syntax error (Spark's class), or `INVARIANT_NOT_A_QUERY`.
    """
    return tuple(
        _read(file, project, scope, conf, session)
        for file in sorted((root / INVARIANTS_FOLDER).glob("*.sql"))
    )


def _read(
    file: Path, project: Project, scope: NameScope, conf: dict[str, str], session: SparkSession
) -> Flow:
    shown = project.shown(file)
    statements = split(file.read_text(encoding="utf-8"))
    if len(statements) != 1:
        statement_count = f"{len(statements)} statements" if statements else "no statement"
        raise _invariant_error(f"The file holds {statement_count}", SourceLocation(shown))
    (chunk,) = statements
    location = SourceLocation(shown, chunk.line)
    try:
        plan = parsed_plan(scope.rewrite(chunk.text))
    except PySparkException as error:
        raise syntax_error(error, chunk, shown) from error
    wrong_node = _command_in(session, plan)
    if wrong_node is not None:
        raise _invariant_error(f"The statement is {wrong_node}", location)
    query = SqlQuery(chunk.text, location, scope)
    return Flow(
        name=file.stem,
        target=TableName(scope.catalog, scope.namespace, file.stem),
        location=location,
        conf=conf,
        scope=scope,
        query=query,
    )


def _command_in(session: SparkSession, plan: JavaObject) -> str | None:
    """The name of a node that is a command, not a query; None when there is none."""
    classes = cached_packages(session._jvm).java.lang.Class  # noqa: SLF001
    command_classes = [classes.forName(f"{_LOGICAL}.{name}") for name in ("Command", "ParsedStatement")]
    for node in walk(plan):
        if (
            any(command_class.isInstance(node) for command_class in command_classes)
            or kind(node) == "CompoundBody"
        ):
            return kind(node)
    return None


def _invariant_error(sentence: str, location: SourceLocation) -> DefinitionError:
    return DefinitionError(
        "INVARIANT_NOT_A_QUERY",
        f"{sentence}, not one query",
        location=str(location),
        hint=_HINT,
    )


def as_invariant(resolved: ResolvedFlow, order: Sequence[TableName]) -> Invariant:
    """A resolved query as an invariant of a graph with the tables `order`, inputs before readers.

    The job that writes the last of its own tables in `order` checks it: then all its inputs are refreshed.

    Raises:
        DefinitionError: `INVARIANT_IS_A_STREAM`, `INVARIANT_NOT_DETERMINISTIC`, `INVARIANT_WITHOUT_DATASET`.
    """
    name, location = resolved.flow.name, str(resolved.flow.location)
    if resolved.streaming:
        raise DefinitionError(
            "INVARIANT_IS_A_STREAM",
            f"The invariant {name} reads a stream",
            location=location,
            hint="Read tables without STREAM: an invariant looks at all of their rows at one checkpoint.",
        )
    if not resolved.deterministic:
        raise DefinitionError(
            "INVARIANT_NOT_DETERMINISTIC",
            f"The invariant {name} may answer differently each time: {resolved.deterministic_reason}",
            location=location,
            hint="After a crash it is evaluated again and must give the same result.",
        )
    own_tables = [table for table in order if table in resolved.inputs.tables]
    if not own_tables:
        raise DefinitionError(
            "INVARIANT_WITHOUT_DATASET",
            f"The invariant {name} reads no table that this pipeline writes",
            location=location,
            hint="It can hold back only checkpoints of what the pipeline writes.",
        )
    return Invariant(name=name, query=resolved, checked_with=own_tables[-1])
