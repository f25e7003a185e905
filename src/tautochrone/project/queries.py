"""The two kinds of queries: of a SQL statement and of a Python function."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import textwrap
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaObject
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from tautochrone.errors import DefinitionError, Excerpt
from tautochrone.model.definitions import SourceLocation
from tautochrone.project.databricks.files import FileSource, open_files
from tautochrone.project.deferred_frames import evaluating, real_frame
from tautochrone.project.definitions import QueryListener
from tautochrone.project.explain_failure import CodePosition
from tautochrone.project.sqltext import NameScope
from tautochrone.project.statements import query_of
from tautochrone.project.usercode import NamesAtRegistration, user_code
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, replace_leaves
from tautochrone.spark.analysis.session_context import dataframe_of_plan, parsed_plan
from tautochrone.spark.jvm.catalyst import items, kind
from tautochrone.spark.jvm.errors import SparkProblem

__all__ = ["Project", "PythonQuery", "SqlQuery"]


_registered: WeakKeyDictionary[SparkSession, set[type[DataSource]]] = WeakKeyDictionary()
"""The data sources that each session knows."""


@dataclass(frozen=True, slots=True)
class Project:
    """The folders of the definition files: the spec's folder, and those with imported modules."""

    root: Path
    imports: tuple[Path, ...] = ()
    data_sources: list[type[DataSource]] = field(default_factory=list)
    """Registered while the files were imported."""

    def register_data_sources(self, session: SparkSession) -> None:
        """Register in `session` what the files registered in the session of the import."""
        registered = _registered.setdefault(session, set())
        for source in self.data_sources:
            if source not in registered:
                session.dataSource.register(source)
                registered.add(source)

    def shown(self, file: str | Path) -> str:
        """A file as it is shown to people: relative to the spec when it is below it."""
        path = Path(file)
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    def position_of(self, error: BaseException, problem: SparkProblem | None = None) -> CodePosition | None:
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
                    # The line numbers of the SQL are not those of the file.
                    excerpt = replace(problem.excerpt, line=None)
                return CodePosition(f"{self.shown(path)}:{frame.lineno}", excerpt)
        return None


def _excerpt(frame: traceback.FrameSummary) -> Excerpt | None:
    text = linecache.getline(frame.filename, frame.lineno or 0).rstrip("\n")
    if not text.strip() or frame.lineno is None or frame.colno is None:
        return None
    # Python's columns count bytes; the excerpt counts characters.
    start = len(text.encode()[: frame.colno].decode(errors="replace"))
    stop = len(text)
    if frame.end_lineno == frame.lineno and frame.end_colno is not None:
        stop = len(text.encode()[: frame.end_colno].decode(errors="replace"))
    return Excerpt(text, frame.lineno, start, stop - start)


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """The query in a CREATE statement, parsed again for each session."""

    statement: str
    location: SourceLocation
    scope: NameScope
    columns: tuple[str, ...] = ()
    files: Mapping[str, FileSource] = field(default_factory=dict)
    """By the name of a temporary view that the query reads: the files that it stands for."""

    @property
    def written(self) -> str:
        return self.statement.strip()

    def evaluate(self, session: SparkSession, listener: QueryListener | None = None) -> DataFrame:
        query = query_of(parsed_plan(self.scope.rewrite(self.statement)))
        if listener is not None:
            listener(query)
        frame = dataframe_of_plan(session, self._with_files(session, query))
        return frame.toDF(*self.columns) if self.columns else frame

    def _with_files(self, session: SparkSession, query: JavaObject) -> JavaObject:
        """The query over the files themselves: through a view it would not see their `_metadata`."""
        frames = {name: open_files(session, files) for name, files in self.files.items()}
        if not frames:
            return query
        for name, frame in frames.items():
            # For those in subqueries and in WITH.
            frame.createOrReplaceTempView(name)

        def leaf(node: JavaObject) -> JavaObject:
            if kind(node) != "UnresolvedRelation":
                return node
            read = frames.get(".".join(str(part) for part in items(node.multipartIdentifier())))
            return node if read is None else analyzed_plan(read)

        return replace_leaves(session, query, leaf)

    def view_text(self) -> str | None:
        """The text after AS of a CREATE VIEW, with rewritten names."""
        plan = parsed_plan(self.scope.rewrite(self.statement))
        if plan.getClass().getSimpleName() != "CreateView":
            return None
        text = plan.originalText()
        return str(text.get()) if text.isDefined() else None

    def position_of(self, _error: BaseException, problem: SparkProblem | None) -> CodePosition | None:
        first = self.location.line or 1
        line = problem.line if problem is not None and problem.line is not None else 1
        return CodePosition(f"{self.location.file}:{first + line - 1}", self._excerpt(problem, first))

    def _excerpt(self, problem: SparkProblem | None, first: int) -> Excerpt | None:
        """Maps Spark's position in the rewritten text back to the text as it was written."""
        renamed = self.scope.renamed(self.statement)
        rewritten = problem.excerpt_in(renamed.text, first) if problem is not None else None
        if rewritten is None or rewritten.line is None:
            return None
        number = rewritten.line - first
        rewritten_line_start = sum(len(line) + 1 for line in renamed.text.split("\n")[:number])
        line_start = sum(len(line) + 1 for line in self.statement.split("\n")[:number])
        start, stop = renamed.before(
            rewritten_line_start + rewritten.start, rewritten_line_start + rewritten.start + rewritten.length
        )
        return Excerpt(self.statement.split("\n")[number], rewritten.line, start - line_start, stop - start)


@dataclass(frozen=True, slots=True)
class PythonQuery:
    """A decorated function with the names it saw when it was registered."""

    function: Callable[[], Any]
    project: Project
    scope: NameScope
    bindings: NamesAtRegistration

    @property
    def written(self) -> str:
        try:
            return textwrap.dedent(inspect.getsource(self.function)).strip()
        except (OSError, TypeError):
            # The function was made by exec, or is not a plain function.
            return f"def {getattr(self.function, '__name__', '')}(): …"

    def evaluate(self, session: SparkSession, listener: QueryListener | None = None) -> DataFrame:
        def rewrite(text: str) -> str:
            rewritten = self.scope.rewrite(text)
            if listener is not None:
                # Names and conditions are rewritten here too: only whole queries parse as queries.
                with contextlib.suppress(PySparkException):
                    query = parsed_plan(rewritten)
                    listener(query)
            return rewritten

        self.project.register_data_sources(session)
        with (
            user_code(
                self.project.root, self.project.imports, rewrite, self.project.data_sources, in_query=True
            ),
            self.bindings.bound(session),
            evaluating(session),
        ):
            frame = real_frame(self.function())
        if not isinstance(frame, DataFrame):
            raise DefinitionError(
                "FLOW_WITHOUT_DATAFRAME",
                f"The query function returned {type(frame).__name__} instead of a DataFrame",
                hint="End the function with `return <DataFrame>`.",
            )
        if frame._jdf.sparkSession().equals(session._jsparkSession):  # noqa: SLF001
            return frame
        # It is built on a DataFrame that the file created during its import, in the session of the import.
        return dataframe_of_plan(session, frame._jdf.queryExecution().logical())  # noqa: SLF001

    def view_text(self) -> str | None:
        return None

    def position_of(self, error: BaseException, problem: SparkProblem | None) -> CodePosition | None:
        # Spark counts lines within the text of spark.sql, so they are not lines of the file.
        return self.project.position_of(error, problem)
