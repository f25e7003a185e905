"""A source of Structured Streaming: a leaf of a streaming query's plan, and what the source can do.

`SparkSource` has the answers of a source about which nothing is known. The subclasses, one per file, override
what their source can do beyond that. `registry` chooses the class of a leaf.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tautochrone.model.source import RateLimitOptions, Unsupported
from tautochrone.spark.jvm.catalyst import cached_packages, items, kind
from tautochrone.spark.jvm.driver_calls import driver_calls, split_texts

__all__ = [
    "STREAM_LEAVES",
    "FileListing",
    "QueryFileSource",
    "RecordReader",
    "SparkSource",
    "TopicIdReader",
    "with_field",
]

STREAM_LEAVES = ("StreamingRelation", "StreamingRelationV2")
"""Classes of the leaves that stand for streaming sources."""


class RecordReader(Protocol):
    """Reads records of a source again, by their offsets."""

    def read(self, starts: str, ends: str) -> DataFrame:
        """The records from `starts` to `ends` (exclusive), both as the source writes its offsets into Spark's
        offset log. The columns are `topic`, `partition`, `offset`, `timestamp`, `key`, `value`, `headers`.
        The records are read once; Spark keeps them as long as the DataFrame is referenced."""


class TopicIdReader(Protocol):
    """Reads the ids of a source's topics with one connection that stays open."""

    def of(self, topics: Collection[str]) -> dict[str, str]:
        """Id by topic, without topics that do not exist."""

    def earliest(self, topics: Collection[str]) -> dict[str, dict[str, int]]:
        """Topic → partition → the first offset that the partition still has."""

    def close(self) -> None:
        """Close the connection; may be called again. The next request opens a new one."""


@dataclass(frozen=True, slots=True)
class QueryFileSource:
    """A file source of a query that was started.

    Attributes:
        number: the source's number in the offsets of the query.
        log: name of the folder below `sources/` with the log of its files.
        by_name: whether files with the same name in different folders count as one (`fileNameOnly`).
        oldest_ms: files with an older modification time are ignored.
    """

    number: int
    log: int
    by_name: bool
    oldest_ms: int


class FileListing(Protocol):
    """The files of a query that was started and may have ended since."""

    @property
    def may_miss_files(self) -> bool:
        """Whether the user's settings let the query ignore files that are missing."""

    def sources(self) -> Sequence[QueryFileSource]:
        """The query's file sources, in the order of its offsets."""

    def listed(self, source: QueryFileSource) -> dict[str, int]:
        """All files that a source lists now: URL-encoded path → modification time in ms."""

    def read_by_batch(self) -> set[str]:
        """The files that the running batch reads, URL-encoded."""


class SparkSource(ABC):
    """One source of a streaming query.

    Args:
        leaf: its leaf in the analyzed plan.
        number: its number in the offsets of a query over the plan.
    """

    label: ClassVar[str]
    """The kind of source, in the plural, for messages."""
    limits: ClassVar[RateLimitOptions | Unsupported]
    """See `supported_limits`."""

    def __init__(self, leaf: JavaObject, number: int) -> None:
        self.leaf = leaf
        self.number = number

    @classmethod
    @abstractmethod
    def reads(cls, leaf: JavaObject) -> bool:
        """Whether a leaf is a source of this class."""

    @property
    def name(self) -> str:
        """The source's name in Spark."""
        return str(self.leaf.sourceName())

    def input_ids(self) -> frozenset[str]:
        """See `model.source.Source`. Empty for a source that gives each reader other rows."""
        return frozenset()

    def supported_limits(self) -> RateLimitOptions | Unsupported:
        """See `model.source.Source`."""
        return self.limits

    def takes_all_listed(self, description: str) -> bool | None:
        """Whether a batch reads all data that the source listed before it.

        Args:
            description: description of a source in a `StreamingQueryProgress`.

        Returns:
            None: it is another source, or this one does not guarantee either. Then only a trigger without new
            data, or one that reports the source's latest offset, proves it.
        """
        del description
        return None

    def record_reader(self, session: SparkSession) -> RecordReader | Unsupported:
        """A reader of single records, to find the one on which a query fails."""
        del session
        return Unsupported(f"records of {self.name} cannot be read again one by one")

    def topic_ids(self, session: SparkSession) -> TopicIdReader | Unsupported:
        """A reader of topic ids, by which a topic that was deleted and created again is detected."""
        del session
        return Unsupported(f"{self.name} has no topic ids")

    def topics(self) -> frozenset[str]:
        """The topics that the reader's options name."""
        return frozenset()

    def file_listing(self, session: SparkSession, query: StreamingQuery) -> FileListing | Unsupported:
        """The files of a started query over the source."""
        del session, query
        return Unsupported(f"{self.name} reads no files")

    def leaving_out(self, session: SparkSession) -> Mapping[str, str]:
        """The reader's options, and settings of the session, that leave out rows without an error."""
        del session
        return {}

    def may_lose_records(self) -> bool:
        """Whether the reader goes on without an error where records are gone that it did not read."""
        return False

    def shares_batches(self) -> bool:
        """Whether `prepared` lets a batch be shared evenly among tasks; see `batch_shares`."""
        return False

    def prepared(self, session: SparkSession) -> JavaObject:
        """The leaf as a flow reads it: it skips no data silently, and its batches have the right tasks."""
        del session
        return self.leaf

    def options(self) -> dict[str, str]:
        """The reader's options. They may contain secrets and must not be shown."""
        if kind(self.leaf) == "StreamingRelation":
            texts = split_texts(str(driver_calls().entries(self.leaf.dataSource().options())))
            return dict(zip(texts[::2], texts[1::2], strict=True))
        return {str(key): str(value) for key, value in self.leaf.extraOptions().asCaseSensitiveMap().items()}

    def with_options(
        self, session: SparkSession, added: Mapping[str, str], removed: Collection[str]
    ) -> JavaObject:
        """A copy of the leaf with the options `added` and without those in `removed`."""
        removed_names = {option.lower() for option in removed}
        remaining = {key: value for key, value in self.options().items() if key.lower() not in removed_names}
        merged = remaining | dict(added)
        jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
        if kind(self.leaf) == "StreamingRelation":
            old = self.leaf.dataSource()
            scala_map = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(merged)
            return self.leaf.copy(
                old.copy(*with_field(old, "options", scala_map)), self.leaf.sourceName(), self.leaf.output()
            )
        new = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(merged)
        return self.leaf.copy(*with_field(self.leaf, "extraOptions", new))


def with_field(product: JavaObject, name: str, value: object) -> list[object]:
    """The fields of a case class with one of them replaced. It is found by its name, because another Spark
    version may have more fields before it."""
    fields = list(items(product.productIterator()))
    fields[split_texts(str(driver_calls().fieldNames(product))).index(name)] = value
    return fields
