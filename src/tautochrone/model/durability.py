"""What a commit to the lake survives."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Durability"]


class Durability(StrEnum):
    """What a commit survives."""

    PROCESS = "process"
    """The end of any process. A power cut may take or tear the files of the last half minute."""
    POWER_LOSS = "power_loss"
    """A power cut too, for tables on local disks of this machine."""
