"""The project's own formats of sinks and participants. This is the place where a new one is added.

A new sink is a folder beside this module and one row here, then what `tests/sinks/test_adapters.py` asks
for: a page in docs/, its row in docs/sinks.md, and the suite `testing.sink_conformance` in its tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ADAPTERS", "Adapter"]

_PACKAGE = "tautochrone.sinks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One format. What it names is imported when it is used.

    Attributes:
        opens: the function that opens a sink (`registry.SinkFactory`), as `module:function`.
        reads_options: the function that refuses wrong options, and asks no server.
        examines: the function that logs in and writes nothing; it answers a sentence about the server.
        opens_participant: that of a participant; empty: the format has none.
        page: in docs/.
    """

    opens: str
    reads_options: str
    examines: str
    opens_participant: str = ""
    page: str


ADAPTERS: Mapping[str, Adapter] = {
    "clickhouse": Adapter(
        opens=f"{_PACKAGE}.clickhouse:open_clickhouse_sink",
        reads_options=f"{_PACKAGE}.clickhouse.options:server_options",
        examines=f"{_PACKAGE}.clickhouse.open:examine_clickhouse_sink",
        opens_participant=f"{_PACKAGE}.clickhouse.participant:open_clickhouse_participant",
        page="clickhouse.md",
    ),
    "postgresql": Adapter(
        opens=f"{_PACKAGE}.postgresql:open_postgresql_sink",
        reads_options=f"{_PACKAGE}.postgresql.options:postgresql_options",
        examines=f"{_PACKAGE}.postgresql.open:examine_postgresql_sink",
        page="postgresql-sink.md",
    ),
    "mariadb": Adapter(
        opens=f"{_PACKAGE}.mariadb:open_mariadb_sink",
        reads_options=f"{_PACKAGE}.mariadb.options:mariadb_options",
        examines=f"{_PACKAGE}.mariadb.open:examine_mariadb_sink",
        page="mariadb-sink.md",
    ),
    "starrocks": Adapter(
        opens=f"{_PACKAGE}.starrocks:open_starrocks_sink",
        reads_options=f"{_PACKAGE}.starrocks.options:starrocks_options",
        examines=f"{_PACKAGE}.starrocks.open:examine_starrocks_sink",
        page="starrocks-sink.md",
    ),
    "kafka-transactional": Adapter(
        opens=f"{_PACKAGE}.kafka:open_kafka_sink",
        reads_options=f"{_PACKAGE}.kafka.options:kafka_options",
        examines=f"{_PACKAGE}.kafka.options:examine_kafka_sink",
        page="kafka-sink.md",
    ),
}
"""By format."""
