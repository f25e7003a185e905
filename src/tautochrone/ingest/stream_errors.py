"""What Spark throws while a stream runs, as our errors; and what is wrong with a flow's folder."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

from tautochrone.errors import (
    DefinitionError,
    IngestError,
    OffsetsOutOfRangeError,
    StateLostError,
    TautochroneError,
)
from tautochrone.model.reason import Reason
from tautochrone.spark.session.jvm_liveness import jvm_error
from tautochrone.traces import trace_of

__all__ = ["batch_error", "diverged_error", "explain", "state_lost_error"]

_UNEXPLAINED = "FLOW_FAILED"
_OUT_OF_RANGE = re.compile(
    r"OffsetOutOfRange|KafkaIllegalState|data may have been lost|Cannot fetch offset|"
    r"KAFKA_DATA_LOSS|are gone|have been missed|fetched offset \d+ .* is out of range",
    re.IGNORECASE,
)
_KAFKA_RANGE = re.compile(r"records in offset \[(\d+), (\d+)\) for topic partition (\S+)-(\d+)")
_HINTS = {
    "DATA_SOURCE_NOT_FOUND": "Add the package of this format by --conf spark.jars.packages=…, or register a "
    "Python data source of this name with spark.dataSource.register.",
    "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION": "Aggregate in a materialized view, which reads tables "
    "without a stream (spark.read.table, in SQL without STREAM) and is refreshed by what changed. To keep "
    "the streaming table, group by a time that has a watermark (withWatermark, in SQL WATERMARK).",
}
_WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH")
_CLASSED = re.compile(
    r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] (.+?)(?:\s*SQLSTATE: (\w{5}).*)?$", re.MULTILINE
)
_FILE = re.compile(r"while reading file (?:file:/*(?=/))?(\S+?)\.?\s")
_CSV_HEADER = re.compile(
    r"CSV header does not conform to the schema\.\s+Header: (?P<header>.*)\s+Schema: (?P<schema>.*)"
    r"|Header length: (?P<found>\d+), schema size: (?P<expected>\d+)"
)
_CAUSE = re.compile(r"^(?:Caused by: )?(?:[\w.$]+(?:Exception|Error)): (.+)$", re.MULTILINE)


def explain(error: Exception, flow: str) -> TautochroneError:
    """The error for a flow that died. Spark's own class and sentence are kept."""
    text = str(error) or type(error).__name__
    if _OUT_OF_RANGE.search(text):
        return OffsetsOutOfRangeError(
            "OFFSETS_OUT_OF_RANGE",
            f"Flow {flow} must read on from positions that its source no longer holds: {_missing(text)}",
            hint="rows between the two positions are lost to this flow; to accept that, start over with "
            "--full-refresh, or set the source's own option (Kafka: failOnDataLoss=false)",
        )
    other_header = _CSV_HEADER.search(text)
    if other_header is not None:
        return _changed_header_error(other_header, _FILE.search(text), flow)
    condition, sentence, state = "", _sentence(text), None
    if isinstance(error, PySparkException):
        condition, state = error.getCondition() or "", error.getSqlState()
    sentence = sentence.removeprefix(f"[{condition}] ")
    if not condition or condition.startswith(_WRAPPERS):
        condition, sentence, state = _innermost(text, sentence)
    file = _FILE.search(text)
    if file and file[1] not in sentence:
        sentence = f"{sentence.rstrip('.')} (file {file[1]})"
    kind = DefinitionError if type(error).__name__ in ("AnalysisException", "ParseException") else IngestError
    return kind(
        condition, f"Flow {flow} failed: {sentence}", sqlstate=state or None, hint=_HINTS.get(condition)
    )


