"""`taut prepare`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tautochrone.cli.stdout import answer

__all__ = ["prepare"]


def prepare(arguments: argparse.Namespace) -> int:
    """Download what the first run needs, into the cache or into a folder."""
    from tautochrone.spark.session import prepare as preparation

    def report(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    if arguments.download is not None:
        for jar in preparation.download_jars(report, Path(arguments.download)):
            answer().write(f"{jar}\n")
        return 0
    preparation.prepare(report, None if arguments.source is None else Path(arguments.source))
    return 0
