"""What the first run would download and make: jars, and an archive of Spark's classes.

`taut prepare` does it, or `python -m tautochrone.spark.session.prepare`; with `--local` without the archive
for clusters and for projects with jars of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tautochrone.errors import EnvironmentProblemError
from tautochrone.spark.session.jars import CORE, KAFKA, Artifact, copy_from, copy_to, resolve
from tautochrone.spark.session.java import find_java, make_archives

__all__ = ["download_jars", "prepare"]

Report = Callable[[str], None]


def prepare(report: Report, source: Path | None = None, *, only_local: bool = False) -> None:
    """Fill the jar cache and make the archives of classes.

    Args:
        report: called with one line for each thing that takes time.
        source: a folder of jars that `download_jars` wrote; None: the Maven repository.
        only_local: without the archive for clusters and for projects with jars.

    Raises:
        EnvironmentProblemError: Java or a jar is missing.
    """
    java = find_java()
    if source is not None:
        copy_from(source, CORE + KAFKA)
    _download(report, java)
    reason = make_archives(java, only_local=only_local)
    if reason is not None:
        report(f"Spark's classes are not archived, so each start takes seconds longer: {reason}")


def download_jars(report: Report, folder: Path) -> list[Path]:
    """Write all jars that a run may need into `folder`, for `prepare` on a machine without a network.

    Raises:
        EnvironmentProblemError: Java or a jar is missing.
    """
    java = find_java()
    _download(report, java)
    return copy_to(folder, CORE + KAFKA, java)


def _download(report: Report, java: str) -> None:
    def started(artifact: Artifact, number: int, total: int) -> None:
        report(f"downloading jar {number} of {total}: {artifact}")

    resolve(CORE + KAFKA, java, started)


def main(*flags: str) -> int:
    try:
        prepare(lambda line: print(line, file=sys.stderr, flush=True), only_local="--local" in flags)  # noqa: T201
    except EnvironmentProblemError as error:
        sys.stderr.write(error.render() + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
