"""Turns what a definition raised into an error with a sentence, a position and a hint."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tautochrone.errors import DefinitionError, Excerpt, TautochroneError
from tautochrone.model.definitions import SourceLocation
from tautochrone.project.databricks.unsupported import known_databricks_error
from tautochrone.spark.jvm.errors import SparkProblem, problem_of

__all__ = ["CodePosition", "PositionFinder", "explain"]

_HINTS = {
    "UNRESOLVED_COLUMN": "The inputs of the query have no such column; check spelling and aliases.",
    "UNRESOLVED_ROUTINE": (
        "Spark has no function of this name. One that only Databricks has, such as ai_query, is replaced by "
        "another expression, in Python by a UDF."
    ),
    "PARSE_SYNTAX_ERROR": "Spark's parser does not expect this here, or misses something before it.",
    "TABLE_OR_VIEW_NOT_FOUND": (
        "While files are imported there are only tables that exist already; "
        "read datasets of this pipeline in a query function."
    ),
    "CANNOT_MODIFY_STATIC_CONFIG": "Static settings are given when Spark starts: use --conf, not the spec.",
    "CANNOT_MODIFY_CONFIG": "This setting is fixed when Spark starts: use --conf, not the spec.",
    "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION": "A query function must not run a query.",
    "SESSION_MUTATION_IN_DECLARATIVE_PIPELINE": "Use @temporary_view, spark_conf or the spec.",
    "UNSUPPORTED_PIPELINE_SPARK_SQL_COMMAND": "Only queries are allowed here; define tables by decorators.",
    "MODULE_NOT_FOUND_ERROR": "Install the package, or put its folder on PYTHONPATH.",
    "PATH_NOT_FOUND": (
        "The files must be there when the pipeline is analysed; relative paths start where the process was "
        "started."
    ),
    "SQL_CONF_NOT_FOUND": "Give the setting a value below `configuration` in the pipeline spec.",
}
_TIME_TRAVEL = re.compile(
    r"Cannot find (matching snapshot ID or reference name for version|a snapshot older than|snapshot with ID)"
)
"""How Iceberg refuses a version that the tables of the analysis, which are empty, do not have."""

_PYTHON = {
    ModuleNotFoundError: "Install the package in this environment, or put its folder on PYTHONPATH.",
    ImportError: "The module is there but lacks the name, or two modules import each other.",
    NameError: "A name is used before it is defined, or an import is missing.",
    SyntaxError: "The file is not valid Python for this interpreter.",
    KeyError: "A dictionary or environment variable lacks this key.",
    FileNotFoundError: "Relative paths in Python start at the folder of the pipeline spec.",
}


@dataclass(frozen=True, slots=True)
class CodePosition:
    """The position of an error in the project: `file:line`, and that line with the part to underline."""

    location: str
    excerpt: Excerpt | None = None


PositionFinder = Callable[[BaseException, SparkProblem | None], CodePosition | None]
"""Finds the position of an exception; gets Spark's description when it comes from Spark."""


def explain(error: Exception, find_position: PositionFinder, fallback: SourceLocation) -> DefinitionError:
    """A DefinitionError for an exception that evaluating or importing a definition raised.

    Args:
        error: the exception.
        find_position: see `PositionFinder`.
        fallback: the definition's own location.
    """
    if isinstance(error, DefinitionError):
        if error.location is None:
            position = find_position(error, None) or CodePosition(str(fallback))
            error.location, error.excerpt = position.location, error.excerpt or position.excerpt
        if error.hint is None:
            error.hint = _hint(error.error_class)
        return error
    if isinstance(error, (PySparkException, Py4JJavaError)):
        problem = problem_of(error)
        position = find_position(error, problem) or CodePosition(str(fallback), problem.excerpt)
        return _error_of_spark(problem, position)
    if isinstance(error, TautochroneError):
        # A call of ours in a definition file, such as one that defines a capture.
        return DefinitionError(
            error.error_class,
            error.message,
            sqlstate=error.sqlstate,
            location=(find_position(error, None) or CodePosition(str(fallback))).location,
            hint=error.hint,
            parameters=error.parameters,
        )
    hint = next((text for kind, text in _PYTHON.items() if isinstance(error, kind)), None)
    if isinstance(error, SyntaxError):
        return DefinitionError(
            "PYTHON_SYNTAX_ERROR",
            f"{type(error).__name__}: {error.msg}",
            location=f"{fallback.file}:{error.lineno}" if error.lineno else str(fallback),
            hint=hint,
            excerpt=_syntax_excerpt(error),
        )
    position = find_position(error, None) or CodePosition(str(fallback))
    refusal = known_databricks_error(error, position.location)
    if refusal is not None:
        refusal.excerpt = position.excerpt
        return refusal
    return DefinitionError(
        "USER_CODE_FAILED",
        f"{type(error).__name__}: {error}",
        location=position.location,
        excerpt=position.excerpt,
        hint=hint or "The exception comes from the project's own Python; --debug shows its traceback.",
    )


def _error_of_spark(problem: SparkProblem, position: CodePosition) -> DefinitionError:
    if _TIME_TRAVEL.search(problem.message):
        return DefinitionError(
            "TIME_TRAVEL_NOT_SUPPORTED",
            "The query asks for an older version of a table; a pipeline reads each table at the "
            "checkpoint that it computes",
            sqlstate="0A000",
            location=position.location,
            hint="copy the version into a table of its own with CREATE TABLE … AS SELECT … VERSION AS "
            "OF, outside of the pipeline, and read that",
            excerpt=position.excerpt,
        )
    return DefinitionError(
        problem.error_class,
        problem.message,
        sqlstate=problem.sqlstate,
        location=position.location,
        hint=_hint(problem.error_class),
        parameters=problem.parameters,
        excerpt=position.excerpt,
    )


def _syntax_excerpt(error: SyntaxError) -> Excerpt | None:
    if not error.text or error.lineno is None or not error.offset:
        return None
    same_line = error.end_lineno == error.lineno and error.end_offset
    length = error.end_offset - error.offset if same_line and error.end_offset else 1
    return Excerpt(error.text.rstrip("\n"), error.lineno, error.offset - 1, max(length, 1))


def _hint(error_class: str) -> str | None:
    return _HINTS.get(error_class) or _HINTS.get(error_class.split(".")[0])
