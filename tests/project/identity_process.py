"""Writes the identities of a project's definitions: `python -m tests.project.identity_process FILE`.

The project is in the working directory.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.project.conftest import ProjectMaker

from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.iceberg.sessions.spark_sessions import start_session
from tautochrone.spark.session.factory import use_database
from tautochrone.spark.session.settings import SparkSettings


def main(output: Path) -> None:
    """Write the identity of each definition, as JSON by name."""
    with tempfile.TemporaryDirectory() as storage:
        settings = SparkSettings(master="local[1]", conf={"spark.ui.enabled": "false"})
        session = start_session(settings, CatalogSettings.default(storage))
        use_database(session, "lake", "default", create=True)
        graph = ProjectMaker(Path.cwd(), session).graph({})
        identities = {name: flow.fingerprint for name, flow in graph.flows.items()}
        output.write_text(json.dumps(identities))
        session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
