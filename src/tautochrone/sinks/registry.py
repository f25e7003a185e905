"""Which formats of sinks have an adapter.

An adapter is a function from a sink's name and options to a `model.sink.Sink`. Packages announce theirs as an
entry point of the group `tautochrone.sinks`; `register_sink` does it in the running process. The
project's own are listed in `_BUILT_IN`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from tautochrone.errors import SinkError
from tautochrone.model.sink import Sink

__all__ = ["SinkFactory", "has_adapter", "open_sink", "register_sink"]

SinkFactory = Callable[[str, Mapping[str, str]], Sink]

_GROUP = "tautochrone.sinks"
_BUILT_IN = {
    "clickhouse": "tautochrone.sinks.clickhouse:open_clickhouse_sink",
    "postgresql": "tautochrone.sinks.postgresql:open_postgresql_sink",
    "mariadb": "tautochrone.sinks.mariadb:open_mariadb_sink",
    "starrocks": "tautochrone.sinks.starrocks:open_starrocks_sink",
    "kafka-transactional": "tautochrone.sinks.kafka:open_kafka_sink",
}
_registered: dict[str, SinkFactory] = {}
_lock = threading.Lock()


def register_sink(format_name: str, factory: SinkFactory) -> None:
    """Make an adapter known to this process. The same name again replaces the adapter.

    Example:
        >>> register_sink("my-store", lambda name, options: MyStoreSink(options["url"]))  # doctest: +SKIP
    """
    with _lock:
        _registered[format_name.lower()] = factory


def has_adapter(format_name: str) -> bool:
    """Whether sinks of this format are delivered through the port."""
    with _lock:
        return format_name.lower() in _registered or format_name.lower() in _installed()


def open_sink(name: str, format_name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink. Nothing is written to it.

    Raises:
        SinkError: `SINK_FORMAT_UNKNOWN`, no adapter has this format; `SINK_OPTION_MISSING`, or whatever the
            adapter has against its options.
    """
    with _lock:
        factory = _registered.get(format_name.lower())
        installed = _installed().get(format_name.lower())
    if factory is None and installed is not None:
        factory = installed.load()
    if factory is None:
        raise SinkError(
            "SINK_FORMAT_UNKNOWN",
            f"Sink {name}: no adapter for the format {format_name} is installed",
            hint="known formats: " + (", ".join(sorted({*_registered, *_installed()})) or "none"),
            parameters={"sink": name, "format": format_name},
        )
    return factory(name, options)


@cache
def _installed() -> Mapping[str, EntryPoint]:
    built_in = [EntryPoint(name, value, _GROUP) for name, value in _BUILT_IN.items()]
    return {entry.name.lower(): entry for entry in (*built_in, *entry_points(group=_GROUP))}
