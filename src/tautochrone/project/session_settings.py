"""Which settings Spark takes only before it starts, and which can change the rows of a query.

The latter are part of a definition: a view is built again when one of them changes. Settings that change only
how Spark computes the same rows are not. A setting that is not listed here counts, because a refresh without
need is better than rows that Spark would not give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

__all__ = [
    "CATALOG_PREFIX",
    "SECRET",
    "STATIC_SQL_SETTINGS",
    "TUNING_SETTINGS",
    "is_secret",
    "may_change_rows",
    "needed_at_start",
    "row_settings",
]


CATALOG_PREFIX = "spark.sql.catalog."

STATIC_SQL_SETTINGS = frozenset(
    {
        "spark.sql.broadcastExchange.maxThreadThreshold",
        "spark.sql.cache.serializer",
        "spark.sql.catalogImplementation",
        "spark.sql.codegen.cache.maxEntries",
        "spark.sql.codegen.comments",
        "spark.sql.debug",
        "spark.sql.defaultCatalog",
        "spark.sql.defaultUrlStreamHandlerFactory.enabled",
        "spark.sql.event.truncate.length",
        "spark.sql.extensions",
        "spark.sql.filesourceTableRelationCacheSize",
        "spark.sql.globalTempDatabase",
        "spark.sql.hive.metastore.barrierPrefixes",
        "spark.sql.hive.metastore.jars",
        "spark.sql.hive.metastore.jars.path",
        "spark.sql.hive.metastore.sharedPrefixes",
        "spark.sql.hive.metastore.version",
        "spark.sql.hive.thriftServer.singleSession",
        "spark.sql.hive.version",
        "spark.sql.legacy.sessionInitWithConfigDefaults",
        "spark.sql.metadataCacheTTLSeconds",
        "spark.sql.queryExecutionListeners",
        "spark.sql.resultQueryStage.maxThreadThreshold",
        "spark.sql.shuffleExchange.maxThreadThreshold",
        "spark.sql.sources.disabledJdbcConnProviderList",
        "spark.sql.sources.schemaStringLengthThreshold",
        "spark.sql.streaming.streamingQueryListeners",
        "spark.sql.streaming.ui.enabled",
        "spark.sql.streaming.ui.enabledCustomMetricList",
        "spark.sql.streaming.ui.retainedProgressUpdates",
        "spark.sql.streaming.ui.retainedQueries",
        "spark.sql.subquery.maxThreadThreshold",
        "spark.sql.ui.retainedExecutions",
        "spark.sql.warehouse.dir",
    }
)
"""Spark's static SQL settings, and the default catalog, which is chosen before Spark starts."""


def needed_at_start(name: str) -> bool:
    """Whether Spark takes a setting only before it starts: its core, static and catalog settings.

    Other SQL settings of a spec, and names of the user's own, hold while its definitions are evaluated.
    """
    if not name.startswith("spark."):
        return False
    return not name.startswith("spark.sql.") or name in STATIC_SQL_SETTINGS or name.startswith(CATALOG_PREFIX)