def _changed_header_error(header: re.Match[str], file: re.Match[str] | None, flow: str) -> IngestError:
    columns = f"{header['found']} columns, not {header['expected']}"
    if header["header"] is not None:
        columns = f"{header['header']}, not {header['schema']}"
    return IngestError(
        "CSV_HEADER_DIFFERS",
        f"Flow {flow} failed: the header of {'a file' if file is None else file[1]} has {columns}",
        hint="values are read by their place: give all files of the folder one header, or read these by a "
        "flow of their own; with the option enforceSchema = true headers are not compared",
    )


def batch_error(error: Exception, flow: str) -> TautochroneError:
    """What a batch of the flow failed with; a defect leaves its trace, and the sentence says where."""
    if isinstance(error, TautochroneError):
        return error
    explained = explain(error, flow)
    # What has a class of Spark's is about the data or the source, and no defect.
    if explained.error_class != _UNEXPLAINED or isinstance(error, PySparkException) or jvm_error(ask=True):
        return explained
    trace = trace_of(error, f"batch of flow {flow}")
    return IngestError(
        "FLOW_FAILED", f"{explained.message.rstrip('.')} ({trace})", sqlstate=explained.sqlstate
    )


def _innermost(text: str, sentence: str) -> tuple[str, str, str | None]:
    """Class, sentence and SQLSTATE of the innermost cause that has a class of Spark's. A library's
    own words below it (`sentence`) say where exactly it hurts."""
    matches = [match for match in _CLASSED.finditer(text) if not match[1].startswith(_WRAPPERS)]
    if not matches:
        return "FLOW_FAILED", sentence, None
    condition, words, state = matches[-1].groups()
    if state is None:
        # A sentence of several lines: it ends where the stack begins.
        rest = re.split(r"^\s+at ", text[matches[-1].end() :], maxsplit=1, flags=re.MULTILINE)[0]
        later = re.search(r"SQLSTATE: (\w{5})", rest)
        state = later and later[1]
    below = sentence if f"[{condition}]" not in sentence and sentence in text[matches[-1].end() :] else ""
    return condition, f"{words.strip()} {below}".strip()[:600], state


def _missing(text: str) -> str:
    """What the source lacks. Spark's Kafka source says it after `Reason:`, below general advice."""
    match = _KAFKA_RANGE.search(text)
    if match:
        start, end, topic, partition = match.groups()
        return f"topic {topic}, partition {partition}, from offset {start} on (wanted {start} to {end})"
    reason = re.search(r"^Reason: (.+)$", text, re.MULTILINE)
    line = reason or re.search(rf"^.*(?:{_OUT_OF_RANGE.pattern}).*$", text, re.MULTILINE | re.IGNORECASE)
    return (
        re.sub(r"^[\s:]*(?:Caused by: )?[\w.$]+Exception: ", "", line[line.lastindex or 0])[:500]
        if line
        else ""
    )


def _sentence(text: str) -> str:
    """The innermost message that says something, without stack frames."""
    causes = [match[1] for match in _CAUSE.finditer(text)]
    best = next((c for c in reversed(causes) if len(c) > 15), None) or text.strip().splitlines()[0]
    return re.sub(r"\s*SQLSTATE: \w{5}.*$", "", best)[:600]


def state_lost_error(flow: str, table: str, path: str, reason: Reason | None) -> StateLostError:
    """The state that belongs to the table's position is not in the folder `path`, nor in an older one."""
    return StateLostError(
        "FLOW_STATE_LOST",
        f"Flow {flow} keeps state, and the state that belongs to the rows of {table} is not in {path} "
        f"({reason or 'its files are gone'})",
        hint=f"restore the flow's folders as they were, or rebuild with --full-refresh {table}",
    )


def diverged_error(flow: str, difference: str) -> IngestError:
    """The folder no longer says what the query planned; `difference` names the batch and how it differs."""
    return IngestError(
        "FLOW_POSITIONS_DIVERGED",
        f"Flow {flow}: {difference}; nothing of it is committed",
        hint="something else writes into this folder: find it and end it; the next start of the flow goes on "
        "from where its table is",
    )
