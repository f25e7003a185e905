"""Messages between Python and the JVM: how many some work needs, and what one costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from bench.project import timed_ms

__all__ = ["cost_ms", "messages_of"]


def messages_of(spark: SparkSession, work: Callable[[], object]) -> int:
    """Messages to the JVM while `work` runs, from all threads; each is answered by another."""
    client: Any = spark.sparkContext._gateway._gateway_client  # noqa: SLF001
    # Appended to, because many threads cannot add to a number without a lock.
    sent: list[None] = []
    send = client.send_command

    def counting(*arguments: Any, **options: Any) -> Any:
        sent.append(None)
        return send(*arguments, **options)

    client.send_command = counting
    try:
        work()
    finally:
        del client.send_command
    return len(sent)


def cost_ms(spark: SparkSession, times: int = 2000) -> float:
    """The time of a message without work, in ms."""
    clock: Any = spark._jvm.java.lang.System  # noqa: SLF001

    def ask() -> None:
        for _ in range(times):
            clock.nanoTime()

    ask()
    return timed_ms(ask) / times
