"""The command of Spark's JVM without the scripts that make it.

`spark-submit` is a shell script that starts a Java program, which only prints the command of the JVM: a
third of a second, in which nothing else of Spark happens. What it prints is the same each time but for the
class path, the memory and the options of Java. So at set-up the script is asked once, with markers in their
places and a `java` that writes down how it is called, and later starts fill in the markers.

The script itself is run where more may count: variables and files by which a user configures it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["LaunchCommand", "prepared_command", "write_command"]

_FILE = "launch-command.json"
_MAIN = "org.apache.spark.deploy.SparkSubmit"
_CLASS_PATH, _MEMORY, _OPTIONS = "@class-path@", "@memory@", "-D@options@"
_TIMEOUT_S = 60

_OWN_VARIABLES = frozenset({"SPARK_LOCAL_IP", "SPARK_LOCAL_DIRS", "SPARK_USER"})
"""What only the JVM reads."""
_READ_BY_SCRIPT = (
    "SPARK_",
    "_SPARK_",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
    "PYSPARK_SUBMIT",
    "PYSPARK_GATEWAY",
)
"""Beginnings of names of variables. With the last of them PySpark uses a JVM that runs already."""
_READ_BY_LAUNCHER = frozenset(
    {"spark.driver.extraLibraryPath", "spark.driver.defaultJavaOptions", "spark.submit.deployMode"}
)
_OF_SHELL = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "PATH", "JAVA_HOME"})

_WRITES_CALL = """#!/bin/sh
case " $* " in *" org.apache.spark.launcher.Main "*) exec "{java}" "$@";; esac
for text in "$@"; do printf '%s\\0' "$text"; done > "{folder}/arguments"
env -0 > "{folder}/variables"
"""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """What the script runs, with markers, and the variables that it adds to the environment."""

    java: str
    arguments: list[str]
    variables: dict[str, str]

    def filled(self, conf: Mapping[str, str], properties: str) -> list[str]:
        """The command of a JVM with these settings.

        Args:
            properties: the file that Spark reads instead of spark-defaults.conf.
        """
        class_path = conf.get("spark.driver.extraClassPath", "")
        options = conf.get("spark.driver.extraJavaOptions", "").split()
        command = [self.java]
        for argument in self.arguments:
            if argument == _OPTIONS:
                command += options
                continue
            text = argument.replace(_MEMORY, conf.get("spark.driver.memory", "1g"))
            command.append(text.replace(f"{_CLASS_PATH}:", f"{class_path}:" if class_path else ""))
        settings = [part for key, text in conf.items() for part in ("--conf", f"{key}={text}")]
        return [*command, *settings, "--properties-file", properties, "pyspark-shell"]


def prepared_command(folder: Path, conf: Mapping[str, str]) -> LaunchCommand | None:
    """The command that was prepared in a folder; None: the script makes it.

    Args:
        conf: the settings with which Spark starts.
    """
    options = conf.get("spark.driver.extraJavaOptions", "")
    if _READ_BY_LAUNCHER & conf.keys() or set(options) & set("\"'\\") or "-Xmx" in options:
        return None
    if not conf.get("spark.master", "").startswith("local"):
        return None
    if any(name.startswith(_READ_BY_SCRIPT) and name not in _OWN_VARIABLES for name in os.environ):
        return None
    try:
        command = LaunchCommand(**json.loads((folder / _FILE).read_text()))
        # Its files say what the script does.
        is_configured = Path(command.variables["SPARK_CONF_DIR"]).exists()
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return None if is_configured else command


def write_command(folder: Path, java: str) -> None:
    """Ask Spark's script for its command, and write it into `folder` for `prepared_command`.

    Args:
        java: of `find_java`.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: it does not answer, or in another way.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    conf = {
        "spark.master": "local",
        "spark.driver.extraClassPath": _CLASS_PATH,
        "spark.driver.memory": _MEMORY,
        "spark.driver.extraJavaOptions": _OPTIONS,
    }
    with tempfile.TemporaryDirectory() as scratch:
        fake = Path(scratch) / "bin" / "java"
        fake.parent.mkdir()
        fake.write_text(_WRITES_CALL.format(java=java, folder=scratch))
        fake.chmod(0o755)
        settings = [part for key, text in conf.items() for part in ("--conf", f"{key}={text}")]
        subprocess.run(
            [home / "bin" / "spark-submit", *settings, "pyspark-shell"],
            # Nothing else, so that all that the script sets is seen.
            env={"PATH": os.environ.get("PATH", os.defpath), "JAVA_HOME": scratch},
            check=True,
            capture_output=True,
            timeout=_TIMEOUT_S,
        )
        arguments = (Path(scratch) / "arguments").read_text().split("\0")
        variables = [line.partition("=") for line in (Path(scratch) / "variables").read_text().split("\0")]
    command = LaunchCommand(
        java=str(Path(java).resolve()),
        arguments=arguments[: arguments.index(_MAIN) + 1],
        variables={name: text for name, _, text in variables if name and name not in _OF_SHELL},
    )
    new = folder / f"{_FILE}.{os.getpid()}"
    new.write_text(json.dumps(asdict(command)))
    new.replace(folder / _FILE)
