"""The settings with which a session was started, and the values that SQL settings have without being set."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.spark.jvm.cached_packages import cached_packages
from tautochrone.spark.session.factory import DEFAULTS

__all__ = ["SqlDefaults", "started_with"]

_TIME_ZONE = "spark.sql.session.timeZone"


def started_with(session: SparkSession) -> dict[str, str]:
    """The settings that a new session has, wherever they were given.

    The time zone is always one of them: Spark takes that of the machine if there is no other.
    """
    return {**session.conf.getAll, _TIME_ZONE: session.conf.get(_TIME_ZONE) or ""}


class SqlDefaults:
    """The value of each SQL setting in a session of Tautochrone when nobody sets it; None for names that
    Spark does not know."""

    def __init__(self, session: SparkSession) -> None:
        # A configuration of its own: a session's has what was set.
        self._unset = cached_packages(session._jvm).org.apache.spark.sql.internal.SQLConf()  # noqa: SLF001
        self._known: dict[str, str | None] = {}

    def __call__(self, name: str) -> str | None:
        if name not in self._known:
            self._known[name] = DEFAULTS[name] if name in DEFAULTS else self._of_spark(name)
        return self._known[name]

    def _of_spark(self, name: str) -> str | None:
        if not name.startswith("spark.sql."):
            return None
        try:
            return str(self._unset.getConfString(name))
        except PySparkException:
            return None
