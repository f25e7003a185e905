"""`taut support-bundle`."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from tautochrone.cli.options import options_of
from tautochrone.cli.stdout import answer

__all__ = ["support_bundle"]


def support_bundle(arguments: argparse.Namespace) -> int:
    """Write the zip and print its path; missing parts are reported, and are no failure."""
    from tautochrone.app.support_bundle import write_bundle

    timestamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = Path(arguments.output or f"taut-support-{timestamp}.zip")
    for part, reason in write_bundle(options_of(arguments), path).items():
        if reason is not None:
            sys.stderr.write(f"without {part}: {reason}\n")
    answer().write(f"{path}\n")
    return 0
