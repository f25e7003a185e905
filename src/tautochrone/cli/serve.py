"""`taut serve`: the MetaService as a process."""

from __future__ import annotations

import argparse

from tautochrone.cli.options import options_of

__all__ = ["serve"]


def serve(arguments: argparse.Namespace) -> int:
    """Serve until the process is told to stop."""
    from tautochrone.service.logs import log_to_stderr
    from tautochrone.service.process import Place, run

    log_to_stderr(as_json=arguments.log_format == "json")
    run(options_of(arguments), Place(arguments.host, arguments.port), meta_url=arguments.meta)
    return 0
