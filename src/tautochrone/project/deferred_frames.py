"""DataFrames, and their columns, that a definition file makes while it is imported.

On Spark Connect `BASE = spark.read.table("orders")` is an unresolved plan: the table may be a dataset of the
same pipeline, and it is read when a query that uses `BASE` runs. A classic session would look for the table
during the import, and would fix its version. So what is built on a table during the import is only recorded,
and is built again in each session in which a query function runs.

A column such as `BASE["id"]` is an attribute with the id of its DataFrame's plan, as on Spark Connect. The
plan gets this id when it is built, and Spark's analyzer finds the attribute in it: `BASE["id"]` stays a
column of `BASE` where another DataFrame has a column of the same name.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from pyspark.errors import AnalysisException
from pyspark.sql import Column, SparkSession
from pyspark.sql import DataFrame as AnyDataFrame
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.dataframe import DataFrame, DataFrameNaFunctions, DataFrameStatFunctions
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import DataType

from tautochrone.errors import DefinitionError
from tautochrone.spark.jvm.catalyst import cached_packages

__all__ = [
    "DeferredFrame",
    "column_of_plan",
    "column_text",
    "evaluating",
    "evaluation_session",
    "existing_tables",
    "next_plan_id",
    "real_frame",
    "recorded_call",
    "remember_option",
    "with_plan_id",
]


# Py4J sends only numbers that are too large for an Int as Long, which the ids are. No shorter number in the
# text of a column is an id.
_plan_ids = itertools.count(1 << 40)
_PLAN_ID = re.compile(r"Some\((\d{13})\)")
_ORIGIN = re.compile(r",Origin\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
"""Line numbers and addresses, which are others in each process."""


def next_plan_id() -> int:
    return next(_plan_ids)


def column_of_plan(session: SparkSession, name: str, plan_id: int, *, is_metadata: bool = False) -> Column:
    """The column `name`, or all columns for `*`, of the plan that has or gets `plan_id`."""
    jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
    nodes = jvm.org.apache.spark.sql.internal
    origin = jvm.org.apache.spark.sql.catalyst.trees.CurrentOrigin.get()
    plan = jvm.scala.Option.apply(plan_id)
    if name == "*":
        node = nodes.UnresolvedStar(jvm.scala.Option.empty(), plan, origin)
    else:
        node = nodes.UnresolvedAttribute.apply(name, plan, is_metadata, origin)
    return ClassicColumn(jvm.org.apache.spark.sql.Column(node))


def with_plan_id(frame: AnyDataFrame, plan_id: int) -> AnyDataFrame:
    """The DataFrame, with a plan that has the id."""
    jvm: Any = cached_packages(frame.sparkSession._jvm)  # noqa: SLF001
    logical_plan = getattr(jvm.org.apache.spark.sql.catalyst.plans.logical, "LogicalPlan$")
    tag = getattr(logical_plan, "MODULE$").PLAN_ID_TAG()
    plan = frame._jdf.logicalPlan()  # noqa: SLF001
    other_id = plan.getTagValue(tag)
    if other_id.isDefined() and other_id.get() != plan_id:
        # Some methods return the plan that they got, such as `drop` of a column that is not there.
        frame = frame.select("*")
        plan = frame._jdf.logicalPlan()  # noqa: SLF001
    plan.setTagValue(tag, plan_id)
    return frame


def column_text(column: Column, frame_text: Callable[[int], str]) -> str:
    """A text that is the same in every process; `frame_text` gives that of the DataFrame with a plan id."""
    node: Any = column._jc  # noqa: SLF001
    nodes = node.node().toString()
    frames = dict.fromkeys(_PLAN_ID.findall(nodes))
    text = _ORIGIN.sub("", repr(column))
    for number, plan_id in enumerate(frames):
        text = text.replace(plan_id, str(number))
    return " of ".join([text, *(frame_text(int(plan_id)) for plan_id in frames)])


_FRAME_METHODS = frozenset(
    {
        "select", "selectExpr", "filter", "where", "withColumn", "withColumns", "withColumnRenamed",
        "withColumnsRenamed", "withMetadata", "withWatermark", "drop", "dropDuplicates", "drop_duplicates",
        "dropDuplicatesWithinWatermark", "distinct", "join", "crossJoin", "lateralJoin", "union", "unionAll",
        "unionByName", "intersect", "intersectAll", "subtract", "exceptAll", "limit", "offset", "orderBy",
        "sort", "sortWithinPartitions", "repartition", "repartitionByRange", "coalesce", "alias", "hint",
        "sample", "sampleBy", "fillna", "dropna", "replace", "agg", "toDF", "to", "unpivot", "melt",
        "mapInPandas", "mapInArrow", "describe", "summary", "freqItems", "repartitionById",
    }
)  # fmt: skip
"""Methods that return another DataFrame and compute nothing."""

_GROUPING_METHODS = frozenset({"groupBy", "groupby", "rollup", "cube", "groupingSets"})
_OPTIONS = "_taut_options"
"""The attribute of a reader that holds the calls which set its options."""

_FUNCTIONS_OF_FRAME: dict[str, Callable[[Any], Any]] = {
    "na": DataFrameNaFunctions,
    "stat": DataFrameStatFunctions,
}
"""They call methods of the DataFrame."""

_WITHOUT_EFFECT = frozenset({"cache", "persist", "unpersist"})
"""Methods that return the DataFrame itself. What they do would belong to the session of the import."""

_REFUSED_METHODS = frozenset(
    {
        "scalar", "exists", "asTable", "checkpoint", "localCheckpoint", "crosstab", "transpose", "observe",
        "randomSplit", "colRegex", "pandas_api",
    }
)  # fmt: skip
"""Methods that return DataFrames or columns that cannot be built later in another session."""


class _Evaluation:
    """Where recorded DataFrames are built; each is built once, so that its columns can be referred to."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.built: dict[int, Any] = {}


