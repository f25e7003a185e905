"""Which sinks are asked for what they have of a dataset, when the store knows no delivery to them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("boto3")

from tautochrone.errors import SinkError
from tautochrone.runtime.dataset_changes import mirrors
from tautochrone.sinks.common import object_paths


def asked_sinks(options: Mapping[str, str], sink_format: str = "delta-publication") -> list[str]:
    sections = {"p": SimpleNamespace(format=sink_format, options=options)}
    job: Any = SimpleNamespace(
        settings=SimpleNamespace(sinks=sections),
        topology=None,
        store=SimpleNamespace(deliveries=SimpleNamespace(sinks=list)),
    )
    return [sink.name for sink in mirrors._declared(job)]


@pytest.fixture(autouse=True)
def no_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "declared_sinks", lambda *_: ())


@pytest.mark.parametrize("folder", ["/lake/p", "file:///lake/p", "s3://bucket/p", "s3a://bucket/p"])
def test_a_folder_may_have_tables_of_which_the_store_knows_nothing(folder: str) -> None:
    assert asked_sinks({"folder": folder}) == ["p"]


def test_what_was_never_used_needs_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked_sinks({"folder": "gs://bucket/p"}) == []
    assert asked_sinks({"brokers": "b:9092"}, "kafka") == []
    monkeypatch.setitem(sys.modules, "boto3", None)
    object_paths._client.cache_clear()
    assert asked_sinks({"folder": "s3://bucket/p"}) == []


def test_wrong_options_are_not_passed_over() -> None:
    with pytest.raises(SinkError, match="SINK_OPTION_INVALID"):
        asked_sinks({"folder": "s3://bucket/p", "s3.endpoint": "minio:9000"})
