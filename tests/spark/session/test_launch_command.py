"""The JVM starts as Spark's script starts it, without the script, or by it where more may count."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyspark
import pytest

from tautochrone.spark.session import launch_command
from tautochrone.spark.session.java import find_java
from tautochrone.spark.session.launch_command import LaunchCommand, prepared_command, write_command

CONF = {
    "spark.master": "local[2]",
    "spark.app.name": 'it\'s a "name"',
    "spark.driver.memory": "3g",
    "spark.driver.extraClassPath": "/a b/c.jar:/d.jar",
    "spark.driver.extraJavaOptions": "-Da=b -XX:+UseSerialGC  -Dc=",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as monkeypatch:
        # What a user has when the command is prepared is not part of it.
        monkeypatch.setenv("PYTHONHASHSEED", "0")
        monkeypatch.setenv("SPARK_DRIVER_MEMORY", "7g")
        write_command(folder, find_java())
    return folder


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(launch_command.os.environ):
        if name.startswith(launch_command._READ_BY_SCRIPT):
            monkeypatch.delenv(name)


def prepared(folder: Path, conf: dict[str, str]) -> LaunchCommand | None:
    return prepared_command(folder, {"spark.master": "local", **conf})


@pytest.mark.parametrize("without", ["", "spark.driver.extraClassPath"])
def test_spark_submit_runs_the_same(folder: Path, without: str, tmp_path: Path) -> None:
    conf = {key: text for key, text in CONF.items() if key != without}
    command = prepared(folder, conf)
    assert command is not None
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(launch_command._WRITES_CALL.format(java=find_java(), folder=tmp_path))
    java.chmod(0o755)
    (tmp_path / "empty.conf").touch()
    settings = [part for key, text in conf.items() for part in ("--conf", f"{key}={text}")]
    script = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    end = ["--properties-file", str(tmp_path / "empty.conf"), "pyspark-shell"]
    environment = {"PATH": "/usr/bin:/bin", "JAVA_HOME": str(tmp_path), "PYTHONHASHSEED": "5"}
    subprocess.run([script, *settings, *end], env=environment, check=True)
    *expected, empty = (tmp_path / "arguments").read_text().split("\0")
    assert empty == ""
    java_, *arguments = command.filled(conf, str(tmp_path / "empty.conf"))
    assert Path(java_) == Path(find_java()).resolve()
    main = expected.index("org.apache.spark.deploy.SparkSubmit")
    assert arguments[: main + 1] == expected[: main + 1]
    # The launcher sorts the settings.
    assert sorted(arguments[main:]) == sorted(expected[main:])
    variables = (tmp_path / "variables").read_text()
    assert all(f"{name}={text}\0" in variables for name, text in command.variables.items())
    assert command.variables["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.master": "yarn"},
        {"spark.driver.extraJavaOptions": '-Da="b c"'},
        {"spark.driver.extraJavaOptions": "-Xmx9g"},
        {"spark.driver.defaultJavaOptions": "-Da=b"},
        {"spark.driver.extraLibraryPath": "/lib"},
        {"spark.submit.deployMode": "cluster"},
    ],
    ids=str,
)
def test_settings_that_the_script_reads(folder: Path, conf: dict[str, str]) -> None:
    assert prepared(folder, {}) is not None
    assert prepared(folder, conf) is None


@pytest.mark.parametrize(
    "name",
    [
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "SPARK_SUBMIT_OPTS",
        "HADOOP_CONF_DIR",
        "PYSPARK_SUBMIT_ARGS",
        "PYSPARK_GATEWAY_PORT",
    ],
)
def test_variables_that_the_script_reads(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert prepared(folder, {}) is not None
    monkeypatch.setenv(name, "x")
    assert prepared(folder, {}) is None


def test_files_that_the_script_reads(folder: Path, tmp_path: Path) -> None:
    assert prepared(tmp_path, {}) is None
    content = json.loads((folder / launch_command._FILE).read_text())
    file = tmp_path / launch_command._FILE
    file.write_text(json.dumps(content | {"more": 1}))
    assert prepared(tmp_path, {}) is None
    for variables in ({}, [], None):
        file.write_text(json.dumps(content | {"variables": variables}))
        assert prepared(tmp_path, {}) is None
    content["variables"]["SPARK_CONF_DIR"] = str(tmp_path)
    file.write_text(json.dumps(content))
    assert prepared(tmp_path, {}) is None
