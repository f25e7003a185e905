"""The line on which a record of a text file begins, for the few records that Spark's reader cannot parse.

Spark's readers of CSV, JSON and XML number neither lines nor records. So the files that have such records are
read once more as text, and the records are looked up by what they say:

    records (file, text)       lines of these files (file, number, text)
                    └── same file, same text ──┘     n records on k lines → numbers, or why there is none

Nothing is guessed: where the same text stands on more lines than records have it, the line is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from tautochrone.spark.jvm.driver_calls import new_session

__all__ = ["TextLayout", "with_lines"]

_MB = 1024**2
_MAX_LINES_BYTES = 1024 * _MB
"""A file is read as lines by one task."""
_MAX_TEXT_BYTES = 16 * _MB
"""A file in which records span lines is held in memory, and gone through for each of its records."""
_MAX_TEXT_RECORDS = 200
_MAX_FILES = 1000
_TASK_BYTES = 1 << 40
_IN_PARTITION = (1 << 33) - 1
"""The bits of `monotonically_increasing_id` that number the rows of a partition."""
_SETTINGS = {
    # A file is a partition: its rows are numbered from 0, and two small files do not share one.
    "spark.sql.files.maxPartitionBytes": str(_TASK_BYTES),
    "spark.sql.files.openCostInBytes": str(2 * _TASK_BYTES),
    # The readers decode every charset of Java, and replace what is wrong.
    "spark.sql.legacy.javaCharsets": "true",
    "spark.sql.legacy.codingErrorAction": "true",
}


@dataclass(frozen=True, slots=True)
class TextLayout:
    """How a reader takes records from a file.

    Attributes:
        spans_lines: a record may have several lines, as with `multiLine` and in XML.
        has_header: the first line of a file is not a record.
        encoding: of the text; None: UTF-8.
        line_separator: None: any that Spark knows.
        storage: options of the reader for the file system, such as its login.
    """

    spans_lines: bool = False
    has_header: bool = False
    encoding: str | None = None
    line_separator: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict)


def with_lines(session: SparkSession, records: DataFrame, layout: TextLayout) -> DataFrame:
    """The records with the columns `line`, the first is 1, and `no_line`, why it is NULL.

    Args:
        session: whose context reads the files; its settings stay.
        records: with the columns `file`, a URL, and `record`, its text. They are evaluated several times.
        layout: of the files.
    """
    urls = [row["file"] for row in records.select("file").distinct().orderBy("file").collect()]
    jvm: Any = session._jvm  # noqa: SLF001
    of_url = jvm.org.apache.spark.paths.SparkPath.fromUrlString
    paths = {str(of_url(url).toPath().toString()): url for url in urls[:_MAX_FILES]}
    reading = new_session(session, without=("spark.sql.files.maxPartitionNum",), settings=_SETTINGS)
    # The reader of whole files lists them, and opens none for this column.
    listed = _read(reading, "binaryFile", list(paths), layout.storage).select("path", "length").collect()
    limit = _MAX_TEXT_BYTES if layout.spans_lines else _MAX_LINES_BYTES
    large = [row["path"] for row in listed if row["length"] > limit]
    texts = _texts(reading, [path for path in paths if path not in large], layout)
    # Spark gives the bytes of JSON as they are, and decodes those of CSV.
    readable = records.withColumn("_text", sf.make_valid_utf8("record"))
    same = readable.groupBy("file", "_text").agg(sf.count("*").alias("_records"))
    lines = _in_texts(texts, same) if layout.spans_lines else _in_lines(texts, same, layout)
    order = Window.partitionBy("file", "_text").orderBy(sf.lit(1))
    numbered = readable.withColumn("_number", sf.row_number().over(order) - 1)
    joined = numbered.join(lines, ["file", "_text"], "left")
    line = sf.expr("get(_lines, cast(_number div _records_of_line AS INT))")
    obstacle = (
        sf.when(line.isNotNull(), None)
        .when(~sf.col("file").isin(list(paths.values())), f"more than {_MAX_FILES:,} files have such records")
        .when(
            sf.col("file").isin([paths[path] for path in large]),
            f"the file has more than {limit // _MB:,} MB",
        )
        .when(sf.col("_lines").isNotNull(), "the file has the text of the record more often than it fails")
        .when(sf.col("_is_left_out"), f"more than {_MAX_TEXT_RECORDS} records of the file fail")
        .otherwise("the file does not have the text of the record as the reader gives it")
    )
    return joined.select(*records.columns, line.alias("line"), obstacle.alias("no_line"))


def _read(
    session: SparkSession, file_format: str, paths: list[str], options: Mapping[str, str | bool]
) -> DataFrame:
    """Files by their paths, in which no character is a pattern, and which give no columns."""
    of_paths = {"__globPaths__": False, "recursiveFileLookup": True}
    return session.read.format(file_format).options(**{**options, **of_paths}).load(paths)


def _texts(session: SparkSession, paths: list[str], layout: TextLayout) -> DataFrame:
    """Of each line, or of each whole file: `file`, `number`, `_text`."""
    options: dict[str, str | bool] = {**layout.storage, "wholetext": layout.spans_lines}
    if layout.line_separator is not None:
        options |= {"lineSep": layout.line_separator, "encoding": layout.encoding or "UTF-8"}
    if not paths:
        return session.createDataFrame([], "file STRING, number BIGINT, _text STRING")
    number = sf.monotonically_increasing_id().bitwiseAND(sf.lit(_IN_PARTITION)) + 1
    text = sf.col("value")
    if layout.encoding is not None:
        text = sf.decode(text.cast("binary"), layout.encoding)
    return _read(session, "text", paths, options).select(
        sf.input_file_name().alias("file"), number.alias("number"), sf.make_valid_utf8(text).alias("_text")
    )


def _in_lines(texts: DataFrame, same: DataFrame, layout: TextLayout) -> DataFrame:
    """Of each text that records have: its lines.

    All records of one text fail, so each of its n records is on one of its k lines, or on none only because
    that is the header; a line may have several, as an array of JSON.
    """
    lines = (
        texts.join(same, ["file", "_text"])
        .groupBy("file", "_text")
        .agg(sf.max("_records").alias("n"), sf.sort_array(sf.collect_list("number")).alias("all"))
    )
    is_header = sf.lit(layout.has_header) & (sf.size("all") > 1) & (sf.col("n") % sf.size("all") != 0)
    return (
        lines.withColumn("skipped", sf.when(is_header, 1).otherwise(0))
        .withColumn("k", sf.size("all") - sf.col("skipped"))
        .select(
            "file",
            "_text",
            sf.expr("if(n % k = 0, slice(all, skipped + 1, k), array())").alias("_lines"),
            sf.expr("if(n % k = 0, n div k, n)").alias("_records_of_line"),
            sf.lit(False).alias("_is_left_out"),
        )
    )


def _in_texts(texts: DataFrame, same: DataFrame) -> DataFrame:
    """Of each text that records have: the line on which it begins, if the file has it once."""
    order = Window.partitionBy("file").orderBy("_record")
    records = same.withColumnRenamed("_text", "_record").withColumn(
        "_is_left_out", sf.row_number().over(order) > _MAX_TEXT_RECORDS
    )
    position = sf.when(~sf.col("_is_left_out"), sf.expr("nullif(locate(_record, _text), 0)"))
    return (
        records.join(texts, "file")
        .withColumn("at", position)
        .withColumn("again", sf.expr("locate(_record, _text, at + 1)"))
        .withColumn("before", sf.expr("left(_text, at - 1)"))
        .select(
            "file",
            sf.col("_record").alias("_text"),
            sf.expr(
                "CASE WHEN again = 0 THEN array(1 + length(before) - length(replace(before, '\\n'))) "
                "WHEN again > 0 THEN array() END"
            ).alias("_lines"),
            sf.col("_records").alias("_records_of_line"),
            "_is_left_out",
        )
    )
