"""Opens the store. Only this module decides by the URL what kind of store it is.

`http(s)://…` is a MetaService; anything else is a database that this process opens itself. Both are a
`MetaStore`, and nothing behind this module knows which.

A store that another release wrote is migrated only by what takes a job over, once no other job of it runs,
and by `taut serve`. Everything else refuses it: the release that made it may still run the pipeline, and
could not open it again.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tautochrone.errors import MetaError
from tautochrone.meta import MetaStore, Store, StoreDatabase
from tautochrone.meta.database import parsed_url
from tautochrone.model.events import Emit

if TYPE_CHECKING:
    from tautochrone.project.settings import Settings
    from tautochrone.runtime.job.ownership import Ownership

__all__ = [
    "existing_store",
    "is_service",
    "open_store",
    "project_store",
    "require_release",
    "require_store",
    "store_exists",
]


def is_service(url: str) -> bool:
    """Whether the URL means a service, not a database."""
    return url.partition("://")[0].lower() in ("http", "https")


def open_store(
    url: str, *, token: str | None = None, retry_ms: int | None = None, emit: Emit | None = None
) -> Store:
    """The store at `url`; a database is created and migrated as needed.

    Args:
        url: `http(s)://host:port` or a SQLAlchemy URL.
        token: for a service.
        retry_ms: how long a call is repeated while the service does not answer; a minute when absent.
        emit: gets an event when the service does not answer.

    Raises:
        MetaError: `META_SERVICE_…` for a service, `META_STORE_…` for a database, `META_URL_INVALID`.
    """
    if not is_service(url):
        return MetaStore.open(url)
    # Imported only for a service: it takes a quarter of a second.
    from tautochrone.metaservice.rpc import DEFAULT_RETRY_MS, RemoteStore

    return RemoteStore(
        url, token=token, retry_ms=DEFAULT_RETRY_MS if retry_ms is None else retry_ms, emit=emit
    )


def project_store(
    settings: Settings, emit: Emit | None = None, *, ownership: Ownership | None = None
) -> Store:
    """The store that a project's settings name; a database is created and migrated as needed.

    Args:
        settings: the project's.
        emit: gets an event when a service does not answer, or a run is waited for.
        ownership: how the caller becomes the owner of the settings' job. A store of an earlier release is
            migrated when no job of it runs but what this may fence off.

    Raises:
        MetaError: as of `open_store`; `JOB_RUNNING`.
    """
    if ownership is not None and not is_service(settings.meta_url):
        is_over = partial(ownership.is_over, settings.job)
        return ownership.when_free(
            emit or (lambda _: None), lambda: MetaStore.open(settings.meta_url, is_over=is_over)
        )
    return open_store(
        settings.meta_url, token=settings.meta_token, retry_ms=settings.meta_retry_ms, emit=emit
    )


def existing_store(
    settings: Settings, emit: Emit | None = None, *, ownership: Ownership | None = None
) -> Store:
    """The store that a project's settings name. It is never created.

    Args:
        settings: the project's.
        emit: see `project_store`.
        ownership: see `project_store`. Without it a store of another release is refused, not migrated.

    Raises:
        MetaError: `META_STORE_MISSING`, nothing has run yet; `META_STORE_OTHER_RELEASE`; `JOB_RUNNING`.
    """
    url = settings.meta_url
    if not is_service(url) and not store_exists(url):
        raise MetaError("META_STORE_MISSING", "This pipeline has not run yet", hint="`taut run` first")
    if ownership is None and not is_service(url):
        return MetaStore.open(url, migrate=False)
    return project_store(settings, emit, ownership=ownership)


def require_store(settings: Settings) -> None:
    """Check that a command which reads the store can do so, before Spark starts for it.

    Raises:
        MetaError: as of `existing_store`.
    """
    existing_store(settings).close()


def require_release(settings: Settings) -> None:
    """As `require_store`, but before the first run there is nothing to refuse.

    Raises:
        MetaError: `META_STORE_OTHER_RELEASE`.
    """
    if not is_service(settings.meta_url) and store_exists(settings.meta_url):
        require_store(settings)


def store_exists(url: str) -> bool:
    """Whether the database at `url` is a store already. Creates nothing."""
    parsed = parsed_url(url)
    if parsed.get_backend_name() == "sqlite":
        # Connecting would create the file.
        return bool(parsed.database) and Path(str(parsed.database)).exists()
    database = StoreDatabase(url)
    try:
        return database.revision() is not None
    finally:
        database.close()
