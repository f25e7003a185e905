"""Spark loads its classes from the archive made at set-up, and starts without one too."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from tautochrone.errors import EnvironmentProblemError
from tautochrone.spark.jvm import driver_calls
from tautochrone.spark.jvm.driver_calls import COMPILED, compiled_class, write_compiled
from tautochrone.spark.session import java
from tautochrone.spark.session.factory import settings_to_start
from tautochrone.spark.session.jars import CORE, KAFKA
from tautochrone.spark.session.java import (
    JAVA_VARIABLES,
    archive_file,
    archive_options,
    find_java,
    make_archives,
    prepared_folder,
)
from tautochrone.spark.session.settings import SparkSettings


@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_java_maps_the_archive(spark: SparkSession) -> None:
    assert spark is not None
    assert make_archives(find_java(), only_local=True) is None
    gateway = SparkContext._gateway
    assert gateway is not None
    mapped = Path(f"/proc/{gateway.proc.pid}/maps").read_text()
    assert str(archive_file(find_java())) in mapped, "made by `make setup` and accepted by Java"


@pytest.mark.spark
def test_classes_of_this_package_are_compiled_at_set_up(spark: SparkSession, tmp_path: Path) -> None:
    assert spark is not None
    loader = compiled_class(Path(driver_calls.__file__).with_name("DriverCalls.java")).getClassLoader()
    assert loader.getClass().getSimpleName() == "URLClassLoader"
    source = tmp_path / "Sum.java"
    source.write_text(
        "package tautochrone; public class Sum { public static int of(int a) { return a + 1; } }"
    )
    assert compiled_class(source).getMethods()[0].getName() == "of"
    assert not list(prepared_folder(find_java()).glob("Sum-*")), "it is none of this package"
    write_compiled(tmp_path)
    (jar,) = tmp_path.glob("Sum-*.jar")
    with ZipFile(jar) as classes:
        assert classes.namelist() == ["tautochrone/Sum.class"]


@pytest.mark.spark
def test_what_a_session_compiled_is_kept_for_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was prepared by another release."""
    source = Path(driver_calls.__file__).with_name("DriverCalls.java")
    monkeypatch.setattr(driver_calls, "_classes", {})
    monkeypatch.setattr(driver_calls, "_compilers", {})
    monkeypatch.setattr(SparkContext, "getConf", lambda _: SparkConf(False).set(COMPILED, str(tmp_path)))
    loaders = []
    for _ in range(2):
        driver_calls._classes.clear()
        loaders.append(compiled_class(source).getClassLoader().getClass().getSimpleName())
    (jar,) = tmp_path.iterdir()
    assert jar.name.startswith("DriverCalls-")
    assert loaders[0] != "URLClassLoader"
    assert loaders[1] == "URLClassLoader"
    assert spark is not None


JARS = [artifact.file for artifact in CORE + KAFKA]


