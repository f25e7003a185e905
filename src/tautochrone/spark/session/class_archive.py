"""An archive of the classes that a session loads, made once at set-up (Java's class data sharing).

About half of what a short command waits for is Java loading and verifying the classes of Spark and Iceberg.
The archive holds them verified and laid out for memory. Java itself checks that it fits the Java
and the jars that it was made with, and goes without it otherwise.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["archive_file", "archive_options", "make_archive"]

# An archive that does not fit any more costs seconds, no words at every start.
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_WARM_UP = "tautochrone.spark.session.warm_up"
_WAIT_S = 300


def archive_file(java: str) -> Path:
    """Where the archive for this `java` and this PySpark stands, in the environment's own folder."""
    import pyspark

    command = Path(java).resolve()
    made_with = f"{command} {command.stat().st_mtime_ns} {pyspark.__version__} {pyspark.__file__}"
    name = hashlib.sha256(made_with.encode()).hexdigest()[:16]
    return Path(sys.prefix) / "share" / "tautochrone" / f"classes-{name}.jsa"


def archive_options(java: str) -> list[str]:
    """The options by which Java uses the archive; none when there is no archive."""
    archive = archive_file(java)
    return [f"-XX:SharedArchiveFile={archive}", *_QUIET] if archive.exists() else []


def make_archive(java: str) -> str | None:
    """Make the archive, if there is none, by running a session (about 40 s).

    Returns:
        why it could not be made, else None. Nothing is raised: without it everything works, only slower.
    """
    archive = archive_file(java)
    if archive.exists():
        return None
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            made = Path(scratch) / archive.name
            command = [sys.executable, "-m", _WARM_UP, str(made)]
            subprocess.run(command, capture_output=True, check=True, timeout=_WAIT_S, cwd=scratch)
            # Whole or not at all: others may start in this moment.
            os.replace(made, archive)
    except subprocess.CalledProcessError as error:
        return str(error.stderr.decode(errors="replace").strip()[-300:])
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None
