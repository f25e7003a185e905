"""Files that a batch query reads: their identity, their listing, and the query over tables of their rows.

Works on *analyzed* plans: there Spark has listed the files already, with all its rules of what is hidden,
which globs match and which folders are partitions.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from tautochrone.errors import IngestError
from tautochrone.model.lake import RESERVED_COLUMNS
from tautochrone.model.names import FILE_PATH, FILE_STAMP, TableName, file_table
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import (
    Catalyst,
    cached_packages,
    items,
    kind,
    plan_and_subqueries,
    start_callback_server,
    transformed,
    walk,
)

__all__ = [
    "FileReads",
    "FileRelation",
    "file_relations",
    "obstacle_to_following",
    "table_of_several_sources",
    "table_schema",
    "with_file_tables",
]

_FORMATS = frozenset({"parquet", "orc", "csv", "json", "text", "avro"})
_TEXT_FORMATS = frozenset({"csv", "json"})
_CORRUPT = "__tautochrone_corrupt"
_FILE_FUNCTIONS = {"InputFileName", "InputFileBlockStart", "InputFileBlockLength"}
_RESERVED = RESERVED_COLUMNS | {"_metadata", FILE_PATH, FILE_STAMP}
_SETTINGS = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.caseSensitive")
_STATUS = re.compile(
    r"path=.*; isDirectory=\w+; length=(\d+);.*? modification_time=(\d+);(?:.*eTag='?([^';}]*))?", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReads:
    """What a plan does not tell of how its query reads files.

    Attributes:
        catalog: the lake's, for the names of the tables.
        pipeline: two pipelines in one lake never share a table.
        flow: of the query.
        conf: the query's settings, which may change how files are read.
        sql_names: relations in the query's SQL texts. Spark replaces a glob in one by what it matches now.
    """

    catalog: str
    pipeline: str
    flow: str
    conf: Mapping[str, str]
    sql_names: Collection[tuple[str, ...]] = ()

    def sql_path(self, file_format: str, roots: Sequence[str]) -> str | None:
        """The path in the SQL text for these root paths of a relation; None when it is unclear."""
        paths = {parts[1] for parts in self.sql_names if len(parts) == 2 and parts[0].lower() == file_format}
        globs = {path for path in paths if _is_glob(path)}
        if not globs:
            return roots[0] if len(roots) == 1 else None
        return next(iter(globs)) if len(globs) == len(paths) == 1 else None


@dataclass(frozen=True, slots=True)
class FileRelation:
    """One relation over files in an analyzed plan.

    Attributes:
        leaf: Catalyst's node.
        table: holds the rows of the files.
    """

    leaf: JavaObject
    table: TableName

    @property
    def roots(self) -> list[str]:
        """The root paths, after Spark replaced globs by what they match."""
        return _roots(self.leaf)

    @property
    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(str(self.leaf.relation().schema().json())))

    def listing(self, session: SparkSession) -> Mapping[str, str]:
        """The files that Spark listed: path as `_metadata.file_path` spells it → what tells its content.

        Size and modification time, with the tag of an object store where it gives one, and on a local file
        system with the inode and the time of its last change, which no program can set back.
        """
        jvm = session._jvm  # noqa: SLF001
        assert jvm is not None
        location = self.leaf.relation().location()
        # Encoded paths have no line breaks, so the text can be split; one call for all files.
        text = str(jvm.org.apache.hadoop.util.StringUtils.join("\n", location.inputFiles()))
        # Of local files it has three slashes, where `_metadata.file_path` has one.
        paths = [re.sub("^file:/+", "file:/", path) for path in text.split("\n")] if text else []
        statuses = str(location.allFiles().mkString("\0")).split("\0") if paths else []
        if len(paths) != len(statuses):
            raise IngestError(
                "FILE_LISTING_UNREADABLE",
                f"The listing of {self.table.table} has {len(paths)} paths and {len(statuses)} files",
            )
        return {path: _stamp(path, status) for path, status in zip(paths, statuses, strict=True)}

    @property
    def may_be_malformed(self) -> bool:
        """Whether Spark may be unable to parse a record, and say nothing."""
        return _format(self.leaf) in _TEXT_FORMATS

    def rows(
        self,
        session: SparkSession,
        paths: Collection[str] | None,
        stamps: Mapping[str, str],
        malformed: Observation,
    ) -> DataFrame:
        """The rows of some files, or of all, with the columns of `table_schema`.

        Args:
            session: reads them.
            paths: of the files; None: all of the listing.
            stamps: of these files, as `listing` gives them.
            malformed: counts the records that Spark cannot parse, where there may be some.
        """
        leaf = _with_corrupt_column(self.leaf) if self.may_be_malformed else self.leaf
        frame = dataframe_of_plan(session, leaf)
        names = [field.name for field in self.schema.fields]
        quoted = ["`" + name.replace("`", "``") + "`" for name in names]
        if paths is not None:
            # Spark prunes files by this condition while it plans: others are not opened.
            frame = frame.where(sf.col("_metadata.file_path").isin(sorted(paths)))
        if self.may_be_malformed:
            frame = frame.observe(malformed, sf.count(_CORRUPT).alias("records"))
        rows = frame.selectExpr(*quoted, f"_metadata.file_path AS {FILE_PATH}")
        pairs = session.createDataFrame(sorted(stamps.items()), f"{FILE_PATH} string, {FILE_STAMP} string")
        # Fails rather than loses the rows of a file whose path the listing spells otherwise.
        unlisted = f"raise_error(concat('not in the listing: ', {FILE_PATH}))"
        stamp = f"coalesce({FILE_STAMP}, {unlisted}) AS {FILE_STAMP}"
        return rows.join(pairs.hint("broadcast"), FILE_PATH, "left").selectExpr(*quoted, FILE_PATH, stamp)


def _with_corrupt_column(leaf: JavaObject) -> JavaObject:
    """The relation with the column into which Spark puts the records that it cannot parse."""
    context = SparkContext._active_spark_context  # noqa: SLF001
    assert context is not None
    jvm: Any = cached_packages(context._jvm)  # noqa: SLF001
    relation = leaf.relation()
    options = {**_options(leaf), "columnnameofcorruptrecord": _CORRUPT}
    counted = relation.copy(
        relation.location(),
        relation.partitionSchema(),
        relation.dataSchema().add(_CORRUPT, "string"),
        relation.bucketSpec(),
        relation.fileFormat(),
        jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(options),
        relation.sparkSession(),
    )
    companion = getattr(jvm.org.apache.spark.sql.execution.datasources, "LogicalRelation$")
    replaced: JavaObject = getattr(companion, "MODULE$").apply(counted, False)
    return replaced


def table_schema(schema: StructType) -> StructType:
    """The columns of a table that holds rows of files."""
    return StructType(
        [
            *(StructField(field.name, field.dataType) for field in schema.fields),
            StructField(FILE_PATH, StringType()),
            StructField(FILE_STAMP, StringType()),
        ]
    )


def file_relations(plan: JavaObject, reads: FileReads) -> list[FileRelation]:
    """The relations over files in a plan and its subqueries, in reading order.

    Args:
        plan: analyzed.
        reads: of the query.
    """
    leaves = (leaf for root in plan_and_subqueries(plan) for leaf in items(root.collectLeaves()))
    return [FileRelation(leaf, _table(leaf, reads)) for leaf in leaves if _is_over_files(leaf)]


def table_of_several_sources(relations: Sequence[FileRelation]) -> str | None:
    """Which relations have different files and yet one table, as text; None when there are none.

    A glob in the SQL text may not be the one of a relation in a temporary view below.
    """
    roots: dict[TableName, set[str]] = {}
    for relation in relations:
        if roots.setdefault(relation.table, {*relation.roots}) != {*relation.roots}:
            return f"which of its relations a glob belongs to is unclear: one reads {relation.roots[0]}"
    return None


def obstacle_to_following(plan: JavaObject, reads: FileReads) -> str | None:
    """Why a batch query cannot be computed from the rows that each file gave, as text; None when it can."""
    for root in plan_and_subqueries(plan):
        if not root.deterministic():
            for node in walk(root):
                for expression in items(node.expressions()):
                    if any(kind(part) in _FILE_FUNCTIONS for part in walk(expression)):
                        return "the query asks in which file a row is"
        if (obstacle := _obstacle_of_conditions(root)) is not None:
            return obstacle
        for leaf in items(root.collectLeaves()):
            if _is_over_files(leaf) and (obstacle := _obstacle(leaf, reads)):
                return obstacle
    return table_of_several_sources(file_relations(plan, reads))


def _obstacle_of_conditions(root: JavaObject) -> str | None:
    """Spark evaluates conditions while it parses JSON. A row whose condition is false by then is left out,
    and it is not noticed that the row is malformed, of which all values would be NULL."""
    leaves = items(root.collectLeaves())
    if not any(_is_over_files(leaf) and _format(leaf) == "json" for leaf in leaves):
        return None
    for node in walk(root):
        for expression in items(node.expressions()):
            if any(_may_accept_null(part) for part in walk(expression)):
                return "a condition that is true of NULL decides which rows of JSON are malformed"
    return None


def _may_accept_null(expression: JavaObject) -> bool:
    if kind(expression) == "Not":
        return any(kind(part) == "IsNotNull" for part in walk(expression))
    return kind(expression) in ("IsNull", "EqualNullSafe")


def _ignores_corrupt_files(leaf: JavaObject, reads: FileReads) -> bool:
    default = _setting("spark.sql.files.ignoreCorruptFiles", leaf, reads)
    return _options(leaf).get("ignorecorruptfiles", default).lower() == "true"


def _setting(name: str, leaf: JavaObject, reads: FileReads) -> str:
    """A setting of Spark as the query has it."""
    return reads.conf.get(name, str(leaf.relation().sparkSession().conf().get(name)))


def _obstacle(leaf: JavaObject, reads: FileReads) -> str | None:
    relation, options = leaf.relation(), _options(leaf)
    file_format = _format(leaf)
    names = {str(attribute.name()).lower() for attribute in items(leaf.output())}
    if file_format not in _FORMATS:
        return f"the format {file_format} is not followed"
    if int(leaf.output().size()) > int(relation.schema().size()):
        return "the query reads metadata of the files"
    if names & _RESERVED:
        return f"a column has the reserved name {sorted(names & _RESERVED)[0]}"
    if _path(leaf, reads) is None:
        # Some may come from globs, whose new matches would look like another source.
        return "it is read by several paths"
    if _ignores_corrupt_files(leaf, reads):
        # Damage in a column that the query does not read leaves out no rows.
        return "which rows of a corrupt file are ignored depends on the columns that the query reads"
    if file_format in _TEXT_FORMATS:
        # Which rows are malformed depends on the columns that a query reads.
        default = _setting("spark.sql.columnNameOfCorruptRecord", leaf, reads)
        corrupt = options.get("columnnameofcorruptrecord", default).lower()
        if options.get("mode", "permissive").lower() != "permissive" or corrupt in names:
            return "which rows are malformed depends on the columns that the query reads"
    return None


def with_file_tables(frame: DataFrame, reads: FileReads) -> DataFrame:
    """The same query over the tables that hold the rows of its files, which the frame's session must have."""
    session = frame.sparkSession
    catalyst = Catalyst(session)

    def replaced(node: JavaObject) -> JavaObject:
        return _table_plan(catalyst, node, _table(node, reads)) if _is_over_files(node) else node

    start_callback_server(session)
    return dataframe_of_plan(session, transformed(analyzed_plan(frame).transformUpWithSubqueries, replaced))


