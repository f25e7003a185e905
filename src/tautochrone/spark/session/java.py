"""The `java` command that a session runs, and what is prepared for it at set-up.

An archive of classes (Java's class data sharing, CDS): about half of the time of a short command is spent
by Java on loading and verifying the classes of Spark and Iceberg. The archive contains them verified and in
memory layout. Java checks that it matches the Java version, the jars and their paths, and ignores it
otherwise.

Most classes of a jar can be archived only if it is on Java's own class path. This package's jars are, in
local mode. The jars of a project are loaded by Spark's class loader, which classes of the class path cannot
see, and Iceberg needs clients of S3 and drivers of databases. So beside a project's jars these are loaded by
Spark's class loader, too, with an archive for that case.

Java archives no class of a signed jar, and verifies the signature at each start. Those of the compiler of
Spark's generated code are signed by nobody ("DUMMY"), so copies without signatures come before them.

The folder of the archives has copies of the jars, whose paths are the same for all users, and the compiled
classes of this package's Java sources, which each session would compile otherwise; and the command of
Spark's JVM, which a script and another JVM make otherwise.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from tautochrone.errors import EnvironmentProblemError
from tautochrone.redaction import redacted
from tautochrone.spark.session.jars import CORE, KAFKA, resolve
from tautochrone.spark.session.launch_command import write_command

__all__ = [
    "JAVA_VARIABLES",
    "MINIMUM_JAVA",
    "archive_file",
    "archive_options",
    "class_path",
    "find_java",
    "java_version",
    "make_archives",
    "prepared_folder",
]

MINIMUM_JAVA = 17
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS")
"""The variables whose options Java takes besides those of its command."""
_PICKED_UP = re.compile(r"(NOTE: )?Picked up ")
_INSTALL = "install a JDK 17 or newer (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"


def find_java() -> str:
    """The path of the `java` command that PySpark will use.

    Raises:
        EnvironmentProblemError: `JAVA_MISSING`, `JAVA_FAILED` or `JAVA_TOO_OLD`, each with what to do.
    """
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not command or not Path(command).exists():
        reason = f": JAVA_HOME is {home}, where there is no bin/java" if home else ""
        raise EnvironmentProblemError("JAVA_MISSING", f"No Java was found{reason}", hint=_INSTALL)
    major = _recorded_version(command) or java_version(command)
    if major < MINIMUM_JAVA:
        raise EnvironmentProblemError(
            "JAVA_TOO_OLD",
            f"{command} is Java {major}; Spark 4 needs {MINIMUM_JAVA}",
            hint=_INSTALL,
        )
    return command


def _recorded_version(command: str) -> int | None:
    """What the file beside a Java says, without starting it; None: only Java itself can tell, also whether it
    accepts the options that the environment has for it."""
    if any(name in os.environ for name in JAVA_VARIABLES):
        return None
    try:
        text = (Path(command).resolve().parent.parent / "release").read_text()
    except (OSError, ValueError):
        return None
    match = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return int(match[1]) if match and int(match[1]) >= MINIMUM_JAVA else None


@cache
def java_version(command: str) -> int:
    """The feature release of a `java` command, such as 17.

    Raises:
        EnvironmentProblemError: `JAVA_FAILED`.
    """
    output = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)
    text = output.stderr + output.stdout
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None or output.returncode:
        lines = [line for line in text.splitlines() if not _PICKED_UP.match(line)]
        raise EnvironmentProblemError(
            "JAVA_FAILED",
            f"`{command} -version` fails: {redacted(' '.join(lines[:2]))}",
            hint="check JAVA_HOME, and options in the variables JAVA_TOOL_OPTIONS, _JAVA_OPTIONS "
            "and JDK_JAVA_OPTIONS",
        )
    # Java 8 reports its version as 1.8.
    return int(match[2] if match[1] == "1" and match[2] else match[1])


# -- what is prepared ----------------------------------------------------------------------------------------


# Java's warnings are off: an archive that no longer matches only makes each start some seconds slower.
_NO_CDS_WARNINGS = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_BY_JAVA, _BY_CLASS_LOADER = "class-path.jsa", "class-loader.jsa"
_WARM_UP = "tautochrone.app.warm_up"
_WARM_UP_TIMEOUT_S = 300
_COMPILER = ("janino-*.jar", "commons-compiler-*.jar")
_SIGNATURE = re.compile(r"META-INF/[^/]+\.(SF|DSA|RSA|EC)")


def prepared_folder(java: str) -> Path:
    """What is prepared for this `java`, this PySpark and these jars, in the Python environment's folder."""
    import pyspark

    command = Path(java).resolve()
    jars = " ".join([*map(str, CORE + KAFKA), "unsigned"])
    inputs = f"{command} {command.stat().st_mtime_ns} {pyspark.__version__} {pyspark.__file__} {jars}"
    name = hashlib.sha256(inputs.encode()).hexdigest()[:16]
    return Path(sys.prefix) / "share" / "tautochrone" / name


