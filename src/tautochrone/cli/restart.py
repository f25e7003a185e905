"""A continuous run whose Spark has died begins anew, as the same process with another program image.

Much of Python's side of Spark belongs to the Java process that is gone: sessions, streams and the threads
that serve them, objects that definitions keep. A new image has none of it, and for whoever watches the
process it is the same one.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field

__all__ = ["Restarts"]

_VARIABLE = "_TAUT_SPARK_DEATHS"
"""Carries the number of deaths in a row from one program image to the next."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_WELL_S = 600.0
"""A Spark that lived so long was well: its death is a new trouble."""


@dataclass(slots=True)
class Restarts:
    """How often Spark died in a row, and how long to wait before the next one."""

    deaths: int = field(default_factory=lambda: int(os.environ.get(_VARIABLE) or 0))
    folder: str = field(default_factory=os.getcwd)
    _since: float = field(default_factory=time.monotonic)

    def died(self) -> float:
        """Count a death; seconds until a new Spark may be started."""
        self.deaths = 1 if time.monotonic() - self._since >= _WELL_S else self.deaths + 1
        return float(min(_FIRST_WAIT_S * 2.0 ** (self.deaths - 1), _LONGEST_WAIT_S))

    def begin_anew(self) -> None:
        """Replace this program by itself, with the arguments that it was started with. Does not return."""
        os.environ[_VARIABLE] = str(self.deaths)
        os.chdir(self.folder)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