def _table_plan(catalyst: Catalyst, leaf: JavaObject, table: TableName) -> JavaObject:
    """The rows of a table with the output of the leaf that it stands for."""
    rows = analyzed_plan(catalyst.session.table(table.sql))
    stored = {str(attribute.name()): attribute for attribute in items(rows.output())}
    columns = []
    for attribute in items(leaf.output()):
        column = stored[str(attribute.name())]
        # The lake stores bytes and shorts as int.
        if not column.dataType().equals(attribute.dataType()):
            column = catalyst.cast(column, attribute.dataType())
        columns.append(catalyst.alias(column, str(attribute.name()), attribute.exprId()))
    return catalyst.logical("Project")(catalyst.seq(columns), rows)


def _is_over_files(node: JavaObject) -> bool:
    """Whether a node reads files by path. A table of another catalog that consists of files does not."""
    return (
        kind(node) == "LogicalRelation"
        and not node.isStreaming()
        and node.catalogTable().isEmpty()
        and kind(node.relation()) == "HadoopFsRelation"
        and kind(node.relation().location()) == "InMemoryFileIndex"
    )


def _format(leaf: JavaObject) -> str:
    return str(leaf.relation().fileFormat().toString()).lower()


def _options(leaf: JavaObject) -> dict[str, str]:
    return {str(pair._1()).lower(): str(pair._2()) for pair in items(leaf.relation().options().toSeq())}  # noqa: SLF001


