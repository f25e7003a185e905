"""Records of text files that Spark's reader cannot parse: counted while a stream reads them, or set aside.

In PERMISSIVE mode Spark makes NULL values of what it cannot parse, and puts the record into the column of
corrupt records if the reader's schema has one. So the leaf of a file source gets that column, Spark counts
where it has a value, and the query above sees the columns of before:

    leaf                    leaf + corrupt column → count → (set aside: leave such rows out) → columns

Only the files of a batch that has such records are read a second time: to name the files, or to set the
records aside. One read cannot do both: its rows go where the query sends them, there may be more such records
than the driver holds, and what Spark observes beside them cannot ask for the file of a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from tautochrone.model.names import quoted
from tautochrone.model.reason import Reason
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, replace_leaves
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import items, kind, walk, walk_with_subqueries
from tautochrone.spark.sources.files import FileSource
from tautochrone.spark.sources.record_lines import TextLayout
from tautochrone.spark.sources.registry import is_stream_leaf, source_of
from tautochrone.spark.sources.spark_source import with_field
from tautochrone.spark.sources.stream_as_batch import renamed

__all__ = [
    "CountedRecords",
    "CountedStream",
    "counted_stream",
    "reads_text_files",
    "records_by_file",
    "why_none_is_set_aside",
]

_FORMATS = ("csv", "json", "xml")
_CORRUPT = "__tautochrone_corrupt"
_METRIC = "__tautochrone_malformed_"
_FILES_NAMED = 20
_SAMPLED = "the query divides the rows into ranges, for which Spark reads them twice"
_OPTION, _SETTING = "columnnameofcorruptrecord", "spark.sql.columnNameOfCorruptRecord"


@dataclass(frozen=True, slots=True)
class CountedRecords:
    """Records of one batch that did not parse.

    Attributes:
        written: records whose rows have NULL values instead.
        dropped: records that `mode = DROPMALFORMED` left out.
        set_aside: records that are left out for the quarantine table.
        files: by URL of the file the number of such records, for those files that have most of them.
        unnamed: why no files are named, although there are such records.
    """

    written: int = 0
    dropped: int = 0
    set_aside: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    unnamed: Reason | None = None

    @property
    def total(self) -> int:
        return self.written + self.dropped + self.set_aside


@dataclass(frozen=True, slots=True)
class _Reader:
    """A file source whose records are counted.

    Attributes:
        leaf: its leaf as the query has it.
        counted: the leaf with the corrupt column.
        corrupt: the name of that column.
        metric: the name under which Spark counts.
        fate: what becomes of a record that does not parse, a field of `CountedRecords`.
        data_columns: the columns that are in the files, but for the corrupt one.
        layout: of its files.
    """

    leaf: JavaObject
    counted: JavaObject
    corrupt: str
    metric: str
    fate: str
    data_columns: frozenset[str]
    layout: TextLayout


@dataclass(frozen=True, slots=True)
class CountedStream:
    """A stream whose file sources count what they cannot parse.

    Attributes:
        rows: the stream, with the columns and rows that it has without counting.
        uncounted: why some of its sources do not count, as texts.
    """

    rows: DataFrame
    uncounted: Sequence[str] = ()
    _readers: Sequence[_Reader] = ()

    @property
    def is_counted(self) -> bool:
        """Whether a source counts."""
        return bool(self._readers)

    def counts(self, query: StreamingQuery) -> CountedRecords:
        """Of the batch that runs, after its rows were read; the files are not named."""
        if not self._readers:
            return CountedRecords()
        observed: Any = _execution(query).observedMetrics()
        counts = dict.fromkeys(("written", "dropped", "set_aside"), 0)
        for reader in self._readers:
            if observed.contains(reader.metric):
                counts[reader.fate] += int(json.loads(observed.apply(reader.metric).json())["records"])
        return CountedRecords(counts["written"], counts["dropped"], counts["set_aside"])

    def records(
        self, session: SparkSession, query: StreamingQuery, *, set_aside: bool = True
    ) -> list[tuple[DataFrame, TextLayout]]:
        """What did not parse of the running batch, read again: the columns `file`, `record` and `missing`,
        the names of the columns that have no value; with the layout of the files.

        Args:
            session: in which the query was evaluated.
            query: of the batch.
            set_aside: those that are set aside, or those that are written or dropped.
        """
        execution = _execution(query)
        frames = []
        for reader in self._readers:
            read = _columns_read(execution.optimizedPlan(), reader.metric)
            # Nothing is read of a source that has no files in this batch.
            if (reader.fate == "set_aside") is set_aside and read:
                frames += [
                    (_malformed(_as_batch(session, node.child()), reader, read), reader.layout)
                    for node in walk(execution.analyzed())
                    if _counts(node, reader.metric)
                ]
        return frames


def records_by_file(records: DataFrame) -> dict[str, int]:
    """How many records of `CountedStream.records` are in each of the files that have most of them."""
    # The columns without a value must be read again, else other records would be malformed.
    counts = records.groupBy("file").agg(sf.count("record").alias("n"), sf.max("missing"))
    return {
        row["file"]: row["n"] for row in counts.orderBy(sf.desc("n"), "file").limit(_FILES_NAMED).collect()
    }


def reads_text_files(frame: DataFrame) -> bool:
    """Whether a streaming query reads files whose records may not parse."""
    return bool(_text_sources(frame))


def _text_sources(frame: DataFrame) -> list[JavaObject]:
    leaves = [leaf for leaf in items(analyzed_plan(frame).collectLeaves()) if is_stream_leaf(leaf)]
    return [leaf.dataSource() for leaf in leaves if _text_format(source_of(leaf)) is not None]


def why_none_is_set_aside(frame: DataFrame) -> str | None:
    """Why no record of the files that a streaming query reads can be set aside, as text; None if they can."""
    of_text = _text_sources(frame)
    if not of_text:
        return "it reads no files of CSV, JSON or XML"
    if any(left.equals(right) for left, right in combinations(of_text, 2)):
        # A record may be malformed for one part of the query, and good for another.
        return "it reads the same files more than once"
    return _SAMPLED if _takes_sample(analyzed_plan(frame)) else None


def _takes_sample(plan: JavaObject) -> bool:
    """Whether the stream is divided into ranges: for their bounds Spark computes all rows once more.

    A sort divides rows so too, which Spark refuses on streams.
    """
    return any(
        kind(node) == "RepartitionByExpression"
        and node.isStreaming()
        and any(kind(part) == "SortOrder" for part in items(node.partitionExpressions()))
        for node in walk_with_subqueries(plan)
    )


def counted_stream(session: SparkSession, frame: DataFrame, *, set_aside: bool) -> CountedStream:
    """The same stream, whose file sources count the records that they cannot parse.

    Args:
        session: in which the query was evaluated.
        frame: the streaming query.
        set_aside: leave out the rows of such records, also of readers in FAILFAST mode.
    """
    plan = analyzed_plan(frame)
    set_aside = set_aside and why_none_is_set_aside(frame) is None
    readers: list[_Reader] = []
    uncounted: list[str] = []

    def leaf(node: JavaObject) -> JavaObject:
        source = source_of(node) if is_stream_leaf(node) else None
        if not isinstance(source, FileSource) or _text_format(source) is None:
            return node
        # One source may be several leaves, which must stay one: positions are kept by number of the source.
        known = next((reader for reader in readers if node.equals(reader.leaf)), None)
        if known is not None:
            return _replaced(session, known, counts=False)
        reader = _reader(session, source, f"{_METRIC}{len(readers)}", set_aside=set_aside)
        obstacle = _obstacle(session, plan, source, reader)
        if obstacle is not None:
            uncounted.extend([obstacle] if obstacle else [])
            return node
        readers.append(reader)
        return _replaced(session, reader, counts=True)

    replaced = replace_leaves(session, plan, leaf)
    return CountedStream(
        dataframe_of_plan(session, replaced) if readers else frame, tuple(uncounted), tuple(readers)
    )


def _text_format(source: object) -> str | None:
    if not isinstance(source, FileSource):
        return None
    name = str(source.leaf.dataSource().className()).lower()
    return name if name in _FORMATS else None


def _mode(source: FileSource) -> str:
    options = {option.lower(): value for option, value in source.options().items()}
    mode = options.get("mode", "permissive").strip().lower()
    return mode if mode in ("dropmalformed", "failfast") else "permissive"


def _obstacle(session: SparkSession, plan: JavaObject, source: FileSource, reader: _Reader) -> str | None:
    """Why counting would change the rows, as text; an empty one where nothing is left to count."""
    mode, file_format = _mode(source), _text_format(source)
    if mode == "failfast" and reader.fate != "set_aside":
        return ""
    unread = _unread_columns(session, plan, source)
    if reader.data_columns <= unread:
        # Spark refuses to read nothing but the corrupt column.
        return "the query reads none of the columns of the files"
    if reader.fate == "set_aside":
        return None
    if _takes_sample(plan):
        return _SAMPLED
    if file_format == "csv" and mode == "dropmalformed" and unread:
        return "which lines of CSV are dropped depends on the columns that the query reads"
    if file_format == "json" and _may_accept_null(plan, _corrupt_column(source, session)):
        return "a condition that is true of NULL decides which rows of JSON are malformed"
    return None


def _unread_columns(session: SparkSession, plan: JavaObject, source: FileSource) -> frozenset[str]:
    """The columns of a source that nothing in the query needs."""
    # A query of a stream has no optimized plan before it is started.
    optimized = session._jsparkSession.sessionState().optimizer().execute(plan)  # noqa: SLF001
    references = {str(column.exprId().id()) for column in items(optimized.output())}
    for node in walk_with_subqueries(optimized):
        if node.children().size():
            references |= {str(column.exprId().id()) for column in items(node.references().toSeq())}
    columns = {str(column.exprId().id()): str(column.name()) for column in items(source.leaf.output())}
    return frozenset(name for number, name in columns.items() if number not in references)


def _may_accept_null(plan: JavaObject, corrupt: str) -> bool:
    """Spark evaluates conditions while it parses JSON, before it knows whether the record is malformed."""
    for node in walk_with_subqueries(plan):
        if kind(node) not in ("Filter", "Join"):
            continue
        for expression in items(node.expressions()):
            for part in walk(expression):
                name = kind(part)
                if name == "EqualNullSafe" or (name == "Not" and kind(part.child()) == "IsNotNull"):
                    return True
                if name == "IsNull" and str(part.child().sql()).strip("`").rpartition(".")[2] != corrupt:
                    return True
    return False


def _corrupt_column(source: FileSource, session: SparkSession) -> str:
    options = {option.lower(): value for option, value in source.options().items()}
    return options.get(_OPTION) or str(session.conf.get(_SETTING))


def _reader(session: SparkSession, source: FileSource, metric: str, *, set_aside: bool) -> _Reader:
    """The source with a corrupt column: the user's, or one of ours."""
    leaf, name = source.leaf, _corrupt_column(source, session)
    data_source = leaf.dataSource()
    given = data_source.userSpecifiedSchema()
    schema = StructType.fromJson(json.loads((given.get() if given.isDefined() else leaf.schema()).json()))
    mode, added = _mode(source), dict[str, str]()
    is_there = any(each.name == name and isinstance(each.dataType, StringType) for each in schema.fields)
    if not is_there:
        name = _CORRUPT
        added[_OPTION] = name
        schema = StructType([*schema.fields, StructField(name, StringType())])
    if mode != "permissive":
        added["mode"] = "PERMISSIVE"
    counted = source.with_schema(session, schema, added)
    fate = "set_aside" if set_aside else "dropped" if mode == "dropmalformed" else "written"
    columns = [str(column.name()) for column in items(counted.output())]
    # The columns of partitions, and the metadata, follow those that are in the files.
    in_files = columns if is_there else columns[: columns.index(name)]
    data_columns = frozenset(in_files) - {name, "_metadata"}
    return _Reader(leaf, counted, name, metric, fate, data_columns, _layout(source))


