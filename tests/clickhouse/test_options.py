"""The options of a sink in ClickHouse, and servers that it cannot use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tautochrone.errors import SinkError
from tautochrone.sinks import open_sink
from tautochrone.sinks.clickhouse.open import require_version
from tautochrone.sinks.clickhouse.options import clickhouse_options


class OldServer:
    """Answers its version."""

    def __init__(self, version: str) -> None:
        self.version = version

    def rows(self, query: str) -> list[list[Any]]:
        assert query == "SELECT version()"
        return [[self.version]]


def test_urls_name_servers_and_folders() -> None:
    server = clickhouse_options("m", {"url": "clickhouses://a%40b@host/shop", "password": "p"})
    assert (server.host, server.port, server.is_encrypted) == ("host", 8443, True)
    assert (server.user, server.password, server.database, server.folder) == ("a@b", "p", "shop", "")
    assert "password" not in repr(server)
    embedded = clickhouse_options("m", {"url": "clickhouse://embedded//data/ch", "order_by.t": "a, b"})
    assert (embedded.folder, embedded.database, embedded.order_by) == ("/data/ch", "lake", {"t": "a, b"})
    assert clickhouse_options("m", {"url": "clickhouse://embedded/ch"}).folder == "ch"


@pytest.mark.parametrize(
    ("options", "error_class"),
    [
        ({}, "SINK_OPTION_MISSING"),
        ({"url": "http://host"}, "SINK_OPTION_INVALID"),
        ({"url": "clickhouse://user:secret@host"}, "SINK_OPTION_INVALID"),
        ({"url": "clickhouse://embedded/"}, "SINK_OPTION_INVALID"),
        ({"url": "clickhouse://host", "chunk_rows": "0"}, "SINK_OPTION_INVALID"),
        ({"url": "clickhouse://host", "orderby": "a"}, "SINK_OPTION_INVALID"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, str], error_class: str) -> None:
    with pytest.raises(SinkError) as refused:
        open_sink("mirror", "clickhouse", options)
    assert refused.value.error_class == error_class
    assert refused.value.hint
    assert "secret" not in str(refused.value)


def test_one_process_runs_the_engine_in_one_folder(tmp_path: Path) -> None:
    first = open_sink("one", "clickhouse", {"url": f"clickhouse://embedded/{tmp_path}/one"})
    with pytest.raises(SinkError) as refused:
        open_sink("two", "clickhouse", {"url": f"clickhouse://embedded/{tmp_path}/two"})
    assert refused.value.error_class == "SINK_ENGINE_IN_USE"
    first.close()
    open_sink("two", "clickhouse", {"url": f"clickhouse://embedded/{tmp_path}/two"}).close()


def test_a_server_without_parameterised_views_is_refused() -> None:
    engine: Any = OldServer("18.16.1")
    with pytest.raises(SinkError) as refused:
        require_version("mirror", engine)
    assert refused.value.error_class == "SINK_SERVER_TOO_OLD"
    require_version("mirror", OldServer("26.9.2.1"))  # type: ignore[arg-type]
