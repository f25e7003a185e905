"""The `java` command that a session runs, and an archive of the classes that it loads.

The archive is made once at set-up (Java's class data sharing, CDS). About half of the time of a short command
is spent by Java on loading and verifying the classes of Spark and Iceberg. The archive contains them verified
and in memory layout. Java checks that it matches the Java version and the jars, and ignores it otherwise.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tautochrone.errors import EnvironmentProblemError

__all__ = ["MINIMUM_JAVA", "archive_file", "archive_options", "find_java", "java_version", "make_archive"]

MINIMUM_JAVA = 17
_INSTALL = "install a JDK 17 or newer (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"


def find_java() -> str:
    """The path of the `java` command that PySpark will use.

    Raises:
        EnvironmentProblemError: `JAVA_MISSING` or `JAVA_TOO_OLD`, each with what to install.
    """
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not command or not Path(command).exists():
        raise EnvironmentProblemError("JAVA_MISSING", "No Java was found", hint=_INSTALL)
    major = java_version(command)
    if major < MINIMUM_JAVA:
        raise EnvironmentProblemError(
            "JAVA_TOO_OLD",
            f"{command} is Java {major}; Spark 4 needs {MINIMUM_JAVA}",
            hint=_INSTALL,
        )
    return command


def java_version(command: str) -> int:
    """The feature release of a `java` command, such as 17; 0 when its output has no version."""
    output = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)
    match = re.search(r'version "(\d+)(?:\.(\d+))?', output.stderr + output.stdout)
    if match is None:
        return 0
    # Java 8 reports its version as 1.8.
    return int(match[2] if match[1] == "1" and match[2] else match[1])


# -- the archive of Java's classes ------------------------------------------------------------------------


# Java's warnings are off: an archive that no longer matches only makes each start some seconds slower.
_NO_CDS_WARNINGS = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_WARM_UP = "tautochrone.iceberg.sessions.warm_up"
_WARM_UP_TIMEOUT_S = 300


def archive_file(java: str) -> Path:
    """The path of the archive for this `java` and this PySpark, below the Python environment's folder."""
    import pyspark

    command = Path(java).resolve()
    inputs = f"{command} {command.stat().st_mtime_ns} {pyspark.__version__} {pyspark.__file__}"
    name = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    return Path(sys.prefix) / "share" / "tautochrone" / f"classes-{name}.jsa"


def archive_options(java: str) -> list[str]:
    """Java options that use the archive; empty when there is no archive."""
    archive = archive_file(java)
    return [f"-XX:SharedArchiveFile={archive}", *_NO_CDS_WARNINGS] if archive.exists() else []


def make_archive(java: str) -> str | None:
    """Make the archive, if there is none, by running a session (about 40 s).

    Returns:
        The reason why it could not be made, or None. Nothing is raised: the archive is optional.
    """
    archive = archive_file(java)
    if archive.exists():
        return None
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
            new_archive = Path(scratch) / archive.name
            command = [sys.executable, "-m", _WARM_UP, str(new_archive)]
            subprocess.run(command, capture_output=True, check=True, timeout=_WARM_UP_TIMEOUT_S, cwd=scratch)
            # Atomic: another session may start at this moment.
            os.replace(new_archive, archive)
    except subprocess.CalledProcessError as error:
        return str(error.stderr.decode(errors="replace").strip()[-300:])
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None