_evaluations: list[_Evaluation] = []
"""The innermost one is last. User code runs in one thread at a time (`usercode.evaluation_lock`)."""


@contextmanager
def evaluating(session: SparkSession) -> Iterator[None]:
    """Inside the block recorded DataFrames are real ones of `session`."""
    _evaluations.append(_Evaluation(session))
    try:
        yield
    finally:
        _evaluations.pop()


def evaluation_session() -> SparkSession | None:
    """The session of the block of `evaluating`, or None during an import."""
    return _evaluations[-1].session if _evaluations else None


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Recorded:
    """What was recorded: how to build it, the session of the import, and a text for people."""

    build: Callable[[SparkSession], Any]
    session: SparkSession
    text: str
    plan_id: int | None = None
    """Set when the file uses one of its columns."""

    def built(self) -> Any:
        """The real object in the session of the evaluation."""
        evaluation = _evaluations[-1]
        if id(self) not in evaluation.built:
            result = self.build(evaluation.session)
            evaluation.built[id(self)] = (
                result if self.plan_id is None else with_plan_id(result, self.plan_id)
            )
        return evaluation.built[id(self)]

    def column(self, name: str, *, is_metadata: bool = False) -> Column:
        """A column that is found in what is built."""
        if self.plan_id is None:
            self.plan_id = next_plan_id()
            _with_columns[self.plan_id] = self
        return column_of_plan(self.session, name, self.plan_id, is_metadata=is_metadata)

    def method(self, name: str, wrap: Callable[[_Recorded], Any]) -> Callable[..., Any]:
        """A method that records its call."""

        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _copied(args), _copied(kwargs)

            def build(_: SparkSession) -> Any:
                return getattr(self.built(), name)(*args, **kwargs)

            values = [_text(arg) for arg in args]
            values += [f"{key}={_text(value)}" for key, value in kwargs.items()]
            text = f"{self.text}.{name}({', '.join(values)})"
            return wrap(_Recorded(build, self.session, text))

        return call


_with_columns: WeakValueDictionary[int, _Recorded] = WeakValueDictionary()
"""By its plan id."""


_existing_tables: list[Callable[[], SparkSession]] = []


@contextmanager
def existing_tables(session: Callable[[], SparkSession]) -> Iterator[None]:
    """Inside the block a file that is imported gets rows of lake tables that exist already from this session.

    The session of the import has none: it cannot write, and shows the same columns whatever was built.
    """
    _existing_tables.append(session)
    try:
        yield
    finally:
        _existing_tables.pop()


def _attribute_now(recorded: _Recorded, name: str) -> Any:
    """A method or property of the real DataFrame during the import."""
    try:
        with evaluating(recorded.session):
            return getattr(recorded.built(), name)
    except AnalysisException as error:
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND" or not _existing_tables:
            raise
        missing = error
    try:
        session = _existing_tables[-1]()
    except AnalysisException:
        # The lake has no such schema yet.
        raise missing from None
    with evaluating(session):
        return getattr(recorded.built(), name)


