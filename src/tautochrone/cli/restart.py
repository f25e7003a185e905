"""Restarts a continuous run: the same process with a new program image. It is done when Spark has died, and
when the definitions no longer fit a source.

Much of Python's side of Spark belongs to the Java process that died: sessions, streams and the threads
that serve them, objects that definitions hold. A new image has none of it, and for supervisors of the
process it is still the same one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, field

from tautochrone.cli import stdout
from tautochrone.model.backoff import Backoff

__all__ = ["Restarts"]

_VARIABLE = "_TAUT_RESTARTS"
"""Passes the number of restarts in a row from one program image to the next."""
_LEFT_VARIABLE = "_TAUT_FULL_REFRESHES_LEFT"
"""Passes on which full refreshes have not happened yet, as a JSON list of names."""
_BACKOFF = Backoff(first_s=1.0, longest_s=60.0)
_STABLE_AFTER_S = 600.0
"""The restart of a run that went on for so long does not count as in a row with the one before."""


@dataclass(slots=True)
class Restarts:
    """How often the run was restarted in a row, and how long to wait before the next start.

    Attributes:
        full_refreshes_left: full refreshes that had not happened before the restart; None: no run has begun.
    """

    in_a_row: int = field(default_factory=lambda: int(os.environ.get(_VARIABLE) or 0))
    full_refreshes_left: list[str] | None = field(
        default_factory=lambda: json.loads(os.environ.get(_LEFT_VARIABLE) or "null")
    )
    folder: str = field(default_factory=os.getcwd)
    _since: float = field(default_factory=time.monotonic)

    def count(self) -> float:
        """Count one more; seconds until it may happen."""
        self.in_a_row = 1 if time.monotonic() - self._since >= _STABLE_AFTER_S else self.in_a_row + 1
        return _BACKOFF.wait_s(self.in_a_row)

    def restart_process(self) -> None:
        """Replace this program by itself, with the arguments that it was started with. Does not return."""
        os.environ[_VARIABLE] = str(self.in_a_row)
        os.environ[_LEFT_VARIABLE] = json.dumps(self.full_refreshes_left)
        os.chdir(self.folder)
        stdout.give_back()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
