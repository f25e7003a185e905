"""Downloading the jars of a session, with a double in place of Java and Ivy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tautochrone.errors import EnvironmentProblemError
from tautochrone.spark.session.jars import Artifact, missing, resolve

ARTIFACT = (Artifact("org.example", "library", "1.0"),)
_IVY = """\
#!/bin/sh
cache="{shared}"
while [ $# -gt 0 ]; do
  case "$1" in
    -cache) cache="$2" ;;
    -retrieve) folder="${{2%/*}}" ;;
  esac
  shift
done
mkdir -p "$cache"
mkdir "$cache/busy" || exit 1
sleep 0.3
rmdir "$cache/busy"
touch "$folder/library-1.0.jar"
"""
"""Fails, as Ivy does, when another process uses the same cache."""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TAUTOCHRONE_HOME", str(tmp_path / "home"))
    command = tmp_path / "java"
    command.write_text(_IVY.format(shared=tmp_path / "shared"))
    command.chmod(0o755)
    return str(command)


def test_processes_may_fill_an_empty_cache_at_once(java: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        resolved = list(pool.map(lambda _: resolve(ARTIFACT, java), range(3)))
    assert {path.name for jars in resolved for path in jars} == {"library-1.0.jar"}
    assert missing(ARTIFACT) == ()
    # Nothing but the jars stays: Ivy's own copies would take their space twice.
    files = {path.name for path in (tmp_path / "home").rglob("*") if path.is_file()}
    assert files == {"library-1.0.jar", "complete"}


def test_failed_download_is_tried_again(java: str, tmp_path: Path) -> None:
    script = Path(java).read_text()
    Path(java).write_text("#!/bin/sh\necho no route to the repository\nexit 1\n")
    with pytest.raises(EnvironmentProblemError, match=r"library:1\.0 could not be resolved") as raised:
        resolve(ARTIFACT, java)
    assert raised.value.error_class == "JAR_NOT_AVAILABLE"
    assert "no route to the repository" in str(raised.value.hint)
    assert missing(ARTIFACT) == ARTIFACT
    Path(java).write_text(script)
    assert [path.name for path in resolve(ARTIFACT, java)] == ["library-1.0.jar"]
