"""The spec file: Spark's error classes, and the locations of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tautochrone.errors import SettingsError, SpecError
from tautochrone.project.settings import load_settings
from tautochrone.project.spec import find_spec, init_project, load_spec

MINIMAL = "name: p\nstorage: file:///data/p\n"


def write(folder: Path, text: str, name: str = "spark-pipeline.yml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load_spec(write(folder, text))
    return caught.value


def test_reads_all_fields(tmp_path: Path) -> None:
    spec = load_spec(
        write(
            tmp_path,
            MINIMAL + "catalog: c\nschema: d\nconfiguration:\n  a.b: '1'\n"
            "libraries:\n  - glob: {include: a/b.sql}\n  - glob: {include: ../shared/**}\n",
            "other.yaml",
        )
    )
    assert (spec.name, spec.catalog, spec.database) == ("p", "c", "d")
    assert dict(spec.configuration) == {"a.b": "1"}
    assert spec.libraries == ("a/b.sql", "../shared/**/*")
    assert spec.root == tmp_path


@pytest.mark.parametrize(
    ("storage", "path"),
    [
        ("file:///a/b%20c", "/a/b c"),
        ("file:/a/b", "/a/b"),
        ("/a/b", "/a/b"),
        ("data", "<root>/data"),
        ("./data", "<root>/data"),
    ],
)
def test_storage_as_local_path(tmp_path: Path, storage: str, path: str) -> None:
    spec = load_spec(write(tmp_path, f"name: p\nstorage: {storage}\n"))
    assert spec.storage == storage
    assert spec.storage_path == path.replace("<root>", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "error_class", "line"),
    [
        (MINIMAL + "clusters: []\n", "PIPELINE_SPEC_UNEXPECTED_FIELD", 3),
        ("name: p\n", "PIPELINE_SPEC_MISSING_REQUIRED_FIELD", None),
        ("", "PIPELINE_SPEC_MISSING_REQUIRED_FIELD", None),
        (MINIMAL + "configuration: [1]\n", "PIPELINE_SPEC_FIELD_NOT_DICT", 3),
        (MINIMAL + "configuration: {1: a}\n", "PIPELINE_SPEC_DICT_KEY_NOT_STRING", 3),
        (MINIMAL + "configuration:\n  a: 1\n", "PIPELINE_SPEC_DICT_VALUE_NOT_STRING", 3),
        (MINIMAL + "libraries:\n- glob: {include: 'a/**/*.py'}\n", "PIPELINE_SPEC_INVALID_GLOB_PATTERN", 3),
        (MINIMAL + "libraries:\n- include: a\n", "PIPELINE_SPEC_INVALID_FIELD", 3),
        (MINIMAL + "database: [x\n", "PIPELINE_SPEC_INVALID_YAML", 4),
        ("name: p\nstorage: a?b/x\n", "PIPELINE_STORAGE_ROOT_NOT_SUPPORTED", 2),
        ("- a\n", "PIPELINE_SPEC_INVALID_YAML", None),
    ],
)
def test_refuses_with_class_and_line(tmp_path: Path, text: str, error_class: str, line: int | None) -> None:
    error = refusal(tmp_path, text)
    assert error.error_class == error_class
    path = tmp_path / "spark-pipeline.yml"
    assert error.location == (f"{path}:{line}" if line else str(path))


def test_storage_on_another_file_system(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, "name: p\nstorage: s3a://bucket/x/\n"))
    assert spec.storage_root == "s3a://bucket/x"
    assert spec.storage_path == str(tmp_path.resolve() / ".tautochrone")
    local = load_spec(write(tmp_path, MINIMAL))
    assert local.storage_root == local.storage_path


def test_defaults_need_a_local_storage(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, "name: p\nstorage: s3a://bucket/x\n"))
    with pytest.raises(SettingsError) as refused:
        load_settings(spec, environment={})
    assert (refused.value.error_class, refused.value.location) == (
        "STORAGE_NOT_LOCAL",
        "spark-pipeline.yml:2",
    )
    assert "the store (meta.url) and the lake's catalog (lake.options)" in str(refused.value)
    (tmp_path / "tautochrone.toml").write_text(
        '[meta]\nurl = "postgresql://host/db"\n'
        '[lake.options]\ntype = "rest"\nuri = "http://host"\nwarehouse = "s3a://bucket/lake"\n'
        '[spark.conf]\n"spark.hadoop.fs.s3a.endpoint" = "host:9000"\n'
        '"spark.hadoop.fs.s3a.connection.ssl.enabled" = false\n'
    )
    settings = load_settings(spec, environment={})
    assert settings.storage_root == "s3a://bucket/x"
    assert settings.catalog.file_options == {"s3.endpoint": "http://host:9000"}


def test_messages_are_sparks(tmp_path: Path) -> None:
    assert refusal(tmp_path, MINIMAL + "x: 1\n").message == "Pipeline spec field `x` is unexpected."


def test_the_nearest_field_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, MINIMAL + "librariez: []\n").hint == "did you mean libraries?"


def test_finds_the_nearest_spec_upwards(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    outer = write(tmp_path, MINIMAL)
    assert find_spec(below) == outer
    inner = write(below.parent, MINIMAL, "spark-pipeline.yaml")
    assert find_spec(below) == inner
    write(below.parent, MINIMAL)
    with pytest.raises(SpecError, match="MULTIPLE_PIPELINE_SPEC_FILES_FOUND"):
        find_spec(below)


def test_no_spec(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="PIPELINE_SPEC_FILE_NOT_FOUND"):
        find_spec(tmp_path)
    with pytest.raises(SpecError, match="PIPELINE_SPEC_FILE_DOES_NOT_EXIST"):
        load_spec(tmp_path / "none.yml")


def test_init_writes_the_spec_and_folders_that_spark_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.pipelines.init_cli import init

    ours = init_project(tmp_path / "ours", "demo")
    (tmp_path / "theirs").mkdir()
    monkeypatch.chdir(tmp_path / "theirs")
    init("demo")
    theirs = tmp_path / "theirs" / "demo"

    def spec(root: Path) -> object:
        text = (root / "spark-pipeline.yml").read_text()
        # Our storage is relative: a copy of the project must not use the original's storage.
        return yaml.safe_load(text.replace(f"file://{root}/", ""))

    assert spec(ours) == spec(theirs)
    assert {p.name for p in theirs.iterdir()} <= {p.name for p in ours.iterdir()}
    assert load_spec(ours / "spark-pipeline.yml").name == "demo"
    with pytest.raises(SpecError, match="PROJECT_ALREADY_EXISTS"):
        init_project(tmp_path / "ours", "demo")


def test_a_sample_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="PROJECT_NOT_WRITTEN") as caught:
        init_project(tmp_path / "file", "demo")
    assert caught.value.hint