def _layout(source: FileSource) -> TextLayout:
    options = {option.lower(): value for option, value in source.options().items()}
    file_format = _text_format(source)
    return TextLayout(
        spans_lines=file_format == "xml" or options.get("multiline", "").strip().lower() == "true",
        has_header=file_format == "csv" and options.get("header", "").strip().lower() == "true",
        encoding=options.get("encoding", options.get("charset")),
        line_separator=options.get("linesep"),
        storage={name: value for name, value in source.options().items() if name.lower().startswith("fs.")},
    )


def _replaced(session: SparkSession, reader: _Reader, *, counts: bool) -> JavaObject:
    """The counted leaf with the output of the leaf that it stands for."""
    rows = dataframe_of_plan(session, reader.counted)
    corrupt = sf.col(quoted(reader.corrupt))
    if counts:
        rows = rows.observe(reader.metric, sf.count(corrupt).alias("records"))
    if reader.fate != "written":
        rows = rows.where(corrupt.isNull())
    return renamed(session, reader.leaf, analyzed_plan(rows))


def _execution(query: StreamingQuery) -> Any:
    """The query's plans of its newest batch."""
    return query._jsq.streamingQuery().lastExecution()  # noqa: SLF001


def _counts(node: JavaObject, metric: str) -> bool:
    return kind(node) == "CollectMetrics" and str(node.name()) == metric


