"""Reading Spark's exceptions: class, first sentence, SQLSTATE, place; without stacks and plans.

PySpark appends the plan, the query's text and often a Java stack to its messages. People need the
sentence; everything else here serves to find the line of *their* file that it is about.
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
_LISTED = re.compile(r"^(?P<text>.*)\n(?P<before>-*)\^\^\^$", re.MULTILINE)
"""A syntax error's line in Spark's listing of the query, above `-----^^^`."""
_SUMMARY = re.compile(
    r"== SQL.*\(line (?P<line>\d+), position (?P<position>\d+)\) ==\n(?P<text>.*)\n(?P<marks> *\^+)"
)
"""A query context: lines are cut at about 32 characters around the fragment, hence the position in the
query (from 1) and the marks' place in the text differ."""


@dataclass(frozen=True, slots=True)
class SparkProblem:
    """What a Spark exception says.

    `line` counts from 1 and `position` from 0 within the text that Spark was given. `excerpt` is that line
    as Spark shows it, which may be cut.
    """

    error_class: str
    message: str
    sqlstate: str | None = None
    line: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    excerpt: Excerpt | None = None
    position: int | None = None

    def excerpt_in(self, text: str, first_line: int = 1) -> Excerpt | None:
        """The excerpt within the whole text that Spark was given; None when it is about another text.

        Args:
            text: that text.
            first_line: the number of its first line in the user's file.
        """
        lines = text.split("\n")
        cut, number = self.excerpt, self.line
        if cut is None or self.position is None or number is None or not 1 <= number <= len(lines):
            return None
        marked = cut.text[cut.start : cut.start + cut.length]
        if lines[number - 1][self.position : self.position + cut.length] != marked:
            return None
        return Excerpt(lines[number - 1], first_line + number - 1, self.position, cut.length)


def problem_of(error: BaseException) -> SparkProblem:
    """Take a Spark exception (or any other) apart."""
    if isinstance(error, Py4JJavaError):
        return _java_problem(error)
    text = str(error)
    excerpt, position = _excerpt(error, text)
    condition = state = None
    parameters: dict[str, str] = {}
    if isinstance(error, PySparkException):
        condition, state = error.getCondition(), error.getSqlState()
        parameters = {str(k): str(v) for k, v in (error.getMessageParameters() or {}).items()}
    found = _CLASS.match(text)
    if found:
        condition = condition or found.group(1)
        text = text[found.end() :]
    line = excerpt.line if excerpt else _line(text)
    found_state = _STATE.search(text)
    if found_state:
        state = state or found_state.group(1)
        text = text[: found_state.start()]
    message = _sentence(text) or type(error).__name__
    return SparkProblem(condition or _class_name(error), message, state, line, parameters, excerpt, position)


def _excerpt(error: BaseException, text: str) -> tuple[Excerpt | None, int | None]:
    """The line that an exception is about, from its query context or the listing of a syntax error."""
    contexts: list[QueryContext] = error.getQueryContext() if isinstance(error, PySparkException) else []
    for context in contexts:
        # With an object type it is about the text of a stored view.
        own = context.contextType() is QueryContextType.SQL and not context.objectType()
        found = _SUMMARY.match(context.summary()) if own else None
        if found:
            marks = found["marks"]
            # Of a fragment over several lines, the marks below its first one.
            length = len(context.fragment().split("\n")[0]) or 1
            excerpt = Excerpt(found["text"], int(found["line"]), len(marks) - len(marks.lstrip()), length)
            return excerpt, int(found["position"]) - 1
    listed, line = _LISTED.search(text), _line(text)
    if listed is None or line is None:
        return None, None
    near, start = _NEAR.search(text), len(listed["before"])
    # Spark always draws three marks; the words that it stumbled over are in its sentence.
    here = near is not None and listed["text"].startswith(near[1], start)
    length = len(near[1]) if near is not None and here else int(start < len(listed["text"]))
    return Excerpt(listed["text"], line, start, length), start


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
