"""Spark's texts as our errors. The texts are Spark 4.1's own, shortened where they only repeat."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tautochrone.errors import IngestError, OffsetsOutOfRangeError
from tautochrone.ingest.stream_errors import explain

RANGE = """\
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink.
py4j.protocol.Py4JJavaError: An error occurred while calling o6355.save.
: org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost because they are
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.
Reason: Could not read records in offset [10, 20) for topic partition my-topic-1
with consumer group spark-kafka-source-6efcc1a2-1839-434c-ad8f-684916483e06--1737302104-executor.
\tat org.apache.spark.sql.kafka010.KafkaExceptions$.couldNotReadOffsetRange(KafkaExceptions.scala:101)
Caused by: org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position {offset=10}
"""
DELETED = """\
Some data may have been lost because they are not available in Kafka any more;
Reason: Set(my-topic-2) are gone. Some data may have been missed
"""


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (RANGE, "topic my-topic, partition 1, from offset 10 on (wanted 10 to 20)"),
        (DELETED, "Set(my-topic-2) are gone. Some data may have been missed"),
        (
            "x\nCaused by: a.b.OffsetOutOfRangeException: position 10 is out of range\n\tat x.y(Z.scala)",
            "position 10 is out of range",
        ),
        ("Cannot fetch offset 7", "Cannot fetch offset 7"),
    ],
)
def test_records_that_are_gone(text: str, missing: str) -> None:
    error = explain(PySparkException(text), "events")
    assert isinstance(error, OffsetsOutOfRangeError)
    assert error.error_class == "OFFSETS_OUT_OF_RANGE"
    assert error.message == (
        f"Flow events must read on from positions that its source no longer holds: {missing}"
    )
    assert "failOnDataLoss" in (error.hint or "")


STREAM = """\
[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: Job aborted. SQLSTATE: XXKST
\tat org.apache.spark.A(B.scala:1)
Caused by: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file \
file:///in/b.json.  SQLSTATE: KD001
\tat org.apache.spark.A(B.scala:1)
"""
MALFORMED = """\
Caused by: a.b.SparkException: [MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] Malformed: [null].
Parse Mode: FAILFAST. To process malformed records as null result, try another mode. SQLSTATE: 22023
Caused by: com.fasterxml.jackson.core.io.JsonEOFException: Unexpected end-of-input within Object entries
 at [Source: UNKNOWN; byte offset: #14]
"""
FIELD = """\
Caused by: a.b.SparkRuntimeException: [CANNOT_PARSE_JSON_FIELD] Cannot parse 'amount'. SQLSTATE: 2203G
\tat org.apache.spark.A(B.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "error_class", "sentence", "state"),
    [
        (
            STREAM + MALFORMED,
            "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION",
            "Malformed: [null]. Unexpected end-of-input within Object entries (file /in/b.json)",
            "22023",
        ),
        (STREAM + FIELD, "CANNOT_PARSE_JSON_FIELD", "Cannot parse 'amount' (file /in/b.json)", "2203G"),
        (
            STREAM,
            "FAILED_READ_FILE.NO_HINT",
            "Encountered error while reading file file:///in/b.json.",
            "KD001",
        ),
        (
            "java.lang.IllegalStateException: something broke inside",
            "FLOW_FAILED",
            "something broke inside",
            "58000",
        ),
    ],
)
def test_error_of_the_innermost_cause_is_used(text: str, error_class: str, sentence: str, state: str) -> None:
    error = explain(PySparkException(text), "events")
    assert isinstance(error, IngestError)
    assert error.error_class == error_class
    assert error.message == f"Flow events failed: {sentence}"
    assert error.sqlstate == state


def test_aggregate_without_watermark_has_a_hint() -> None:
    text = (
        "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: append. This output "
        "mode is not supported for streaming aggregations without watermark on streaming DataFrames/"
        "DataSets. SQLSTATE: 42KDE"
    )
    error = explain(PySparkException(text), "totals")
    assert error.error_class == "STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION"
    assert "materialized view" in (error.hint or "")
