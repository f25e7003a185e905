"""Several jobs of a project that start at the same moment give the storage one identity; without Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tautochrone.app import storage
from tautochrone.app.locate import Options, locate
from tautochrone.app.storage import Identity, identify, read_identity
from tautochrone.runtime.job.effects import DirectEffects

_SPEC = "name: shop\nstorage: storage\nlibraries:\n  - glob:\n      include: definitions/**\n"
_JOBS = 4


def test_jobs_that_start_together_agree_on_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "spark-pipeline.yml"
    path.write_text(_SPEC)
    spec, settings = locate(Options(spec=str(path)))
    Path(settings.storage).mkdir(parents=True)
    barrier, write = Barrier(_JOBS), storage.write_identity

    def write_together(*arguments: object, **options: object) -> bool:
        # Every job has read a storage without an identity before one of them writes it.
        barrier.wait()
        return write(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "write_identity", write_together)

    def start(_job: int) -> Identity:
        return identify(spec, settings, None, DirectEffects())

    with ThreadPoolExecutor(_JOBS) as pool:
        identities = list(pool.map(start, range(_JOBS)))
    assert {identity.id for identity in identities} == {getattr(read_identity(settings), "id", None)}
    assert [file.name for file in Path(settings.storage).iterdir()] == [storage.FILE_NAME]
