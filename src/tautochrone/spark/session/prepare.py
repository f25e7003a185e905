"""`python -m tautochrone.spark.session.prepare`, run once at set-up: checks Java, fills the jar cache and
makes the class archive."""

from __future__ import annotations

import sys

from tautochrone.errors import EnvironmentProblemError
from tautochrone.spark.session.class_archive import make_archive
from tautochrone.spark.session.jars import CORE, KAFKA, resolve
from tautochrone.spark.session.java import find_java


def main() -> int:
    try:
        java = find_java()
        resolve(CORE + KAFKA, java)
    except EnvironmentProblemError as error:
        sys.stderr.write(error.render() + "\n")
        return 1
    reason = make_archive(java)
    if reason is not None:
        sys.stderr.write(f"Spark's classes are not archived, so each start takes seconds longer: {reason}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