TUNING_SETTINGS = (
    "spark.sql.adaptive.",
    "spark.sql.addPartitionInBatch.size",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.avro.compression.codec",
    "spark.sql.avro.deflate.level",
    "spark.sql.avro.filterPushdown.enabled",
    "spark.sql.avro.xz.level",
    "spark.sql.avro.zstandard.",
    "spark.sql.broadcastTimeout",
    "spark.sql.bucketing.coalesceBucketsInJoin.",
    "spark.sql.cartesianProductExec.buffer.",
    "spark.sql.cbo.",
    "spark.sql.classic.shuffleDependency.",
    "spark.sql.cli.",
    "spark.sql.codegen.",
    "spark.sql.csv.filterPushdown.enabled",
    "spark.sql.debug.",
    "spark.sql.defaultCacheStorageLevel",
    "spark.sql.defaultSizeInBytes",
    "spark.sql.error.messageFormat",
    "spark.sql.exchange.reuse",
    "spark.sql.execution.arrow.compression.",
    "spark.sql.execution.arrow.localRelationThreshold",
    "spark.sql.execution.arrow.maxBytesPerBatch",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.pyspark.selfDestruct.enabled",
    "spark.sql.execution.arrow.useLargeVarTypes",
    "spark.sql.execution.interruptOnCancel",
    "spark.sql.execution.pandas.udf.buffer.size",
    "spark.sql.execution.pyspark.udf.",
    "spark.sql.execution.python.udf.",
    "spark.sql.execution.pythonUDF.arrow.concurrency.level",
    "spark.sql.execution.reuseSubquery",
    "spark.sql.execution.topKSortFallbackThreshold",
    "spark.sql.extendedExplainProviders",
    # Not ignoreCorruptFiles, ignoreMissingFiles and ignoreInvalidPartitionPaths: they leave out rows.
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.files.maxRecordsPerFile",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.openCostInBytes",
    "spark.sql.hive.filesourcePartitionFileCacheSize",
    "spark.sql.iceberg.",
    "spark.sql.inMemoryColumnarStorage.",
    "spark.sql.join.preferSortMergeJoin",
    # Not spark.sql.json.filterPushdown.enabled: it decides which malformed rows are left out.
    "spark.sql.leafNodeDefaultParallelism",
    "spark.sql.limit.initialNumPartitions",
    "spark.sql.limit.scaleUpFactor",
    "spark.sql.maven.additionalRemoteRepositories",
    "spark.sql.maxBroadcastTableSize",
    "spark.sql.maxMetadataStringLength",
    "spark.sql.maxPlanStringLength",
    "spark.sql.maxSinglePartitionBytes",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold",
    "spark.sql.optimizer.dynamicPartitionPruning.",
    "spark.sql.optimizer.runtime.",
    "spark.sql.optimizer.runtimeFilter.number.threshold",
    "spark.sql.orc.aggregatePushdown",
    "spark.sql.orc.columnarReaderBatchSize",
    "spark.sql.orc.columnarWriterBatchSize",
    "spark.sql.orc.compression.codec",
    "spark.sql.orc.enableNestedColumnVectorizedReader",
    "spark.sql.orc.enableVectorizedReader",
    "spark.sql.orc.filterPushdown",
    "spark.sql.parquet.aggregatePushdown",
    "spark.sql.parquet.columnarReaderBatchSize",
    "spark.sql.parquet.compression.codec",
    "spark.sql.parquet.enableNestedColumnVectorizedReader",
    "spark.sql.parquet.enableVectorizedReader",
    "spark.sql.parquet.fieldId.write.enabled",
    "spark.sql.parquet.filterPushdown",
    "spark.sql.parquet.filterPushdown.",
    "spark.sql.parquet.outputTimestampType",
    "spark.sql.parquet.recordLevelFilter.enabled",
    "spark.sql.parquet.writeLegacyFormat",
    "spark.sql.pipelines.",
    "spark.sql.planChangeLog.",
    "spark.sql.planner.pythonExecution.memory",
    "spark.sql.pyspark.jvmStacktrace.enabled",
    "spark.sql.pyspark.plotting.",
    "spark.sql.pyspark.udf.profiler",
    "spark.sql.pyspark.worker.logging.enabled",
    "spark.sql.redaction.",
    "spark.sql.repl.",
    "spark.sql.session.localRelationCacheThreshold",
    "spark.sql.session.localRelationChunkSizeBytes",
    "spark.sql.session.localRelationChunkSizeRows",
    "spark.sql.shuffle.",
    "spark.sql.shuffleDependency.",
    "spark.sql.shuffledHashJoinFactor",
    "spark.sql.sortMergeJoinExec.buffer.",
    "spark.sql.sources.bucketing.",
    "spark.sql.sources.parallelPartitionDiscovery.",
    "spark.sql.sources.v2.bucketing.",
    "spark.sql.stackTracesInDataFrameContext",
    "spark.sql.statistics.",
    # What these change are streams, whose rows stay when their definition changes.
    "spark.sql.streaming.",
    "spark.sql.thriftServer.",
    "spark.sql.thriftserver.",
    "spark.sql.ui.",
    "spark.sql.windowExec.buffer.",
)
"""SQL settings that leave the rows of a query as they are. A name with a dot at its end stands for all that
begin with it."""

_CORE = re.compile(
    r"spark\.(?:acls|admin|api|app|appStateStore|archives|authenticate|barrier|blacklist|block|blockManager|"
    r"broadcast|buffer|checkpoint|cleaner|connect|cores|deploy|driver|dynamicAllocation|eventLog|"
    r"excludeOnFailure|executor|executorEnv|extraListeners|file|files|hadoop|hadoopRDD|history|internal|io|"
    r"jars|java|kerberos|kryo|kryoserializer|kubernetes|launcher|listenerManager|local|locality|log|"
    r"logConf|logLineage|master|maxRemoteBlockSizeFetchToMem|memory|metrics|modify|multiMTThreads|"
    r"network|pipeline|plugins|port|proxy|pyspark|python|r|rdd|reducer|redaction|remote|repl|resources|"
    r"rpc|scheduler|security|serializer|shuffle|speculation|ssl|stage|standalone|storage|streaming|submit|task|"
    r"taskMetrics|test|ui|unsafe|user|wap|worker|yarn)(?:\.|$)"
)
"""The groups of Spark's own settings outside of `spark.sql.`. Other names below `spark.` are the user's."""

SECRET = r"(?i:secret|password|passwd|token|credentials?|(?:access|account|api|private)[._-]?key)(?![a-z])"
"""A regular expression for names of secrets. Not `tokenizer` and `max.tokens`."""


def is_secret(name: str) -> bool:
    """Whether a name is that of a secret, which is not compared: a new password gives the same rows."""
    return re.search(SECRET, name) is not None


def may_change_rows(name: str) -> bool:
    """Whether a query may give other rows under another value of a Spark setting, or of a user's own name."""
    if is_secret(name):
        return False
    if not name.startswith("spark.sql."):
        return _CORE.match(name) is None
    if name in STATIC_SQL_SETTINGS or name.startswith(CATALOG_PREFIX):
        return False
    return not any(
        name.startswith(tuning) if tuning.endswith(".") else name == tuning for tuning in TUNING_SETTINGS
    )


def row_settings(
    started_with: Mapping[str, str],
    configuration: Mapping[str, str],
    default_of: Callable[[str], str | None],
) -> dict[str, str]:
    """The settings of a query that belong to its definition.

    Args:
        started_with: the settings of the Spark in which it is evaluated. Of names that are no SQL settings
            only `configuration` counts: clusters add names of their own.
        configuration: what is set on top of them while it is evaluated.
        default_of: the value that a setting has without being set. Setting it to this value changes nothing.
    """

    def counts(name: str) -> bool:
        return may_change_rows(name) and (name in configuration or name.startswith("spark.sql."))

    return {
        name: text
        for name, text in {**started_with, **configuration}.items()
        if counts(name) and not _is_same(text, default_of(name))
    }


def _is_same(text: str, default: str | None) -> bool:
    if default is None:
        return False
    text = text.strip()
    return text == default or (default in ("true", "false") and text.lower() == default)
