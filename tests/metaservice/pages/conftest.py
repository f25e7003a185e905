"""Every page over every kind of store, asked by HTTP without a browser."""

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

from .doubles import Plans, Rows
from .serving import serving
from .world import SEEDS


@dataclass
class Site:
    """The pages over one store, with what stands behind their forms."""

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
        """Send a form as one of our own pages would."""
        return self.client.post(path, data={CSRF_FIELD: self.csrf(), **fields})


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a seed's store, written once: a story of forty checkpoints is hundreds of commits."""
    folder, made = tmp_path_factory.mktemp("seeds"), set[str]()

    def file(seed: str) -> Path:
        path = folder / f"{seed}.db"
        if seed not in made:
            with MetaStore.open(f"sqlite:///{path}") as store:
                SEEDS[seed](store, time.time_ns() // 1_000_000)
            made.add(seed)
        return path

    return file


@pytest.fixture
def site(tmp_path: Path, seeded: Callable[[str], Path]) -> Iterator[Callable[..., Site]]:
    """Makes the site of a seed, with or without somebody to query and revise."""
    with ExitStack() as stack:

        def made(seed: str, *, bare: bool = False) -> Site:
            copy = shutil.copy(seeded(seed), tmp_path)
            store = stack.enter_context(MetaStore.open(f"sqlite:///{copy}"))
            app, rows, plans = FastAPI(), Rows(), Plans()
            forms = (
                Forms(unavailable_reason="This service knows no project")
                if bare
                else Forms(runner=rows, revisions=plans)
            )
            add_pages(app, store, forms)
            url = stack.enter_context(serving(app))
            client = stack.enter_context(httpx.Client(base_url=url, timeout=60))
            return Site(store, app, client, url, rows, plans)

        yield made