def _roots(leaf: JavaObject) -> list[str]:
    return [str(path) for path in items(leaf.relation().location().rootPaths())]


def _is_glob(path: str) -> bool:
    return bool(set(path) & set("{}[]*?\\"))


def _path(leaf: JavaObject, reads: FileReads) -> str | None:
    """The path of a relation as the query gives it, with its file system; None when that is unclear."""
    roots = _roots(leaf)
    given = _options(leaf).get("path") or reads.sql_path(_format(leaf), roots)
    if given is None:
        return None
    relation, context = leaf.relation(), SparkContext._active_spark_context  # noqa: SLF001
    assert context is not None
    path = cached_packages(context._jvm).org.apache.hadoop.fs.Path(given)  # noqa: SLF001
    # However a query spells a folder, it is one source; a relative path is another in another folder.
    conf = relation.sparkSession().sessionState().newHadoopConfWithOptions(relation.options())
    qualified = str(path.getFileSystem(conf).makeQualified(path).toString())
    # With a setting of older Spark versions, a reader's option `path` adds to its other paths.
    return qualified if _is_glob(given) or roots == [qualified] else None


def _table(leaf: JavaObject, reads: FileReads) -> TableName:
    relation, options = leaf.relation(), _options(leaf)
    path = _path(leaf, reads) or ""
    session_conf = relation.sparkSession().conf()
    settings = {name: str(session_conf.get(name)) for name in _SETTINGS}
    settings |= {name: value for name, value in reads.conf.items() if name.startswith("spark.sql.")}
    # Only the flow whose text has a glob can check that it belongs to this relation.
    owner = [reads.pipeline] if "path" in options or not _is_glob(path) else [reads.pipeline, reads.flow]
    options.pop("path", None)
    source = json.dumps([owner, _format(leaf), path, sorted(options.items()), sorted(settings.items())])
    return file_table(reads.catalog, path, source, str(relation.schema().json()))


def _stamp(path: str, status: str) -> str:
    matched = _STATUS.search(status)
    if matched is None:
        raise IngestError("FILE_LISTING_UNREADABLE", f"A file's status is not understood: {status}")
    size, modified, tag = matched.groups()
    parts = [size, modified, tag or ""]
    url = urlsplit(path)
    if url.scheme == "file":
        try:
            stat = os.stat(unquote(url.path))
            parts += [str(stat.st_ino), str(stat.st_ctime_ns)]
        except OSError:
            # It vanished after the listing; reading it will tell.
            parts.append("gone")
    return ":".join(parts)
