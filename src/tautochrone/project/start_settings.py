"""Which settings Spark takes only before it starts."""

from __future__ import annotations

__all__ = ["CATALOG_PREFIX", "STATIC_SQL_SETTINGS", "needed_at_start"]

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
