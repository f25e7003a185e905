"""Sources about which nothing beyond Spark's contract is known: Python data sources, and all others."""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.model.source import Unsupported
from tautochrone.spark.jvm.catalyst import kind
from tautochrone.spark.sources.spark_source import SparkSource

__all__ = ["OtherSource", "PythonSource"]


class PythonSource(SparkSource):
    """A data source that is written in Python (`pyspark.sql.datasource`)."""

    label = "Python data sources"
    limits = Unsupported("a Python data source decides itself how much a batch takes")

    @classmethod
    def reads(cls, leaf: JavaObject) -> bool:
        if kind(leaf) != "StreamingRelationV2" or not leaf.source().isDefined():
            return False
        return kind(leaf.source().get()) == "PythonDataSourceV2"


class OtherSource(SparkSource):
    """Any other source, which can do nothing beyond Spark's contract."""

    label = "other sources"
    limits = Unsupported("no option is known that bounds its batches")

    @classmethod
    def reads(cls, leaf: JavaObject) -> bool:
        del leaf
        return True
