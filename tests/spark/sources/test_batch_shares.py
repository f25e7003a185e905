"""The offsets of a batch are cut into shares of the same length, each offset into one."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from pyspark.sql import SparkSession

from tautochrone.spark.sources.batch_shares import batch_shares

pytestmark = pytest.mark.spark

Range = tuple[int, int, int]
"""Partition, first offset, and the offset behind the last one."""
CORES, FEWEST, MOST, RANGES = 2, 100, 5_000, 64


def cut(spark: SparkSession, ranges: list[Range]) -> list[Range]:
    jvm = spark._jvm
    assert jvm is not None
    kafka, topic_partition = (
        jvm.org.apache.spark.sql.kafka010,
        jvm.org.apache.kafka.common.TopicPartition,
    )
    inputs = spark.sparkContext._gateway.new_array(
        jvm.org.apache.spark.sql.connector.read.InputPartition, len(ranges)
    )
    for number, (partition, first, end) in enumerate(ranges):
        offsets = kafka.KafkaOffsetRange(
            topic_partition("t", partition), first, end, jvm.scala.Option.apply("executor")
        )
        inputs[number] = kafka.KafkaBatchInputPartition(offsets, jvm.java.util.HashMap(), 1_000, True, False)
    pieces = [piece.offsetRange() for piece in batch_shares().cut(inputs, FEWEST, MOST)]
    return [(piece.partition(), piece.fromOffset(), piece.untilOffset()) for piece in pieces]


def groups(spark: SparkSession, sizes: list[int], ranges: int = RANGES) -> list[list[int]]:
    """The sizes that are put together."""
    jvm = spark._jvm
    assert jvm is not None
    lengths = spark.sparkContext._gateway.new_array(jvm.long, len(sizes))
    for number, size in enumerate(sizes):
        lengths[number] = size
    ends = [0, *batch_shares().ends(lengths, FEWEST, MOST, ranges)]
    return [sizes[first:end] for first, end in pairwise(ends)]


def length(piece: Range) -> int:
    return piece[2] - piece[1]


def test_a_hot_partition_is_cut_where_shares_end(spark: SparkSession) -> None:
    assert spark.sparkContext.defaultParallelism == CORES
    hot, cold = (3, 50, 850), [(partition, 0, 40) for partition in (0, 1, 2, 4, 5)]
    pieces = cut(spark, [hot, *cold])
    # By partition, and partition 3 at the middle of all 1,000 offsets.
    assert pieces == [(0, 0, 40), (1, 0, 40), (2, 0, 40), (3, 50, 430), (3, 430, 850), (4, 0, 40), (5, 0, 40)]
    assert groups(spark, [length(piece) for piece in pieces]) == [[40, 40, 40, 380], [420, 40, 40]]


def test_few_records_are_one_share_and_many_are_more_than_cores(spark: SparkSession) -> None:
    few = [(partition, 7, 9) for partition in range(50)]
    assert cut(spark, few) == few
    assert groups(spark, [2] * 50) == [[2] * 50]
    # A task has no more open consumers than Spark caches.
    assert groups(spark, [2] * 50, ranges=20) == [[2] * 20, [2] * 20, [2] * 10]
    assert [length(piece) for piece in cut(spark, [(0, 0, 20_000)])] == [5_000] * 4
    assert cut(spark, []) == []
    assert groups(spark, [0, 0]) == [[0, 0]]


def test_no_share_is_much_longer_than_others(spark: SparkSession) -> None:
    numbers = random.Random(5)
    for _ in range(30):
        partitions = numbers.sample(range(100), numbers.randint(1, 30))
        ranges = []
        for partition in partitions:
            first = numbers.randint(0, 10**12)
            ranges.append((partition, first, first + int(10 ** numbers.uniform(0, 4.5))))
        pieces = cut(spark, ranges)
        covered = Counter[int]()
        for (before, _, end), (partition, first, _) in pairwise(pieces):
            # In the order of partitions and offsets, without a gap.
            assert before < partition or (before == partition and end == first)
        for piece in pieces:
            assert length(piece) > 0
            covered[piece[0]] += length(piece)
        assert covered == {each[0]: length(each) for each in ranges}
        records = sum(map(length, ranges))
        shared = groups(spark, [length(piece) for piece in pieces])
        shares = max(min(CORES, -(-records // FEWEST)), -(-records // MOST))
        assert len(shared) <= shares
        assert max(map(sum, shared)) <= records / shares * 1.11
