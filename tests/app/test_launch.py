"""The JVM that is launched early has the settings of the session that uses it: otherwise two would start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tautochrone.app.launch import launch
from tautochrone.app.locate import Options, locate
from tautochrone.app.open import Project
from tautochrone.project.spec import init_project
from tautochrone.spark.session import factory


class _StartsError(Exception):
    """Spark would start now."""


@pytest.mark.parametrize("short_lived", [False, True])
@pytest.mark.parametrize(
    "conf",
    [{}, {"spark.jars": "/a.jar"}, {"spark.sql.extensions": "a.B", "spark.hadoop.fs.s3a.secret.key": "x"}],
)
def test_a_project_uses_the_jvm_that_was_launched_for_it(
    conf: dict[str, str], short_lived: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[tuple[Mapping[str, str], list[str]]] = []

    def start(*arguments: Any) -> None:
        settings.append(arguments)
        raise _StartsError

    monkeypatch.setattr(factory, "launch", lambda *arguments: settings.append(arguments))
    monkeypatch.setattr(factory, "start_context", start)
    options = Options(spec=str(init_project(tmp_path, "sample") / "spark-pipeline.yml"), conf=conf)
    located = locate(options)
    launch(located[1], short_lived=short_lived)
    with pytest.raises(_StartsError):
        Project(options, lambda _: None, short_lived=short_lived, located=located)
    launched, used = settings
    assert launched == used
    assert launched[0]["spark.app.name"]
