"""`tautochrone.connect`: a reader for a project, from its spec file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tautochrone.app.locate import Options, locate
from tautochrone.app.storage import check_storage
from tautochrone.app.stores import existing_store
from tautochrone.reader import Reader

__all__ = ["connect", "open_connection"]


def open_connection(options: Options, *, short_lived: bool = False) -> Reader:
    """A reader for the project that `options` locate; starts Spark (about 6 s).

    Args:
        options: where the project is.
        short_lived: tune the JVM for one answer instead of many.

    Raises:
        SpecError, SettingsError, MetaError, LakeError: what prevents reading.
    """
    spec, settings = locate(options)
    check_storage(spec, settings)
    store = existing_store(settings)
    conf = {**_query_settings(spec.configuration), **settings.spark.conf}
    spark = replace(settings.spark, conf=conf, short_lived=short_lived)
    return Reader(store, settings.catalog, spark, database=spec.database or "default")


def _query_settings(configuration: Mapping[str, str]) -> dict[str, str]:
    """The settings with which a pipeline's views are computed: a persisted view is computed by its reader.

    Catalogs and extensions are not among them; they belong to the session that is started.
    """
    others = ("spark.sql.catalog", "spark.sql.extensions", "spark.sql.warehouse", "spark.sql.default")
    return {
        key: value
        for key, value in configuration.items()
        if key.startswith("spark.sql.") and not key.startswith(others)
    }


def connect(spec: str | Path | None = None, *, master: str | None = None) -> Reader:
    """Read a pipeline's tables at one checkpoint: `connect(spec).sql(query)` is a Spark DataFrame.

    Args:
        spec: the `spark-pipeline.yml`, or a folder at or below it; the current folder when absent.
        master: the Spark master, `local[*]` when absent.

    Returns:
        A `Reader`; use it as a context manager. See `Reader.sql` for consistency and checkpoints.
    """
    if spec is not None and Path(spec).is_dir():
        from tautochrone.project.spec import find_spec

        spec = find_spec(Path(spec))
    return open_connection(Options(spec=None if spec is None else str(spec), master=master))
