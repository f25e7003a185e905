"""Tables of other lake formats: which code reads which format, and their columns as Spark's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tautochrone.model.foreign import (
    ForeignField,
    ForeignList,
    ForeignMap,
    ForeignSource,
    ForeignStruct,
    ForeignTable,
    ForeignType,
)
from tautochrone.sources.delta import DeltaTable
from tautochrone.sources.hudi import HudiTable
from tautochrone.sources.paimon import PaimonTable
from tautochrone.sources.storage import Storage
from tautochrone.spark.jvm.catalyst import decimal_digits

__all__ = ["ForeignTables", "spark_schema"]

_TYPES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamptz": TimestampType(),
    "timestamp": TimestampNTZType(),
    "string": StringType(),
    "binary": BinaryType(),
}

_READERS: Mapping[str, Callable[[ForeignSource, Storage], ForeignTable]] = {
    "delta": DeltaTable,
    "hudi": HudiTable,
    "paimon": PaimonTable,
}


class ForeignTables:
    """Opens each foreign table once: what was read of its log is not read again."""

    def __init__(self, session: SparkSession) -> None:
        self._storage = Storage(session)
        self._tables: dict[ForeignSource, ForeignTable] = {}

    def open(self, source: ForeignSource) -> ForeignTable:
        if source not in self._tables:
            self._tables[source] = _READERS[source.format](source, self._storage)
        return self._tables[source]


def spark_schema(fields: Sequence[ForeignField]) -> StructType:
    """
    >>> spark_schema([ForeignField("d", "d", "decimal(9, 2)")]).simpleString()
    'struct<d:decimal(9,2)>'
    """
    return StructType([StructField(each.name, _spark_type(each.type)) for each in fields])


def _spark_type(kind: ForeignType) -> DataType:
    if isinstance(kind, ForeignStruct):
        return spark_schema(kind.fields)
    if isinstance(kind, ForeignList):
        return ArrayType(_spark_type(kind.element))
    if isinstance(kind, ForeignMap):
        return MapType(_spark_type(kind.key), _spark_type(kind.value))
    digits = decimal_digits(kind)
    return _TYPES[kind] if digits is None else DecimalType(*digits)