def _compiler_jars() -> list[Path]:
    """Of the compiler of Spark's generated code."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    return [path for name in _COMPILER for path in jars.glob(name)]


def archive_file(java: str, *, on_class_path: bool = True) -> Path:
    """The path of the archive for sessions whose jars are on Java's class path, or for the others."""
    return prepared_folder(java) / (_BY_JAVA if on_class_path else _BY_CLASS_LOADER)


def archive_options(java: str, *, on_class_path: bool = True) -> list[str]:
    """Java options that use an archive; empty when there is none."""
    archive = archive_file(java, on_class_path=on_class_path)
    return [f"-XX:SharedArchiveFile={archive}", *_NO_CDS_WARNINGS] if archive.exists() else []


def class_path(java: str, jars: Iterable[Path]) -> list[str]:
    """Where Java loads these jars from: the prepared copies, if there are any. Then those of the compiler."""
    folder = prepared_folder(java)
    paths = [copy if (copy := folder / jar.name).exists() else jar for jar in jars]
    return [*map(str, paths), *(str(path) for name in _COMPILER for path in folder.glob(name))]


def _copy_without_signature(jar: Path, folder: Path) -> Path:
    copy = folder / jar.name
    with ZipFile(jar) as signed, ZipFile(copy, "w", ZIP_DEFLATED) as unsigned:
        for name in signed.namelist():
            if not _SIGNATURE.fullmatch(name):
                unsigned.writestr(name, signed.read(name))
    return copy


def make_archives(java: str, *, only_local: bool = False) -> str | None:
    """Fill the prepared folder, if it is not complete, by running the sample project (about a minute).

    Args:
        only_local: without the archive for clusters and for projects with jars.

    Returns:
        The reason why it could not be filled, or None. Nothing is raised: what it holds is optional.
    """
    archives = (
        [archive_file(java)] if only_local else [archive_file(java), archive_file(java, on_class_path=False)]
    )
    absent = [archive for archive in archives if not archive.exists()]
    try:
        if absent:
            absent[0].parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=absent[0].parent) as scratch:
                for jar in resolve(CORE + KAFKA, java):
                    _move_into(Path(shutil.copy2(jar, scratch)), absent[0].parent)
                for jar in _compiler_jars():
                    _move_into(_copy_without_signature(jar, Path(scratch)), absent[0].parent)
                with ThreadPoolExecutor() as pool:
                    list(pool.map(_warm_up, [Path(scratch) / archive.name for archive in absent]))
                for file in Path(scratch).iterdir():
                    _move_into(file, absent[0].parent)
        # Without it Spark's script makes the command at each start.
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            write_command(archives[0].parent, java)
    except subprocess.CalledProcessError as error:
        return str(error.stderr.decode(errors="replace").strip()[-300:])
    except (OSError, subprocess.SubprocessError, EnvironmentProblemError) as error:
        return str(error)
    return None


def _move_into(file: Path, folder: Path) -> None:
    """Atomic, and what is there stays: another session may use it at this moment."""
    if not (folder / file.name).exists():
        os.replace(file, folder / file.name)


def _warm_up(archive: Path) -> None:
    """Make one archive in a process of its own."""
    command = [sys.executable, "-m", _WARM_UP, str(archive)]
    if archive.name == _BY_CLASS_LOADER:
        command.append("--by-class-loader")
    subprocess.run(command, capture_output=True, check=True, timeout=_WARM_UP_TIMEOUT_S, cwd=archive.parent)
