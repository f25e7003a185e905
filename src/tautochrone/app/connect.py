"""`tautochrone.connect`: a reader for a project, from its spec file, or through a service at a URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from tautochrone.app.locate import Options, locate
from tautochrone.app.remote import RemoteReader
from tautochrone.app.serving import serving_processes
from tautochrone.errors import MetaError

if TYPE_CHECKING:
    from tautochrone.reader import Reader

__all__ = ["connect", "open_connection", "query_settings"]


def open_connection(options: Options, *, short_lived: bool = False) -> Reader:
    """A reader for the project that `options` locate; starts Spark (about 6 s).

    Args:
        options: where the project is.
        short_lived: tune the JVM for one answer instead of many.

    Raises:
        SpecError, SettingsError, MetaError, LakeError: what prevents reading.
    """
    # Imported here: a remote reader needs no Spark.
    from tautochrone.app.storage import check_storage
    from tautochrone.app.stores import existing_store
    from tautochrone.reader import Reader

    spec, settings = locate(options)
    check_storage(spec, settings)
    store = existing_store(settings)
    conf = {**query_settings(spec.configuration), **settings.spark.conf}
    spark = replace(settings.spark, conf=conf, short_lived=short_lived)
    return Reader(store, settings.catalog, spark, database=spec.database or "default")


def query_settings(configuration: Mapping[str, str]) -> dict[str, str]:
    """The settings with which a pipeline's views are computed: a persisted view is computed by its reader.

    Catalogs and extensions are not among them; they belong to the session that is started.
    """
    others = ("spark.sql.catalog", "spark.sql.extensions", "spark.sql.warehouse", "spark.sql.default")
    return {
        key: value
        for key, value in configuration.items()
        if key.startswith("spark.sql.") and not key.startswith(others)
    }


@overload
def connect(spec: Path | None = None, *, master: str | None = None, target: str | None = None) -> Reader: ...


@overload
def connect(
    spec: str | Path | None = None,
    *,
    token: str | None = None,
    own_spark: Literal[False],
    target: str | None = None,
) -> RemoteReader: ...


# A text may be a path or a URL, whose readers answer with a DataFrame or with a `pyarrow.Table`.
@overload
def connect(
    spec: str, *, master: str | None = None, token: str | None = None, target: str | None = None
) -> Any: ...


def connect(
    spec: str | Path | None = None,
    *,
    master: str | None = None,
    token: str | None = None,
    own_spark: bool = True,
    target: str | None = None,
) -> Reader | RemoteReader:
    """Read a pipeline's tables at one checkpoint, by a Spark of this process or through a service.

        connect("pipelines/shop").sql("SELECT * FROM totals").show()               # a Spark DataFrame
        connect("http://lake.example:7117").sql("SELECT * FROM totals").to_pandas()  # a pyarrow.Table
        connect("pipelines/shop", own_spark=False).sql("SELECT * FROM totals")       # a pyarrow.Table

    Args:
        spec: the `spark-pipeline.yml`, or a folder at or below it; the current folder when absent. Or the
            URL of `taut serve`: then this process needs neither Java nor the project.
        master: the Spark master, `local[*]` when absent.
        token: the service's bearer token; `TAUTOCHRONE_META_TOKEN` when absent.
        own_spark: False: read through the continuous run or the `taut serve` of the project on this machine,
            as `taut query` does. No Spark starts.
        target: the target of the project; without it the one that its settings choose.

    Returns:
        A `Reader`; for a URL, or without a Spark of its own, a `RemoteReader`. Use it as a context manager.
        See `Reader.sql` for consistency and checkpoints.

    Raises:
        SpecError, SettingsError, MetaError, LakeError: what prevents reading; without a Spark of its own
            `NO_RUNNING_SERVICE` (retryable).
    """
    if isinstance(spec, str) and spec.lower().startswith(("http://", "https://")):
        return RemoteReader(spec, token)
    if spec is not None and Path(spec).is_dir():
        from tautochrone.project.spec import find_spec

        spec = find_spec(Path(spec))
    options = Options(spec=None if spec is None else str(spec), master=master, target=target)
    return open_connection(options) if own_spark else _reader_through_service(options, token)


def _reader_through_service(options: Options, token: str | None) -> RemoteReader:
    spec, settings = locate(options)
    processes = serving_processes(spec, settings)
    if not processes:
        raise MetaError(
            "NO_RUNNING_SERVICE",
            f"No process that reads what {spec.path} reads answers queries on this machine",
            hint="start `taut run --continuous` or `taut serve`, or leave out own_spark=False",
            retryable=True,
        )
    return RemoteReader(processes[0].uri, token or settings.meta_token, key=processes[0].key)
