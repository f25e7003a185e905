"""Formats of participants: who carries decisions of transactions out that other programs drive."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from tautochrone.errors import SettingsError
from tautochrone.model.transactions import Participant
from tautochrone.sinks.adapters import ADAPTERS

__all__ = ["ConfiguredParticipant", "open_participant"]

_FORMATS = {name: own.opens_participant for name, own in ADAPTERS.items() if own.opens_participant}


class ConfiguredParticipant(Participant, Protocol):
    """A participant that settings describe."""

    @property
    def description(self) -> str:
        """Its target, for people, without secrets."""

    def check(self) -> None:
        """Ask the target whether it lets us in.

        Raises:
            Exception: it does not, or does not answer.
        """


def open_participant(
    name: str, format_name: str, options: Mapping[str, str], location: str
) -> ConfiguredParticipant:
    """A participant of these options. Nothing is connected to.

    Args:
        location: of its section in the settings, for errors.

    Raises:
        SettingsError: `PARTICIPANT_FORMAT_UNKNOWN`; what the format has against the options.
    """
    factory = _FORMATS.get(format_name.lower())
    if factory is None:
        raise SettingsError(
            "PARTICIPANT_FORMAT_UNKNOWN",
            f"Participant {name} has the format {format_name or '(none)'}",
            hint=f"Formats of participants: {', '.join(sorted(_FORMATS))}",
            location=location,
        )
    module, _, function = factory.partition(":")
    opened = cast(
        "Callable[[str, Mapping[str, str], str], ConfiguredParticipant]",
        getattr(importlib.import_module(module), function),
    )
    return opened(name, options, location)
