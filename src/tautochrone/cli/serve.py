"""`taut serve`: the MetaService as a process."""

from __future__ import annotations

import argparse

from tautochrone.cli.options import options_of

__all__ = ["serve"]


def serve(arguments: argparse.Namespace) -> int:
    """Serve until the process is told to stop."""
    from tautochrone.app.serve import ListenAddress, run
    from tautochrone.metaservice.http.logs import log_to_stderr

    log_to_stderr(as_json=arguments.log_format == "json")
    run(options_of(arguments), ListenAddress(arguments.host, arguments.port), meta_url=arguments.meta)
    return 0
