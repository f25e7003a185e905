"""What a run says that its flows read, over flows without Spark."""

from __future__ import annotations

from types import SimpleNamespace as Values
from typing import Any

from tautochrone.model.names import TableName
from tautochrone.model.run_report import SourceKind
from tautochrone.runtime.streams.streams import Streams

TABLE = TableName("lake", ("db",), "orders")


def flow(name: str, *sources: str, external: bool = True, snapshots: object = None) -> Any:
    return Values(
        flow=Values(name=name, snapshots=snapshots),
        inputs=Values(external_streams=external),
        sources=frozenset(sources),
    )


def test_sources_of_flows() -> None:
    flows = [
        flow("files", "files in /data/in"),
        flow("topics", "topic b of kafka:9092", "topic a of kafka:9092"),
        flow("rate"),
        flow("snapshots", external=False, snapshots=object()),
        flow("capture", "a source of this name is no matter"),
        flow("batch", external=False),
        flow("not selected", "files in /data/others"),
    ]
    topology = Values(ingestion_flows=lambda _table: flows)
    job: Any = Values(graph=Values(order=[TABLE]), topology=topology, base=None)
    streams = Streams.__new__(Streams)
    streams._job = job
    capture: Any = Values(log=Values(name="PostgreSQL capture erp"))
    streams._logs = {"capture": capture}
    streams._queries = dict.fromkeys(("files", "topics", "rate", "batch"), capture)
    streams._snapshot_flows = {"snapshots": capture}
    sources = list(streams.sources())
    assert {source.dataset for source in sources} == {str(TABLE)}
    assert [(source.flow, source.kind, source.name) for source in sources] == [
        ("files", SourceKind.FILES, "/data/in"),
        ("topics", SourceKind.TOPIC, "a of kafka:9092"),
        ("topics", SourceKind.TOPIC, "b of kafka:9092"),
        ("rate", SourceKind.OTHER, "what rate reads"),
        ("snapshots", SourceKind.OTHER, "what snapshots reads"),
        ("capture", SourceKind.DATABASE, "PostgreSQL capture erp"),
    ]
