"""`taut support-bundle`."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from tautochrone.cli.options import options_of

__all__ = ["support_bundle"]


def support_bundle(arguments: argparse.Namespace) -> int:
    """Write the zip and say what is in it; parts that cannot be had are told, and are no failure."""
    from tautochrone.app.support_bundle import write_bundle

    made = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = Path(arguments.output or f"taut-support-{made}.zip")
    for part, why in write_bundle(options_of(arguments), path).items():
        if why is not None:
            sys.stderr.write(f"without {part}: {why}\n")
    sys.stdout.write(f"{path}\n")
    return 0
