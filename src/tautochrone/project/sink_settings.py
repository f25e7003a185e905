"""The sections `[sinks.NAME]` of `tautochrone.toml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tautochrone.model.sink import DeliveryPolicy

__all__ = ["SinkSettings", "sink_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """A section `[sinks.NAME]`. None for settings that it does not have.

    Attributes:
        reread: the options again, with what the files of secrets hold now.
    """

    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    key: tuple[str, ...] | None = None
    policy: DeliveryPolicy = DeliveryPolicy.RETRY
    attempts: int = 3
    catch_up_ms: int = 7 * 24 * 3_600_000
    origin: str = ""
    reread: Callable[[], Mapping[str, str]] | None = field(default=None, repr=False, compare=False)


def sink_settings(values: Mapping[tuple[str, ...], Any]) -> dict[str, SinkSettings]:
    """The sections, from all settings in force (`setting_layers.Value` by path)."""
    sections: dict[str, dict[str, Any]] = {}
    options: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        if path[0] != "sinks":
            continue
        section = sections.setdefault(path[1], {"origin": value.origin})
        if path[2] == "options":
            options.setdefault(path[1], {})[path[3]] = value
        else:
            section[{"catch_up": "catch_up_ms"}.get(path[2], path[2])] = value.value
    for name, given in options.items():
        sections[name] |= {"options": _revealed(given), "reread": partial(_revealed, given)}
    return {name: SinkSettings(**section) for name, section in sections.items()}


def _revealed(options: Mapping[str, Any]) -> dict[str, str]:
    return {option: str(value.reveal()) for option, value in options.items()}
