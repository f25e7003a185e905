"""The pages over seeded stores, without a browser."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tautochrone.meta import MetaStore, Store
from tautochrone.metaservice.pages import Forms, add_pages
from tautochrone.metaservice.pages.safety import CSRF_COOKIE, CSRF_FIELD

from .doubles import Lake, Plans, Rows
from .serving import serving
from .world import SEEDS


@dataclass
class Site:
    """The pages over one store, with the doubles behind their forms."""

    store: Store
    app: FastAPI
    client: httpx.Client
    url: str
    rows: Rows
    plans: Plans

    def csrf(self) -> str:
        """The token that this client's forms must carry."""
        self.client.get("/query")
        return str(self.client.cookies[CSRF_COOKIE])

    def post(self, path: str, **fields: str) -> httpx.Response:
        """Send a form with the token, as a page of the service does."""
        return self.client.post(path, data={CSRF_FIELD: self.csrf(), **fields})


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a seed's store, written once, because forty checkpoints are hundreds of commits."""
    folder, written = tmp_path_factory.mktemp("seeds"), set[str]()

    def file(seed: str) -> Path:
        path = folder / f"{seed}.db"
        if seed not in written:
            with MetaStore.open(f"sqlite:///{path}") as store:
                SEEDS[seed](store, time.time_ns() // 1_000_000)
            written.add(seed)
        return path

    return file


@pytest.fixture
def open_site(tmp_path: Path, seeded: Callable[[str], Path]) -> Iterator[Callable[..., Site]]:
    """Opens the pages over a seed's store, with or without a runner and revisions."""
    with ExitStack() as stack:

        def open_seed(seed: str, *, bare: bool = False) -> Site:
            copy = shutil.copy(seeded(seed), tmp_path)
            store = stack.enter_context(MetaStore.open(f"sqlite:///{copy}"))
            app, rows, plans = FastAPI(), Rows(), Plans()
            forms = (
                Forms(unavailable_reason="This service knows no project")
                if bare
                else Forms(runner=rows, revisions=plans)
            )
            add_pages(app, store, forms, lake=None if bare else Lake())
            url = stack.enter_context(serving(app))
            # Certificates take longer to read than a page takes.
            client = stack.enter_context(httpx.Client(base_url=url, timeout=60, verify=False))
            return Site(store, app, client, url, rows, plans)

        yield open_seed
