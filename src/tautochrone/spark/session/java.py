"""Finding a usable Java, with a clear error when there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tautochrone.errors import EnvironmentProblemError

__all__ = ["MINIMUM_JAVA", "find_java", "java_version"]

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
