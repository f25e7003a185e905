"""Finding a usable Java before PySpark fails in its own words."""

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
    """The java command that PySpark will use.

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
    """The feature release that a java command is, such as 17; 0 when it does not say."""
    answer = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if found is None:
        return 0
    # Java 8 calls itself 1.8.
    return int(found[2] if found[1] == "1" and found[2] else found[1])
