"""`taut doctor`: one line for each check."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from tautochrone.cli.options import options_of
from tautochrone.cli.output import json_line
from tautochrone.cli.stdout import answer

__all__ = ["doctor"]


def doctor(arguments: argparse.Namespace) -> int:
    """Check what a run needs; 1 when something fails."""
    from tautochrone.app.finding import Finding, State
    from tautochrone.app.health import examine

    def line(finding: Finding) -> str:
        name = f"[{finding.error}] " if finding.error else ""
        hint = f" - hint: {finding.hint}" if finding.hint else ""
        state = "FAILED" if finding.state is State.FAILED else str(finding.state)
        return f"{state:<8} {finding.check:<12} {name}{' '.join(finding.detail.split())}{hint}\n"

    failed = False
    for finding in examine(options_of(arguments)):
        failed = failed or finding.state is State.FAILED
        if arguments.json:
            json_line({key: value for key, value in asdict(finding).items() if value is not None})
        else:
            answer().write(line(finding))
            answer().flush()
    return 1 if failed else 0
