"""Settings: which layer wins, what is refused and how, the origin of values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tautochrone.errors import SettingsError
from tautochrone.project.setting_declarations import SETTINGS
from tautochrone.project.setting_layers import Given
from tautochrone.project.settings import Settings, effective_values, json_schema, load_settings
from tautochrone.project.spec import PipelineSpec, load_spec


def spec_in(folder: Path, toml: str = "", extra: str = "") -> PipelineSpec:
    spec = folder / "spark-pipeline.yml"
    spec.write_text(f"name: p\nstorage: s\n{extra}libraries:\n  - glob:\n      include: d/**\n")
    (folder / "tautochrone.toml").write_text(toml)
    return load_spec(spec)


def loaded(folder: Path, toml: str = "", flags: Sequence[Given] = (), **environment: str) -> Settings:
    return load_settings(spec_in(folder, toml), flags, environment)


def shown(folder: Path, toml: str = "", flags: Sequence[Given] = (), **environment: str) -> dict[str, Any]:
    values = effective_values(spec_in(folder, toml), flags, environment)
    return {value.key: (value.text, value.origin) for value in values.values()}


def refused(folder: Path, toml: str = "", flags: Sequence[Given] = (), **environment: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        loaded(folder, toml, flags, **environment)
    return caught.value


FILE = '[run]\ninterval = "1s"\n'
VARIABLE = {"TAUTOCHRONE_INTERVAL": "2s"}
SET = Given("--set run.interval", "3s", key="run.interval")
FLAG = Given("--interval", "4s", path=("run", "interval"))


@pytest.mark.parametrize(
    ("toml", "environment", "flags", "milliseconds", "origin"),
    [
        ("", {}, [], 5_000, "default"),
        (FILE, {}, [], 1_000, "tautochrone.toml:2"),
        (FILE, VARIABLE, [], 2_000, "TAUTOCHRONE_INTERVAL"),
        (FILE, VARIABLE, [SET], 3_000, "--set run.interval"),
        (FILE, VARIABLE, [SET, FLAG], 4_000, "--interval"),
        (FILE, {"TAUTOCHRONE_INTERVAL": ""}, [], 1_000, "tautochrone.toml:2"),
    ],
)
def test_the_order_of_layers(
    tmp_path: Path,
    toml: str,
    environment: dict[str, str],
    flags: list[Given],
    milliseconds: int,
    origin: str,
) -> None:
    assert loaded(tmp_path, toml, flags, **environment).interval_ms == milliseconds
    assert shown(tmp_path, toml, flags, **environment)["run.interval"][1] == origin


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.variable], ids=lambda s: s.key)
def test_every_variable_sets_its_setting(tmp_path: Path, setting: Any) -> None:
    texts = {
        "Duration": "7s",
        "DurationOrNone": "48h",
        "WholeNumber": "7",
        "Size": "7GB",
        "Boolean": "false",
        "Choice": "full",
        "Text": "seven",
        "NameList": "seven,eight",
    }
    text = {"lake.durability": "power_loss", "lake.other_formats": "fail", "lake.other_catalogs": "fail"}.get(
        setting.key, texts[type(setting.kind).__name__]
    )
    # A token is masked because of its name; several names are a list.
    seen = {
        "meta.token": "***",
        "lake.mapped_catalogs": '["seven", "eight"]',
        "lake.publish": '["seven", "eight"]',
    }.get(setting.key, text)
    assert shown(tmp_path, **{setting.variable: text})[setting.key] == (seen, setting.variable)
    flag = Given(f"--set {setting.key}", text, key=setting.key)
    assert shown(tmp_path, flags=[flag])[setting.key] == (seen, flag.flag)


@pytest.mark.parametrize(("text", "milliseconds"), [("none", None), ("None", None), ("2h", 7_200_000)])
def test_a_bound_that_may_be_none(tmp_path: Path, text: str, milliseconds: int | None) -> None:
    assert loaded(tmp_path, TAUTOCHRONE_ALIGN=text).align_ms == milliseconds


def test_defaults_that_the_project_decides(tmp_path: Path) -> None:
    settings = loaded(tmp_path)
    assert settings.job == "p"
    assert settings.meta_url == f"sqlite:///{tmp_path}/s/meta.db"
    assert settings.catalog.name == "lake"
    assert shown(tmp_path)["lake.options.uri"] == (f"jdbc:sqlite:{tmp_path}/s/catalog.db", "default")


def test_properties(tmp_path: Path) -> None:
    toml = """
        [spark.conf]
        "spark.sql.ansi.enabled" = false
        "spark.sql.shuffle.partitions" = 8

        [lake]
        catalog = "prod"
        options = { type = "rest", "io-impl" = "x" }
    """
    settings = loaded(tmp_path, toml, [Given("--conf", "9", path=("spark", "conf", "spark.x"))])
    assert settings.confs == {
        "spark.sql.ansi.enabled": "false", "spark.sql.shuffle.partitions": "8", "spark.x": "9",
    }  # fmt: skip
    assert (settings.catalog.name, settings.catalog.options) == ("prod", {"type": "rest", "io-impl": "x"})
    assert shown(tmp_path, toml)["spark.conf.spark.sql.shuffle.partitions"] == ("8", "tautochrone.toml:4")


def test_catalog_from_spark_settings(tmp_path: Path) -> None:
    conf = {
        "spark.sql.catalog.prod": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.prod.type": "rest",
    }
    flags = [Given("--conf", value, path=("spark", "conf", key)) for key, value in conf.items()]
    spec = spec_in(tmp_path, extra="catalog: prod\n")
    catalog = load_settings(spec, flags, {}).catalog
    assert (catalog.name, catalog.options) == ("prod", {"type": "rest"})
    origins = {value.key: value.origin for value in effective_values(spec, flags, {}).values()}
    assert (origins["lake.catalog"], origins["lake.options.type"]) == ("spark-pipeline.yml:3", "--conf")


@pytest.mark.parametrize(
    ("toml", "words", "hint", "line"),
    [
        ('[rum]\ninterval = "5s"', "[rum] is no section", "did you mean run?", 1),
        ('interval = "5s"', "[interval] is no section", "interval stands below [run]", 1),
        ('\n[run]\nintervall = "5s"', "[run] has no setting intervall", "did you mean interval?", 3),
        ("[run]\ninterval = {}", "run.interval cannot be a table", "it must be a duration", 2),
        ("[flows.x]\nmax_file_per_trigger = 3", "[flows.x] has no", "did you mean max_files_per_trigger?", 2),
        ("[flows]\nx = 3", "[flows] has no setting x", "settings are max_offsets", 2),
        ("[flows.db.x]\nmax_files_per_trigger = 3", "[flows.db] has no", "stands between quotes", 1),
        ("[spark.conf]\na.b.c = 1", "spark.conf.a cannot be a table", "stands between quotes", 2),
        ('[lake.options]\nuri = { environment = "X" }', "options.uri cannot be a table", 'env = "NAME"', 2),
        ("run = 3", "run is a section", "write [run]", 1),
        ("[run]\nparallelism = 0", "run.parallelism cannot be '0'", "a whole number from 1 on", 2),
        ("[run]\nparallelism = true", "run.parallelism cannot be 'True'", "a whole number from 1 on", 2),
        ('[run]\nparallelism = "4"', "run.parallelism cannot be '4'", "a whole number from 1 on", 2),
        ("[external_tables]\ntag = 1", "external_tables.tag cannot be '1'", "true or false", 2),
        ('[transactions]\nkeep_ids = "23h"', "keep_ids cannot be '23h'", "a duration of at least 24h", 2),
        ('[run]\ninterval = "soon"', "run.interval cannot be 'soon'", "500ms, 5s, 2m", 2),
        ('[flows.x]\nmax_bytes_per_trigger = "0MB"', "cannot be '0MB'", "a size from one byte on", 2),
        ("[spark.conf]\nx = [1]", "spark.conf.x cannot be '[1]'", "or by reference", 2),
        ('[run]\njob = { env = "X" }', "run.job cannot be", "it must be text", 2),
        ("[run\n", "is not TOML", None, 1),
    ],
)  # fmt: skip
def test_invalid_files_are_refused(
    tmp_path: Path, toml: str, words: str, hint: str | None, line: int
) -> None:
    error = refused(tmp_path, toml)
    assert words in error.message
    assert hint is None or hint in str(error.hint)
    assert error.location == f"tautochrone.toml:{line}"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("INTERVALL", "INTERVAL"),
        ("RUN_INTERVAL", "INTERVAL"),
        ("SPARK_MASTER", "MASTER"),
        ("LAKE_CATALOG", "CATALOG"),
        ("POLICY", "REFRESH_POLICY"),
        ("METAURL", "META_URL"),
    ],
)
def test_variables_that_are_nearly_settings(tmp_path: Path, name: str, meant: str) -> None:
    error = refused(tmp_path, **{f"TAUTOCHRONE_{name}": "x"})
    assert (error.error_class, error.location) == ("UNKNOWN_SETTING", f"TAUTOCHRONE_{name}")
    assert error.hint == f"did you mean TAUTOCHRONE_{meant}?"


def test_invalid_variables_and_flags_are_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, TAUTOCHRONE_PARALLELISM="many")
    assert (error.error_class, error.location) == ("INVALID_SETTING", "TAUTOCHRONE_PARALLELISM")
    error = refused(tmp_path, flags=[Given("--set", "1", key="run.parallel")])
    assert (error.error_class, error.hint) == ("UNKNOWN_SETTING", "did you mean parallelism?")
    error = refused(tmp_path, flags=[Given("--set", "1", key="not a key")])
    assert error.error_class == "UNKNOWN_SETTING"


def test_other_variables_are_ignored(tmp_path: Path) -> None:
    """Kubernetes sets these in every container when a service is called tautochrone."""
    theirs = {"TAUTOCHRONE_SERVICE_HOST": "10.0.0.1", "TAUTOCHRONE_PORT": "tcp://10.0.0.1:80",
              "TAUTOCHRONE_PORT_80_TCP_PROTO": "tcp", "TAUTOCHRONE_SERVICE_PORT": "80"}  # fmt: skip
    assert loaded(tmp_path, **theirs).interval_ms == 5_000


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("10 KB", 10_240), ("64MB", 64 << 20), ("1g", 1 << 30), ("2GiB", 2 << 30)]
)
def test_sizes(tmp_path: Path, text: str, size: int) -> None:
    settings = loaded(tmp_path, f'[flows."db.x"]\nmax_bytes_per_trigger = "{text}"\n')
    assert settings.limits["db.x"].options == {"maxBytesPerTrigger": size}


def test_one_way_to_limit_files(tmp_path: Path) -> None:
    error = refused(tmp_path, "[flows.x]\nmax_files_per_trigger = 1\nmax_bytes_per_trigger = 1\n")
    assert (error.error_class, error.location) == ("INVALID_SETTING", "tautochrone.toml:2")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    (tmp_path / "tautochrone.toml").write_bytes(b'[run]\njob = "\xff"\n')
    with pytest.raises(SettingsError, match="INVALID_SETTINGS_FILE"):
        load_settings(spec, environment={})


ACCEPTED: tuple[dict[str, Any], ...] = (
    {},
    {"run": {"interval": "5s", "parallelism": 2, "job": "j"}},
    {"run": {"interval": 0.5}},
    {"refresh": {"policy": "incremental_strict"}},
    {"meta": {"url": {"env": "HOME_URL"}}},
    {"lake": {"catalog": "x", "options": {"uri": "u", "token": {"file": "secret"}}}},
    {"spark": {"conf": {"a.b": True, "c": 3}}},
    {"flows": {"db.x": {"max_files_per_trigger": 1, "max_offsets_per_trigger": 7}}},
    {"flows": {"db.x": {"max_bytes_per_trigger": "1 MB"}}},
    {"external_tables": {"tag": False, "tags_kept": 3}},
)
REFUSED: tuple[dict[str, Any], ...] = (
    {"rum": {}},
    {"run": {"x": 1}},
    {"run": {"interval": "soon"}},
    {"run": {"interval": True}},
    {"run": {"parallelism": 0}},
    {"run": {"parallelism": "4"}},
    {"run": {"job": ""}},
    {"run": {"job": {"env": "X"}}},
    {"refresh": {"policy": "fast"}},
    {"meta": {"url": {"environment": "X"}}},
    {"lake": {"options": {"uri": {"env": "X", "file": "y"}}}},
    {"lake": {"options": {"uri": {"environment": "X"}}}},
    {"spark": {"conf": {"a": {"b": 1}}}},
    {"flows": {"x": {"max_files_per_trigger": 0}}},
    {"flows": {"x": {"max_rows": 1}}},
    {"flows": {"x": {"max_bytes_per_trigger": "lots"}}},
    {"external_tables": {"tag": 1}},
    {"outsiders": {"tag": 1}},
)


@pytest.mark.parametrize("sample", [*ACCEPTED, *REFUSED], ids=json.dumps)
def test_schema_agrees_with_the_loader(tmp_path: Path, sample: dict[str, Any]) -> None:
    (tmp_path / "secret").write_text("topsecret\n")
    toml = "\n".join(f"{key} = {_inline(value)}" for key, value in sample.items())
    schema = json_schema()
    assert _valid(sample, schema, schema["$defs"]) == (sample in ACCEPTED)
    if sample in ACCEPTED:
        loaded(tmp_path, toml, HOME_URL="sqlite:///x")
    else:
        refused(tmp_path, toml, X="some value")


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{key}" = {_inline(item)}' for key, item in value.items()) + " }"
    return json.dumps(value)


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,),
}  # fmt: skip


def _valid(value: Any, schema: dict[str, Any], named: dict[str, Any]) -> bool:
    """A validator for the parts of JSON Schema that the published schema uses."""
    schema = named[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if "anyOf" in schema:
        return any(_valid(value, part, named) for part in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    types = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(
        isinstance(value, _TYPES[t]) and (t == "boolean" or not isinstance(value, bool)) for t in types
    ):
        return False
    if isinstance(value, dict):
        rest = schema["additionalProperties"]
        fits = schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", 99)
        return fits and all(
            _valid(item, schema["properties"][key], named)
            if key in schema["properties"]
            else bool(rest) and _valid(item, rest, named)
            for key, item in value.items()
        )
    if isinstance(value, str):
        return len(value) >= schema.get("minLength", 0) and bool(re.search(schema.get("pattern", ""), value))
    return isinstance(value, bool) or bool(value >= schema.get("minimum", value))
