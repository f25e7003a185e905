"""Settings of Spark, as values. Importing this must not import Spark: the command
line reads settings before it prints anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tautochrone.spark.session.jars import CORE, KAFKA, Artifact

__all__ = ["SparkSettings"]


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How Spark is started.

    Attributes:
        app_name: `spark.app.name`, unless `conf` has one.
        master: `spark.master`, unless `conf` has one.
        conf: the user's settings; they win over the defaults. With what counts of spark-defaults.conf: Spark
            does not read the file itself.
        artifacts: jars on the class path.
        short_lived: for commands that run one query and exit. It turns off the JVM's optimizing compiler,
            which would cost more than it saves.
    """

    app_name: str = "tautochrone"
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = CORE + KAFKA
    short_lived: bool = False
