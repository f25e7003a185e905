"""Spark's JVM starts while this process imports the rest of the program: both take seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tautochrone.app.locate import Options, locate

if TYPE_CHECKING:
    from tautochrone.project.settings import Settings
    from tautochrone.project.spec import PipelineSpec

__all__ = ["launch", "locate_and_launch"]


def locate_and_launch(options: Options) -> tuple[PipelineSpec, Settings]:
    """Locate a project and begin to start the JVM, for a short-lived `Project` with what is returned.

    Raises:
        SpecError, SettingsError: what is wrong with the project.
        EnvironmentProblemError: Java is missing.
    """
    located = locate(options)
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
