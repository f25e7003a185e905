"""`python -m tautochrone.spark.prepare`: find Java and fill the jar cache, once, at set-up."""

from __future__ import annotations

import sys

from tautochrone.errors import EnvironmentProblemError
from tautochrone.spark.jars import CORE, KAFKA, resolve
from tautochrone.spark.java import find_java


def main() -> int:
    try:
        resolve(CORE + KAFKA, find_java())
    except EnvironmentProblemError as error:
        sys.stderr.write(error.render() + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