@pytest.mark.parametrize(
    ("master", "conf", "variable", "on_class_path"),
    [
        ("local[*]", {}, None, True),
        ("local", {"spark.driver.extraClassPath": "/a.jar"}, None, True),
        ("local[*]", {"spark.jars": "/a.jar,/b.jar"}, None, False),
        ("local[*]", {"spark.jars.packages": "org.postgresql:postgresql:42.7.4"}, None, False),
        ("local[*]", {}, "--packages org.postgresql:postgresql:42.7.4 pyspark-shell", False),
        ("local-cluster[1, 1, 512]", {}, None, False),
        ("spark://host:7077", {}, None, False),
        ("local[*]", {"spark.master": "yarn"}, None, False),
    ],
)
def test_iceberg_sees_the_jars_of_a_project(
    master: str,
    conf: dict[str, str],
    variable: str | None,
    on_class_path: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(java, "prepared_folder", lambda _: tmp_path)
    for is_on_it in (True, False):
        archive_file("java", on_class_path=is_on_it).touch()
    if variable is not None:
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", variable)
    settings = settings_to_start(SparkSettings(master=master, conf=conf), "lake", {})
    by_java = [Path(path).name for path in settings.get("spark.driver.extraClassPath", "").split(":") if path]
    by_spark = [Path(path).name for path in settings.get("spark.jars", "").split(",") if path]
    given = [Path(path).name for path in conf.get("spark.driver.extraClassPath", "").split(":") if path]
    assert by_java == ([*JARS, *given] if on_class_path else given)
    given = [Path(path).name for path in conf.get("spark.jars", "").split(",") if path]
    assert by_spark == ([] if on_class_path else JARS) + given
    archive = archive_file(find_java(), on_class_path=on_class_path)
    assert f"-XX:SharedArchiveFile={archive} " in settings["spark.driver.extraJavaOptions"]


def test_no_archive_is_used_before_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    command = find_java()
    assert archive_options(command) == []
    archive_file(command).parent.mkdir(parents=True)
    archive_file(command).touch()
    assert archive_options(command)[0] == f"-XX:SharedArchiveFile={archive_file(command)}"


@pytest.mark.parametrize(
    ("output", "status", "error", "message"),
    [
        ('openjdk version "17.0.1"', 0, None, ""),
        ('java version "1.8.0_292"', 0, "JAVA_TOO_OLD", "is Java 8"),
        (
            "Picked up JAVA_TOOL_OPTIONS: -XX:Nonsense\nError: Unrecognized VM option",
            1,
            "JAVA_FAILED",
            "fails: E",
        ),
        ('openjdk version "17.0.1"', 1, "JAVA_FAILED", "fails: openjdk"),
        ("", 0, "JAVA_FAILED", "fails"),
        (None, 0, "JAVA_MISSING", "JAVA_HOME is"),
    ],
)
def test_what_is_wrong_with_java(
    output: str | None,
    status: int,
    error: str | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if output is not None:
        command = tmp_path / "bin" / "java"
        command.parent.mkdir()
        (tmp_path / "output").write_text(output)
        command.write_text(f"#!/bin/sh\ncat {tmp_path}/output >&2\nexit {status}\n")
        command.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if error is None:
        assert find_java() == str(command)
        return
    with pytest.raises(EnvironmentProblemError, match=message) as raised:
        find_java()
    assert raised.value.error_class == error


def test_java_is_not_started_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "bin" / "java"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\nexit 1\n")
    command.chmod(0o755)
    release = tmp_path / "release"
    release.write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for name in JAVA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert find_java() == str(command)
    # Java itself says whether it accepts them.
    for name in JAVA_VARIABLES:
        monkeypatch.setenv(name, "-XX:Nonsense")
        with pytest.raises(EnvironmentProblemError, match="JAVA_FAILED"):
            find_java()
        monkeypatch.delenv(name)
    release.write_text('JAVA_VERSION="1.8.0_292"\n')
    java.java_version.cache_clear()
    with pytest.raises(EnvironmentProblemError, match="JAVA_FAILED"):
        find_java()


def test_java_starts_with_one_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in JAVA_VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def options(short_lived: bool, given: str) -> str:
        conf = {"spark.driver.extraJavaOptions": given}
        settings = settings_to_start(SparkSettings(short_lived=short_lived, conf=conf), "lake", {})
        return settings["spark.driver.extraJavaOptions"]

    assert "-XX:+UseSerialGC" in options(True, "-Da=b")
    assert "-XX:+UseSerialGC" not in options(False, "-Da=b")
    assert options(True, "-XX:+UseG1GC").count("GC") == 1
    for name in JAVA_VARIABLES:
        monkeypatch.setenv(name, "-XX:+UseParallelGC")
        assert "GC" not in options(True, "-Da=b")
        monkeypatch.delenv(name)


def test_the_compiler_of_generated_code_is_not_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No class of a signed jar is in an archive."""
    monkeypatch.setattr(java, "prepared_folder", lambda _: tmp_path)
    assert java.class_path("java", [Path("/a.jar")]) == ["/a.jar"]
    jars = java._compiler_jars()
    assert len(jars) == 2
    for jar in jars:
        with ZipFile(jar) as signed, ZipFile(java._copy_without_signature(jar, tmp_path)) as copy:
            left_out = signed.namelist().copy()
            for name in copy.namelist():
                assert copy.read(name) == signed.read(name)
                left_out.remove(name)
        assert {Path(name).suffix for name in left_out} == {".SF", ".DSA"}
    assert java.class_path("java", [Path("/a.jar")]) == [
        "/a.jar",
        *(str(tmp_path / jar.name) for jar in jars),
    ]


def test_another_java_has_another_archive(tmp_path: Path) -> None:
    other_java = tmp_path / "java"
    other_java.touch()
    assert archive_file(str(other_java)) != archive_file(find_java())


def test_reason_when_the_folder_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "share").write_text("no folder")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    reason = make_archives(find_java())
    assert reason is not None
    assert "share" in reason


def test_failed_warm_up_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(java, "_WARM_UP", "tautochrone.spark.nothing")
    reason = make_archives(find_java())
    assert reason is not None
    assert "tautochrone.spark.nothing" in reason
    assert {file.suffix for file in archive_file(find_java()).parent.iterdir()} == {".jar"}
