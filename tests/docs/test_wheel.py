"""The package as users install it: a wheel in an environment of its own."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tautochrone.spark.session.jars import CORE, KAFKA
from tautochrone.spark.session.java import archive_file, find_java, prepared_folder

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]


def _run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env={**variables, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def taut(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment with the wheel; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python")
    _run(*pip, "install", "--quiet", "--no-deps", wheel)
    packages = next((folder / "lib").glob("python*")) / "site-packages"
    # Editable installs are not followed from here, so `tautochrone` is the wheel's.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    _prepare(folder / "share" / "tautochrone")
    return folder / "bin" / "taut"


def _prepare(folder: Path) -> None:
    """An archive of Java's classes takes a minute to make, and `make setup` makes one of two. What this
    environment lacks is an empty file, which Java ignores; `tests/spark/session/test_java.py` makes one."""
    java = find_java()
    target = folder / prepared_folder(java).name
    target.mkdir(parents=True)
    for prepared in prepared_folder(java).glob("*"):
        (target / prepared.name).symlink_to(prepared)
    for on_class_path in (True, False):
        archive = target / archive_file(java, on_class_path=on_class_path).name
        if not archive.exists():
            archive.touch()


def test_wheel_has_every_file_of_the_package(taut: Path) -> None:
    package = next((taut.parents[1] / "lib").glob("python*")) / "site-packages" / "tautochrone"
    source = ROOT / "src" / "tautochrone"
    expected = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    installed = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    assert {path for path in expected - installed if "__pycache__" not in path.parts} == set()


def test_jars_move_to_a_machine_without_a_network(taut: Path, tmp_path: Path) -> None:
    jars, home = tmp_path / "jars", tmp_path / "home"
    listed = _run(taut, "prepare", "--download", jars).stdout.split()
    assert sorted(Path(jar).name for jar in listed) == sorted(artifact.file for artifact in CORE + KAFKA)
    _run(taut, "prepare", "--from", jars, TAUTOCHRONE_HOME=str(home))
    copied = sorted(path.name for path in home.rglob("*.jar"))
    assert copied == sorted(artifact.file for artifact in CORE + KAFKA)


def test_incomplete_folder_of_jars_is_refused(taut: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [taut, "prepare", "--from", tmp_path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "", "TAUTOCHRONE_HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 1
    assert done.stderr.startswith("[JAR_NOT_AVAILABLE]")


@pytest.mark.slow
@pytest.mark.spark
def test_quickstart_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Everything from the registries, with an empty home."""
    folder, home = tmp_path / "environment", tmp_path / "home"
    home.mkdir()
    venv.create(folder, with_pip=True)
    _run(folder / "bin" / "pip", "install", "--quiet", wheel)
    taut = folder / "bin" / "taut"
    shop = tmp_path / "shop"
    variables = {"HOME": str(home), "TAUTOCHRONE_HOME": str(home)}
    subprocess.run(
        [taut, "init", "--name", "shop"], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": ""}
    )
    spec = shop / "spark-pipeline.yml"
    started = _run(taut, "run", "--spec", spec, **variables)
    assert "downloading jar 1 of" in started.stderr
    rows = _run(taut, "query", "--spec", spec, "SELECT sum(sold) AS sold FROM sales", **variables)
    assert rows.stdout.split()[-1] == "3"
