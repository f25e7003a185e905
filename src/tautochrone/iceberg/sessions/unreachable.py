"""The error of a catalog that does not answer."""

from __future__ import annotations

from tautochrone.errors import EnvironmentProblemError
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["catalog_not_reachable"]


def catalog_not_reachable(catalog: str, error: BaseException) -> EnvironmentProblemError:
    """To raise instead of the Java exception `error` of a call to the catalog."""
    return EnvironmentProblemError(
        "CATALOG_NOT_REACHABLE",
        f"The catalog {catalog} does not answer: {problem_of(error).message}",
        hint="see [lake] options in tautochrone.toml, or spark.sql.catalog.… in --conf",
        retryable=True,
    )