def _columns_read(optimized: JavaObject, metric: str) -> frozenset[str]:
    """The columns that the reader parses: which records are malformed depends on them. None of a batch
    without files."""
    columns = set[str]()
    for node in walk(optimized):
        if not _counts(node, metric):
            continue
        parts = list(walk(node.child()))
        if kind(parts[-1]) == "LocalRelation":
            continue
        # A leaf below no other node gives all its columns.
        read = [part.references().toSeq() for part in parts if part.children().size()] or [parts[-1].output()]
        columns |= {str(column.name()) for each in read for column in items(each)}
    return frozenset(columns)


def _as_batch(session: SparkSession, plan: JavaObject) -> DataFrame:
    """A part of a batch's plan that can be run by itself."""

    def leaf(node: JavaObject) -> JavaObject:
        is_stream = kind(node) == "LogicalRelation"
        return node.copy(*with_field(node, "isStreaming", False)) if is_stream else node

    return dataframe_of_plan(session, replace_leaves(session, plan, leaf))


def _malformed(rows: DataFrame, reader: _Reader, columns_read: frozenset[str]) -> DataFrame:
    # These columns must be read again, else other records would be malformed.
    columns = [name for name in rows.columns if name in columns_read and name != reader.corrupt]
    missing = [sf.when(sf.col(quoted(name)).isNull(), sf.lit(name)) for name in columns]
    return rows.where(sf.col(quoted(reader.corrupt)).isNotNull()).select(
        sf.input_file_name().alias("file"),
        sf.col(quoted(reader.corrupt)).alias("record"),
        sf.concat_ws(", ", *missing).alias("missing"),
    )
