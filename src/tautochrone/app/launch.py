"""Spark's JVM starts while this process imports the rest of the program: both take seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tautochrone.app.locate import Options, locate

if TYPE_CHECKING:
    from tautochrone.project.settings import Settings
    from tautochrone.project.spec import PipelineSpec

__all__ = ["launch", "locate_and_launch"]


def locate_and_launch(options: Options, *, reads_store: bool = False) -> tuple[PipelineSpec, Settings]:
    """Locate a project and begin to start the JVM, for a short-lived `Project` with what is returned.

    Args:
        options: where the project is.
        reads_store: nothing is started when its store cannot be read.

    Raises:
        SpecError, SettingsError: what is wrong with the project.
        MetaError: `META_STORE_MISSING`, `META_STORE_OTHER_RELEASE`.
        EnvironmentProblemError: Java is missing.
    """
    located = locate(options)
    if reads_store:
        from tautochrone.app.stores import require_store

        require_store(located[1])
    launch(located[1], short_lived=True)
    return located


def launch(settings: Settings, *, short_lived: bool = False) -> None:
    """Begin to start the JVM, for the `Project` with the same arguments.

    Without the jars nothing is started: each download is an event of the project.

    Raises:
        EnvironmentProblemError: Java is missing.
    """
    from tautochrone.iceberg.sessions.spark_sessions import launch_session
    from tautochrone.spark.session.jars import missing

    if not missing(settings.spark.artifacts):
        short_lived = short_lived or settings.spark.short_lived
        launch_session(replace(settings.spark, short_lived=short_lived), settings.catalog)
