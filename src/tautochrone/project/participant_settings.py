"""The sections `[transactions.participants.NAME]` of `tautochrone.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tautochrone.project.setting_layers import Value

__all__ = ["ParticipantSettings", "participant_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantSettings:
    """A section `[transactions.participants.NAME]`.

    Attributes:
        format: empty when the section does not say.
        options: passwords stay references: only `taut serve` reads them.
        origin: where the section begins, for errors.
    """

    format: str = ""
    options: Mapping[str, Value] = field(default_factory=dict, repr=False)
    origin: str = ""


def participant_settings(values: Mapping[tuple[str, ...], Value]) -> dict[str, ParticipantSettings]:
    """The sections, by name, from all settings in force."""
    formats: dict[str, str] = {}
    options: dict[str, dict[str, Value]] = {}
    origins: dict[str, str] = {}
    for path, value in values.items():
        if path[:2] != ("transactions", "participants"):
            continue
        name = path[2]
        origins.setdefault(name, value.origin)
        if path[3] == "options":
            options.setdefault(name, {})[path[4]] = value
        else:
            formats[name] = str(value.value)
    return {
        name: ParticipantSettings(format=formats.get(name, ""), options=options.get(name, {}), origin=origin)
        for name, origin in origins.items()
    }
