"""The participants of transactions that `taut serve` has from its settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from threading import Thread

from tautochrone.errors import SettingsError
from tautochrone.model.transactions import CLIENT
from tautochrone.project.settings import ParticipantSettings
from tautochrone.redaction import redacted
from tautochrone.sinks.adapters import ConfiguredParticipant, open_participant

__all__ = ["open_participants", "report_participants"]

_log = logging.getLogger("tautochrone.serve")


def open_participants(sections: Mapping[str, ParticipantSettings]) -> dict[str, ConfiguredParticipant]:
    """By name those of the sections `[transactions.participants.NAME]`. Nothing is connected to.

    Raises:
        SettingsError: `PARTICIPANT_NAME_RESERVED`, `SECRET_NOT_FOUND`; as `open_participant`.
    """
    participants: dict[str, ConfiguredParticipant] = {}
    for name, section in sections.items():
        if name == CLIENT:
            raise SettingsError(
                "PARTICIPANT_NAME_RESERVED",
                f"No participant of the service can be called {CLIENT}: that is the program itself",
                hint="choose another name",
                location=section.origin,
            )
        options = {option: str(value.reveal()) for option, value in section.options.items()}
        participants[name] = open_participant(name, section.format, options, section.origin)
    return participants


def report_participants(participants: Mapping[str, ConfiguredParticipant]) -> list[Thread]:
    """Log the participants, and in threads those whose targets do not let us in. The service starts without
    these: their transactions wait."""
    threads = []
    for name, participant in participants.items():
        _log.info("participant %s of transactions: %s", name, participant.description)
        thread = Thread(target=_check, args=(name, participant), name=f"participant-{name}", daemon=True)
        thread.start()
        threads.append(thread)
    return threads


def _check(name: str, participant: ConfiguredParticipant) -> None:
    try:
        participant.check()
    except Exception as error:
        _log.warning("participant %s cannot commit now: %s", name, redacted(str(error)))