class DeferredFrame(DataFrame):
    """A DataFrame that is built in each session in which a query function uses it."""

    _recorded: _Recorded

    def __new__(cls, *_args: Any) -> DeferredFrame:
        return object.__new__(cls)

    def __init__(self, recorded: _Recorded) -> None:
        self._recorded = recorded

    def __getattribute__(self, name: str) -> Any:
        if name in ("_recorded", "_attribute_of_import") or name.startswith("__"):
            return object.__getattribute__(self, name)
        recorded: _Recorded = object.__getattribute__(self, "_recorded")
        if evaluation_session() is not None:
            return getattr(recorded.built(), name)
        if name == "transform":
            return object.__getattribute__(self, name)
        return self._attribute_of_import(name)

    def _attribute_of_import(self, name: str) -> Any:
        recorded = self._recorded
        if name in _FRAME_METHODS:
            return recorded.method(name, DeferredFrame)
        if name in _GROUPING_METHODS:
            return recorded.method(name, _DeferredGroups)
        if name in _WITHOUT_EFFECT:
            return lambda *_args, **_kwargs: self
        if name in _FUNCTIONS_OF_FRAME:
            return _FUNCTIONS_OF_FRAME[name](self)
        if name == "metadataColumn":
            return partial(recorded.column, is_metadata=True)
        if name == "sparkSession":
            return recorded.session
        if name.startswith("_") or name in _REFUSED_METHODS:
            raise _needs_session_error(recorded.text)
        if not hasattr(DataFrame, name):
            return recorded.column(name)
        # The file wants rows or columns now, for instance to loop over them.
        return _attribute_now(recorded, name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __getitem__(self, item: Any) -> Any:
        if evaluation_session() is not None:
            return self._recorded.built()[item]
        if isinstance(item, int):
            item = self.columns[item]
        if isinstance(item, str):
            return self._recorded.column(item)
        return self.filter(item) if isinstance(item, Column) else self.select(*item)

    def __repr__(self) -> str:
        return f"DataFrame[{self._recorded.text}]"


class _DeferredGroups:
    """What `groupBy` of a recorded DataFrame returns."""

    def __init__(self, recorded: _Recorded) -> None:
        self._recorded = recorded

    def __getattr__(self, name: str) -> Any:
        if name == "_recorded":
            raise AttributeError(name)
        if evaluation_session() is not None:
            return getattr(self._recorded.built(), name)
        if name.startswith("_"):
            raise AttributeError(name)
        return self._recorded.method(name, _DeferredGroups if name in ("pivot", "cogroup") else DeferredFrame)


def recorded_call(owner: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DeferredFrame:
    """The call of a method of a session or of a reader, which is made in each session of an evaluation.

    >>> recorded_call(session, "table", ("orders",), {})  # doctest: +SKIP
    DataFrame[spark.table('orders')]
    """
    args, kwargs = _copied(args), _copied(kwargs)
    options: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    session, kind = owner, "spark"
    if not isinstance(owner, SparkSession):
        session = owner._spark  # noqa: SLF001
        kind = "readStream" if isinstance(owner, DataStreamReader) else "read"
        options = list(vars(owner).get(_OPTIONS, ()))

    def build(at: SparkSession) -> Any:
        source = at if kind == "spark" else getattr(at, kind)
        for name, values, named in options:
            source = getattr(source, name)(*values, **named)
        return getattr(source, method)(*args, **kwargs)

    calls = [*options, (method, args, kwargs)]
    text = ".".join(f"{name}({_text(values)}, {_text(named)})" for name, values, named in calls)
    return DeferredFrame(_Recorded(build, session, f"{kind}.{text}"))


def remember_option(reader: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Remember a call that sets an option of a reader, for `recorded_call`."""
    vars(reader).setdefault(_OPTIONS, []).append((method, _copied(args), _copied(kwargs)))


def real_frame(value: Any) -> Any:
    """The value; a recorded DataFrame is built."""
    return value._recorded.built() if isinstance(value, DeferredFrame) else value  # noqa: SLF001


def _copied(value: Any) -> Any:
    """An argument as it is now: each build gets it, and the file may change it later or read on in it."""
    if isinstance(value, Iterator):
        value = list(value)
    if type(value) in (list, tuple, set):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (DataType, bytearray)) or type(value).__module__.startswith(("pandas.", "numpy")):
        return copy.deepcopy(value)
    return value


def _frame_text(plan_id: int) -> str:
    recorded = _with_columns.get(plan_id)
    return recorded.text if recorded is not None else "?"


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_text(item)}' for key, item in value.items())}}}"
    code = getattr(value, "__code__", None)
    if code is not None:
        return str(code.co_name)
    if isinstance(value, Column):
        return column_text(value, _frame_text)
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(_text(item) for item in value))}}}"
    if isinstance(value, (DeferredFrame, _DeferredGroups)):
        return value._recorded.text  # noqa: SLF001
    return repr(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__


def _needs_session_error(text: str) -> DefinitionError:
    return DefinitionError(
        "FRAME_OF_IMPORT_COMBINED",
        f"{text} is read when a query runs, but is used here, during the import, as if it were there already",
        sqlstate="0A000",
        hint="Move this line into the query function.",
    )
