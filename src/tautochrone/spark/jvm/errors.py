"""Reading Spark's exceptions: class, first sentence, SQLSTATE and position, without stacks and plans.

PySpark appends the plan, the query's text and often a Java stack to its messages. A user needs the first
sentence, and the line of their own file that caused the error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, QueryContext, QueryContextType

from tautochrone.errors import Excerpt

__all__ = ["SparkProblem", "problem_of"]

_CLASS = re.compile(r"^\s*\[([A-Z0-9_.]+)\]\s*")
_STATE = re.compile(r"\s*SQLSTATE:\s*([0-9A-Z]{5})")
_LINE = re.compile(r"\(?line (\d+), pos (\d+)\)?|line (\d+) pos (\d+)")
_NEAR = re.compile(r"near '(.+?)'[.:]? SQLSTATE", re.DOTALL)
_LAKE_FILE_MISSING = re.compile(
    r"org\.apache\.iceberg\.exceptions\.NotFoundException: [^\n]*?((?:[a-z0-9]+:)?/\S+)"
)
_LISTED = re.compile(r"^(?P<text>.*)\n(?P<before>-*)\^\^\^$", re.MULTILINE)
"""A syntax error's line in Spark's listing of the query, above `-----^^^`."""
_SUMMARY = re.compile(
    r"== SQL.*\(line (?P<line>\d+), position (?P<position>\d+)\) ==\n(?P<text>.*)\n(?P<marks> *\^+)"
)
"""A query context. Spark cuts lines at about 32 characters around the fragment, so the position in the query
(from 1) and the position of the marks in the text differ."""


@dataclass(frozen=True, slots=True)
class SparkProblem:
    """The parts of a Spark exception.

    `line` counts from 1 and `position` from 0 within the text that Spark was given. `excerpt` is that line
    as Spark prints it, possibly shortened. Spark has no `hint`.
    """

    error_class: str
    message: str
    sqlstate: str | None = None
    line: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    excerpt: Excerpt | None = None
    position: int | None = None
    hint: str | None = None

    def excerpt_in(self, text: str, first_line: int = 1) -> Excerpt | None:
        """The excerpt in the whole text that Spark was given; None when the error is about another text.

        Args:
            text: that text.
            first_line: the number of its first line in the user's file.
        """
        lines = text.split("\n")
        excerpt, number = self.excerpt, self.line
        if excerpt is None or self.position is None or number is None or not 1 <= number <= len(lines):
            return None
        fragment = excerpt.text[excerpt.start : excerpt.start + excerpt.length]
        if lines[number - 1][self.position : self.position + excerpt.length] != fragment:
            return None
        return Excerpt(lines[number - 1], first_line + number - 1, self.position, excerpt.length)


def problem_of(error: BaseException) -> SparkProblem:
    """Split a Spark exception (or any other) into its parts."""
    # Iceberg has an exception for it, which Spark wraps when a task meets it.
    missing = _LAKE_FILE_MISSING.search(str(error))
    if missing is not None:
        return SparkProblem(
            error_class="LAKE_FILE_MISSING",
            message=f"A table names the file {missing[1]}, which is not there",
            sqlstate="58030",
            hint="put it back from a backup; `taut run --full-refresh NAME` builds a table anew",
        )
    if isinstance(error, Py4JJavaError):
        return _java_problem(error)
    text = str(error)
    excerpt, position = _excerpt(error, text)
    condition = state = None
    parameters: dict[str, str] = {}
    if isinstance(error, PySparkException):
        condition, state = error.getCondition(), error.getSqlState()
        parameters = {str(k): str(v) for k, v in (error.getMessageParameters() or {}).items()}
    class_match = _CLASS.match(text)
    if class_match:
        condition = condition or class_match.group(1)
        text = text[class_match.end() :]
    line = excerpt.line if excerpt else _line(text)
    state_match = _STATE.search(text)
    if state_match:
        state = state or state_match.group(1)
        text = text[: state_match.start()]
    message = _sentence(text) or type(error).__name__
    return SparkProblem(condition or _class_name(error), message, state, line, parameters, excerpt, position)


def _excerpt(error: BaseException, text: str) -> tuple[Excerpt | None, int | None]:
    """The line that caused an exception, from its query context or the listing of a syntax error."""
    contexts: list[QueryContext] = error.getQueryContext() if isinstance(error, PySparkException) else []
    for context in contexts:
        # With an object type the context is in the text of a stored view, not in this query.
        in_query = context.contextType() is QueryContextType.SQL and not context.objectType()
        summary = _SUMMARY.match(context.summary()) if in_query else None
        if summary:
            marks = summary["marks"]
            # A fragment of several lines is marked below its first line only.
            length = len(context.fragment().split("\n")[0]) or 1
            excerpt = Excerpt(summary["text"], int(summary["line"]), len(marks) - len(marks.lstrip()), length)
            return excerpt, int(summary["position"]) - 1
    listed, line = _LISTED.search(text), _line(text)
    if listed is None or line is None:
        return None, None
    near, start = _NEAR.search(text), len(listed["before"])
    # Spark always draws three marks; the length of the fragment is only known from its message.
    at_start = near is not None and listed["text"].startswith(near[1], start)
    length = len(near[1]) if near is not None and at_start else int(start < len(listed["text"]))
    return Excerpt(listed["text"], line, start, length), start


def _java_problem(error: Py4JJavaError) -> SparkProblem:
    """Java exceptions that PySpark has no class for. Spark's own have an error class and an SQLSTATE."""
    cause = error.java_exception
    kind = str(cause.getClass().getSimpleName())
    text = str(cause.getMessage() or kind)
    class_match, state = _CLASS.match(text), _STATE.search(text)
    message = _sentence(text[class_match.end() if class_match else 0 : state.start() if state else len(text)])
    return SparkProblem(
        class_match.group(1) if class_match else _upper_snake(kind),
        message,
        state.group(1) if state else None,
        _line(text),
    )


def _line(text: str) -> int | None:
    match = _LINE.search(text)
    return int(match.group(1) or match.group(3)) if match else None


def _sentence(text: str) -> str:
    """The text before Spark's query listing, plan and Java stack."""
    text = re.split(r"\n\s*(?:== |JVM stacktrace|\tat |'?[A-Z][A-Za-z]+ \[|[+:]- )|;\n", text, maxsplit=1)[0]
    return " ".join(text.split()).rstrip(";")


def _class_name(error: BaseException) -> str:
    return _upper_snake(type(error).__name__)


def _upper_snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
