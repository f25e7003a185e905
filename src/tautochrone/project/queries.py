"""The two kinds of queries: a SQL statement's and a Python function's."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import DefinitionError, Excerpt
from tautochrone.model.definitions import SourceLocation
from tautochrone.project.definitions import Asked
from tautochrone.project.explain_failure import Place
from tautochrone.project.names import NameScope
from tautochrone.project.statements import query_of
from tautochrone.project.usercode import Bindings, user_code
from tautochrone.spark.analysis.session_context import dataframe_of_plan, spark_sql_parser
from tautochrone.spark.jvm.errors import SparkProblem

__all__ = ["Project", "PythonQuery", "SqlQuery"]


@dataclass(frozen=True, slots=True)
class Project:
    """Where definition files lie: the spec's folder, and the folders that hold imported modules."""

    root: Path
    imports: tuple[Path, ...] = ()

    def shown(self, file: str | Path) -> str:
        """A file as people should see it: relative to the spec when it lies below it."""
        path = Path(file)
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def place_of(self, error: BaseException, problem: SparkProblem | None = None) -> Place | None:
        """The innermost frame of a traceback that belongs to the project.

        The excerpt is of the SQL when Spark complains about SQL, else of the Python line.
        """
        folders = (self.root, *self.imports)
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            path = Path(frame.filename)
            below = any(path.is_relative_to(folder) for folder in folders)
            if below and "site-packages" not in path.parts:
                excerpt = _excerpt(frame)
                if problem is not None and problem.excerpt is not None:
                    # Its lines are not the file's.
                    excerpt = replace(problem.excerpt, line=None)
                return Place(f"{self.shown(path)}:{frame.lineno}", excerpt)
        return None


def _excerpt(frame: traceback.FrameSummary) -> Excerpt | None:
    text = linecache.getline(frame.filename, frame.lineno or 0).rstrip("\n")
    if not text.strip() or frame.lineno is None or frame.colno is None:
        return None
    # Python counts bytes here, people see characters.
    start = len(text.encode()[: frame.colno].decode(errors="replace"))
    stop = len(text)
    if frame.end_lineno == frame.lineno and frame.end_colno is not None:
        stop = len(text.encode()[: frame.end_colno].decode(errors="replace"))
    return Excerpt(text, frame.lineno, start, stop - start)


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """The query in a CREATE statement, parsed anew for each session."""

    statement: str
    text: str
    location: SourceLocation
    scope: NameScope
    columns: tuple[str, ...] = ()

    @property
    def written(self) -> str:
        return self.statement.strip()

    def dataframe(self, session: SparkSession, asked: Asked | None = None) -> DataFrame:
        query = query_of(spark_sql_parser(session).parsePlan(self.scope.rewrite(self.statement)))
        if asked is not None:
            asked(query)
        frame = dataframe_of_plan(session, query)
        return frame.toDF(*self.columns) if self.columns else frame

    def view_text(self, session: SparkSession) -> str | None:
        """The text after AS of a CREATE VIEW, with the names as our catalog knows them."""
        plan: JavaObject = spark_sql_parser(session).parsePlan(self.scope.rewrite(self.statement))
        if plan.getClass().getSimpleName() != "CreateView":
            return None
        text = plan.originalText()
        return str(text.get()) if text.isDefined() else None

    def place_of(self, _error: BaseException, problem: SparkProblem | None) -> Place | None:
        first = self.location.line or 1
        line = problem.line if problem is not None and problem.line is not None else 1
        return Place(f"{self.location.file}:{first + line - 1}", self._excerpt(problem, first))

    def _excerpt(self, problem: SparkProblem | None, first: int) -> Excerpt | None:
        """Spark saw the text with names rewritten; people wrote the other one."""
        renamed = self.scope.renamed(self.statement)
        seen = problem.excerpt_in(renamed.text, first) if problem is not None else None
        if seen is None or seen.line is None:
            return None
        number = seen.line - first
        offset = sum(len(line) + 1 for line in renamed.text.split("\n")[:number])
        begin = sum(len(line) + 1 for line in self.statement.split("\n")[:number])
        start, stop = renamed.before(offset + seen.start, offset + seen.start + seen.length)
        return Excerpt(self.statement.split("\n")[number], seen.line, start - begin, stop - start)


@dataclass(frozen=True, slots=True)
class PythonQuery:
    """A decorated function with the names it saw when it was registered."""

    function: Callable[[], Any]
    text: str
    project: Project
    scope: NameScope
    bindings: Bindings

    @property
    def written(self) -> str:
        try:
            return textwrap.dedent(inspect.getsource(self.function)).strip()
        except (OSError, TypeError):
            # Made by exec, or no plain function.
            return self.text

    def dataframe(self, session: SparkSession, asked: Asked | None = None) -> DataFrame:
        def rewrite(text: str) -> str:
            rewritten = self.scope.rewrite(text)
            if asked is not None:
                # Names and conditions come by here too: only whole queries parse as such.
                with contextlib.suppress(PySparkException):
                    query = spark_sql_parser(session).parsePlan(rewritten)
                    asked(query)
            return rewritten

        with (
            user_code(self.project.root, self.project.imports, rewrite, in_query=True),
            self.bindings.bound(session),
        ):
            frame = self.function()
        if not isinstance(frame, DataFrame):
            raise DefinitionError(
                "FLOW_WITHOUT_DATAFRAME",
                f"The query function returned {type(frame).__name__} instead of a DataFrame",
                hint="End the function with `return <DataFrame>`.",
            )
        if frame._jdf.sparkSession().equals(session._jsparkSession):  # noqa: SLF001
            return frame
        # Built on a DataFrame that the file made while it was imported, in the session of that time.
        return dataframe_of_plan(session, frame._jdf.queryExecution().logical())  # noqa: SLF001

    def view_text(self, _session: SparkSession) -> str | None:
        return None

    def place_of(self, error: BaseException, problem: SparkProblem | None) -> Place | None:
        # Spark counts lines within the text of spark.sql, which no one can find in the file.
        return self.project.place_of(error, problem)
