"""A source that Structured Streaming reads: a leaf of a streaming query's plan, asked what it can do.

`SparkSource` answers for a source of which nothing is known. The others say in their own files what they can
do beyond that. `registry` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tautochrone.model.source import RateLimits, Unsupported
from tautochrone.spark.jvm.cached_packages import cached_packages
from tautochrone.spark.jvm.catalyst import kind

__all__ = [
    "STREAM_LEAVES",
    "FileListing",
    "RecordReader",
    "SparkSource",
    "StartedFileSource",
    "TopicIdReader",
]

STREAM_LEAVES = ("StreamingRelation", "StreamingRelationV2")
"""Classes of the leaves that stand for streaming sources."""


class RecordReader(Protocol):
    """Reads records of a source again, by their offsets."""

    def read(self, starts: str, ends: str) -> DataFrame:
        """The records from `starts` up to and without `ends`, both as the source writes its offsets into
        Spark's log. With the columns `topic`, `partition`, `offset`, `timestamp`, `key`, `value`, `headers`.
        They are read once and kept by Spark as long as somebody holds the frame."""


class TopicIdReader(Protocol):
    """Asks a source for the ids of what it reads, by one connection that stays open."""

    def of(self, topics: Collection[str]) -> dict[str, str]:
        """Id by topic; those that do not exist are left out."""

    def earliest(self, topics: Collection[str]) -> dict[str, dict[str, int]]:
        """Topic → partition → the first offset that it holds."""

    def close(self) -> None:
        """Repeatable; the next question opens it again."""


@dataclass(frozen=True, slots=True)
class StartedFileSource:
    """A file source of a query that was started.

    Attributes:
        number: of the source in the offsets of the query.
        log: name of the folder below `sources/` where it remembers its files.
        by_name: whether it tells files apart by their names without the folder (`fileNameOnly`).
        oldest_ms: files with an older modification time are left out.
    """

    number: int
    log: int
    by_name: bool
    oldest_ms: int


class FileListing(Protocol):
    """The files of a query that was started; it may have ended since."""

    @property
    def may_miss_files(self) -> bool:
        """Whether the user lets the query go on without files that went away."""

    def sources(self) -> Sequence[StartedFileSource]:
        """The query's file sources, in the order of its offsets."""

    def listed(self, source: StartedFileSource) -> dict[str, int]:
        """All files that a source would take in now: URL-encoded path → modification time in ms."""

    def read_by_batch(self) -> set[str]:
        """The files that the running batch reads, URL-encoded."""


class SparkSource(ABC):
    """One source of a streaming query.

    Args:
        leaf: its leaf in the analyzed_plan plan.
        number: that it has in the offsets of a query over the plan.
    """

    label: ClassVar[str]
    """The kind of source for people, in the plural."""
    limits: ClassVar[RateLimits | Unsupported]
    """See `rate_limits`."""

    def __init__(self, leaf: JavaObject, number: int) -> None:
        self.leaf = leaf
        self.number = number

    @classmethod
    @abstractmethod
    def reads(cls, leaf: JavaObject) -> bool:
        """Whether a leaf is a source of this class."""

    @property
    def name(self) -> str:
        """As Spark calls it."""
        return str(self.leaf.sourceName())

    def input_ids(self) -> frozenset[str]:
        """See `model.source.Source`. By itself a source gives each reader rows of its own."""
        return frozenset()

    def rate_limits(self) -> RateLimits | Unsupported:
        """The reader's options that bound a batch."""
        return self.limits

    def takes_all_listed(self, description: str) -> bool | None:
        """Whether a batch takes all that the source met when it looked.

        Args:
            description: of a source in a `StreamingQueryProgress`.

        Returns:
            None: that is not this source, or it does not promise anything. Then only a trigger that found
            nothing, or that tells how far the source reaches, proves it.
        """
        del description
        return None

    def record_reader(self, session: SparkSession) -> RecordReader | Unsupported:
        """Reads single records again, to find the one on which a query fails."""
        del session
        return Unsupported(f"records of {self.name} cannot be read again one by one")

    def topic_ids(self, session: SparkSession) -> TopicIdReader | Unsupported:
        """Tells things that were deleted and made again from those of before."""
        del session
        return Unsupported(f"{self.name} gives what it reads no ids")

    def topics(self) -> frozenset[str]:
        """The names that `topic_ids` knows, as far as the reader names them."""
        return frozenset()

    def file_listing(self, session: SparkSession, query: StreamingQuery) -> FileListing | Unsupported:
        """Lists the files of a query over the source that was started."""
        del session, query
        return Unsupported(f"{self.name} reads no files")

    def prepared(self, session: SparkSession) -> JavaObject:
        """The leaf as it must be read so that nothing is left out silently."""
        del session
        return self.leaf

    def options(self) -> dict[str, str]:
        """The reader's options. They may hold secrets: never show them."""
        if kind(self.leaf) == "StreamingRelation":
            options = self.leaf.dataSource().options()
            return {str(pair.productElement(0)): str(pair.productElement(1)) for pair in _options_of(options)}
        return {str(key): str(value) for key, value in self.leaf.extraOptions().asCaseSensitiveMap().items()}

    def with_options(
        self, session: SparkSession, wanted: Mapping[str, str], dropped: Collection[str]
    ) -> JavaObject:
        """A copy of the leaf with the options `wanted`, without those in `dropped`."""
        gone = {option.lower() for option in dropped}
        kept = {key: value for key, value in self.options().items() if key.lower() not in gone}
        merged = kept | dict(wanted)
        jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
        if kind(self.leaf) == "StreamingRelation":
            old = self.leaf.dataSource()
            scala_map = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(merged)
            return self.leaf.copy(
                old.copy(*_with_field(old, "options", scala_map)), self.leaf.sourceName(), self.leaf.output()
            )
        new = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(merged)
        return self.leaf.copy(*_with_field(self.leaf, "extraOptions", new))


def _options_of(scala_map: JavaObject) -> list[JavaObject]:
    sequence = scala_map.toSeq()
    return [sequence.apply(index) for index in range(sequence.size())]


def _with_field(product: JavaObject, name: str, value: object) -> list[object]:
    """The fields of a case class, one of them replaced, by the class's own names: an argument more in
    another Spark must not shift the others silently."""
    fields = [product.productElement(index) for index in range(product.productArity())]
    names = [product.productElementName(index) for index in range(product.productArity())]
    fields[names.index(name)] = value
    return fields
