"""Reading Spark's exceptions: class, first sentence, SQLSTATE, line; without stacks and plans.

PySpark appends the plan, the query's text and often a Java stack to its messages. People need the
sentence; everything else here serves to find the line of *their* file that it is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

__all__ = ["SparkProblem", "problem_of"]

_CLASS = re.compile(r"^\s*\[([A-Z0-9_.]+)\]\s*")
_STATE = re.compile(r"\s*SQLSTATE:\s*([0-9A-Z]{5})")
_LINE = re.compile(r"\(?line (\d+), pos (\d+)\)?|line (\d+) pos (\d+)")


@dataclass(frozen=True, slots=True)
class SparkProblem:
    """What a Spark exception says. `line` counts from 1 within the text that Spark was given."""

    error_class: str
    message: str
    sqlstate: str | None = None
    line: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)


def problem_of(error: BaseException) -> SparkProblem:
    """Take a Spark exception (or any other) apart."""
    if isinstance(error, Py4JJavaError):
        return _java_problem(error)
    text = str(error)
    condition = state = None
    parameters: dict[str, str] = {}
    if isinstance(error, PySparkException):
        condition, state = error.getCondition(), error.getSqlState()
        parameters = {str(k): str(v) for k, v in (error.getMessageParameters() or {}).items()}
    found = _CLASS.match(text)
    if found:
        condition = condition or found.group(1)
        text = text[found.end() :]
    line = _line(text)
    found_state = _STATE.search(text)
    if found_state:
        state = state or found_state.group(1)
        text = text[: found_state.start()]
    message = _sentence(text) or type(error).__name__
    return SparkProblem(condition or _class_name(error), message, state, line, parameters)


def _java_problem(error: Py4JJavaError) -> SparkProblem:
    """Java exceptions that PySpark does not know; Spark's own among them carry class and state."""
    cause = error.java_exception
    kind = str(cause.getClass().getSimpleName())
    text = str(cause.getMessage() or kind)
    found, state = _CLASS.match(text), _STATE.search(text)
    message = _sentence(text[found.end() if found else 0 : state.start() if state else len(text)])
    return SparkProblem(
        found.group(1) if found else _spell(kind), message, state.group(1) if state else None, _line(text)
    )


def _line(text: str) -> int | None:
    found = _LINE.search(text)
    return int(found.group(1) or found.group(3)) if found else None


def _sentence(text: str) -> str:
    """The text up to Spark's appendices: query listing, plan, Java stack."""
    text = re.split(r"\n\s*(?:== |JVM stacktrace|\tat |'?[A-Z][A-Za-z]+ \[|[+:]- )|;\n", text, maxsplit=1)[0]
    return " ".join(text.split()).rstrip(";")


def _class_name(error: BaseException) -> str:
    return _spell(type(error).__name__)


def _spell(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
