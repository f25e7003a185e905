"""The jars that a session needs, resolved once into a cache and reused offline afterwards.

Spark's own `spark.jars.packages` resolves at every start, which takes seconds, and cannot replace a
transitive artifact that does not exist. PySpark ships Ivy, so this module calls Ivy once and keeps the jars.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tautochrone.errors import EnvironmentProblemError

__all__ = ["CORE", "KAFKA", "Artifact", "cache_folder", "copy_from", "copy_to", "missing", "resolve"]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A Maven coordinate. With `transitive` its dependencies are resolved too."""

    group: str
    name: str
    version: str
    transitive: bool = False

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"

    @property
    def file(self) -> str:
        """The name of its jar."""
        return f"{self.name}-{self.version}.jar"


CORE = (
    Artifact("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0"),
    Artifact("org.xerial", "sqlite-jdbc", "3.51.1.0"),
    Artifact("com.globalmentor", "hadoop-bare-naked-local-fs", "0.1.0"),
)

# For flows over Kafka topics. The token provider of 4.1.3 is missing from the public repositories; 4.0.0 is
# compatible, so the connector's dependencies are listed one by one instead of letting Ivy follow them.
KAFKA = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.1.3"),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.1"),
    Artifact("org.apache.commons", "commons-pool2", "2.12.1"),
    # For `from_avro` and `to_avro`; the newest of Spark 4.1 in the public repositories.
    Artifact("org.apache.spark", "spark-avro_2.13", "4.1.1"),
)

_PATTERN = "[artifact]-[revision](-[classifier]).[ext]"


def cache_folder() -> Path:
    """The folder of cached jars: below `TAUTOCHRONE_HOME` or the user's cache folder."""
    home = os.environ.get("TAUTOCHRONE_HOME")
    if home:
        return Path(home) / "jars"
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tautochrone" / "jars"


def resolve(
    artifacts: tuple[Artifact, ...],
    java: str = "java",
    report: Callable[[Artifact, int, int], None] | None = None,
) -> list[Path]:
    """Local paths of `artifacts`; missing ones are downloaded into the cache.

    Args:
        artifacts: what a session needs.
        java: the command that runs Ivy.
        report: called before each download with the artifact, its number from 1 on, and how many there are.

    Raises:
        EnvironmentProblemError: `JAR_NOT_AVAILABLE` when the repository has no such artifact or cannot
            be reached.
    """
    absent = missing(artifacts)
    for number, artifact in enumerate(absent, 1):
        if report is not None:
            report(artifact, number, len(absent))
        _download(artifact, _folder(artifact), java)
    return [jar for artifact in artifacts for jar in sorted(_folder(artifact).glob("*.jar"))]


def missing(artifacts: tuple[Artifact, ...]) -> tuple[Artifact, ...]:
    """Those of `artifacts` that are not in the cache yet."""
    return tuple(artifact for artifact in artifacts if not (_folder(artifact) / "complete").exists())


def copy_to(folder: Path, artifacts: tuple[Artifact, ...], java: str) -> list[Path]:
    """Copy the jars of `artifacts` into `folder`, for a machine without a network.

    Returns:
        The copies.

    Raises:
        EnvironmentProblemError: as `resolve`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copy2(jar, folder)) for jar in resolve(artifacts, java)]


def copy_from(folder: Path, artifacts: tuple[Artifact, ...]) -> None:
    """Fill the cache from a folder that `copy_to` wrote.

    Raises:
        EnvironmentProblemError: `JAR_NOT_AVAILABLE` when the folder lacks one.
    """
    for artifact in missing(artifacts):
        jar = folder / artifact.file
        if not jar.is_file():
            raise EnvironmentProblemError(
                "JAR_NOT_AVAILABLE",
                f"The folder {folder} has no {artifact.file}",
                hint="fill it on a machine with a network, by the same version's `taut prepare --download`",
            )
        target = _folder(artifact)
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            Path(shutil.copy2(jar, scratch)).replace(target / artifact.file)
        (target / "complete").touch()


def _folder(artifact: Artifact) -> Path:
    return cache_folder() / hashlib.sha256(str(artifact).encode()).hexdigest()[:16]


def _download(artifact: Artifact, folder: Path, java: str) -> None:
    import pyspark

    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        command = [
            java,
            "-jar",
            str(ivy),
            # Ivy does not lock its cache: two processes that fill the same one make each other fail.
            "-cache",
            f"{scratch}/ivy",
            "-dependency",
            artifact.group,
            artifact.name,
            artifact.version,
            "-retrieve",
            f"{scratch}/{_PATTERN}",
            "-types",
            "jar",
            "bundle",
            "-confs",
            "default",
        ]
        if not artifact.transitive:
            command.append("-notransitive")
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        jars = sorted(Path(scratch).glob("*.jar"))
        if result.returncode != 0 or not jars:
            raise EnvironmentProblemError(
                "JAR_NOT_AVAILABLE",
                f"The artifact {artifact} could not be resolved",
                hint="check that the Maven repository can be reached, or fill the cache from a folder by "
                "`taut prepare --from`; Ivy's output: " + (result.stdout + result.stderr).strip()[-300:],
                retryable=True,
            )
        for jar in jars:
            # Atomic per file: two processes may fill the same cache at once.
            jar.replace(folder / jar.name)
    (folder / "complete").touch()
