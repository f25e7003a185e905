"""Where Spark settings and the lake catalog come from: spec, spark-defaults.conf, tautochrone.toml, flags."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tautochrone.errors import SettingsError
from tautochrone.project.session_settings import needed_at_start
from tautochrone.project.setting_layers import Given, read_spark_defaults
from tautochrone.project.settings import Settings, confs_without_project, effective_values, load_settings
from tautochrone.project.spec import PipelineSpec, load_spec

ICEBERG = "org.apache.iceberg.spark.SparkCatalog"
SESSION = "org.apache.iceberg.spark.SparkSessionCatalog"
DELTA = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def project(
    folder: Path,
    configuration: Mapping[str, str] | None = None,
    *,
    catalog: str | None = None,
    toml: str = "",
) -> PipelineSpec:
    lines = ["name: p", "storage: s", "libraries: []"]
    lines += [f"catalog: {catalog}"] * (catalog is not None)
    lines += ["configuration:"] * bool(configuration)
    lines += [f'  {name}: "{text}"' for name, text in (configuration or {}).items()]
    (folder / "spark-pipeline.yml").write_text("\n".join(lines) + "\n")
    (folder / "tautochrone.toml").write_text(toml)
    return load_spec(folder / "spark-pipeline.yml")


def defaults(folder: Path, text: str) -> dict[str, str]:
    """Variables under which `spark-defaults.conf` has this text."""
    conf_folder = folder / "conf"
    conf_folder.mkdir(exist_ok=True)
    (conf_folder / "spark-defaults.conf").write_text(text)
    return {"SPARK_CONF_DIR": str(conf_folder)}


def conf(name: str, text: str) -> Given:
    return Given("--conf", text, path=("spark", "conf", name))


def ignored(settings: Settings) -> dict[str, str]:
    return {setting.name: str(setting.reason.code) for setting in settings.ignored}


def test_catalog_of_the_specs_configuration(tmp_path: Path) -> None:
    spec = project(
        tmp_path,
        {
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.local": ICEBERG,
            "spark.sql.catalog.local.type": "hadoop",
            "spark.sql.catalog.local.warehouse": "warehouse",
            "spark.sql.catalog.local.cache-enabled": "true",
            "spark.sql.shuffle.partitions": "2",
            "my.own": "1",
        },
        catalog="local",
    )
    settings = load_settings(spec, (), {})
    assert settings.catalog.name == "local"
    assert settings.catalog.options == {"type": "hadoop", "warehouse": f"{tmp_path}/warehouse"}
    assert settings.catalog.kind == "hadoop"
    # Spark gets what it needs before it starts; definitions get the rest.
    assert list(settings.confs) == ["spark.sql.extensions"]
    assert settings.configuration == {"spark.sql.shuffle.partitions": "2", "my.own": "1"}
    assert ignored(settings) == {"spark.sql.catalog.local.cache-enabled": "CATALOG_CACHE_NOT_USED"}
    origins = {value.key: value.origin for value in effective_values(spec, (), {}).values()}
    assert origins["lake.catalog"] == "spark-pipeline.yml:4"
    assert origins["lake.options.type"] == "spark-pipeline.yml:8"


def test_spec_names_the_lake_without_further_settings(tmp_path: Path) -> None:
    settings = load_settings(project(tmp_path, catalog="shop"), (), {})
    assert settings.catalog.name == "shop"
    assert settings.catalog.options["uri"] == f"jdbc:sqlite:{tmp_path}/s/catalog.db"


def test_setting_names_another_catalog_than_the_spec(tmp_path: Path) -> None:
    spec = project(tmp_path, catalog="shop", toml='[lake]\ncatalog = "prod"\n')
    assert load_settings(spec, (), {}).catalog.name == "prod"


def test_precedence_of_spark_settings(tmp_path: Path) -> None:
    names = [f"spark.x{number}" for number in range(4)]
    environment = defaults(tmp_path, "".join(f"{name} defaults\n" for name in names))
    toml = "[spark.conf]\n" + "".join(f'"{name}" = "toml"\n' for name in names[2:])
    spec = project(tmp_path, dict.fromkeys(names[1:], "spec"), toml=toml)
    settings = load_settings(spec, [conf(names[3], "flag")], environment)
    assert [settings.confs[name] for name in names] == ["defaults", "spec", "toml", "flag"]
    # What the spec names is part of its definitions, whoever gives the value.
    assert list(settings.configuration.values()) == ["spec", "toml", "flag"]


def test_flag_wins_over_the_spec_while_definitions_are_evaluated(tmp_path: Path) -> None:
    name = "spark.sql.shuffle.partitions"
    spec = project(tmp_path, {name: "2", "my.own": "1"})
    environment = defaults(tmp_path, f"{name} 200\n")
    assert load_settings(spec, (), environment).configuration == {name: "2", "my.own": "1"}
    settings = load_settings(spec, [conf(name, "7")], environment)
    assert settings.configuration == {name: "7", "my.own": "1"}
    assert settings.confs == {name: "7"}


def test_settings_without_a_project(tmp_path: Path) -> None:
    environment = defaults(
        tmp_path,
        f"spark.sql.defaultCatalog prod\nspark.sql.catalog.prod {DELTA}\nspark.remote sc://nowhere\n"
        "spark.sql.extensions io.delta.sql.DeltaSparkSessionExtension\nspark.x defaults\nspark.y defaults\n",
    )
    confs = confs_without_project({"spark.y": "flag"}, environment)
    assert confs == {"spark.sql.extensions": "", "spark.x": "defaults", "spark.y": "flag"}


def test_default_catalog_is_the_lake(tmp_path: Path) -> None:
    environment = defaults(
        tmp_path,
        f"spark.sql.defaultCatalog prod\nspark.sql.catalog.prod {ICEBERG}\n"
        "spark.sql.catalog.prod.type=rest\nspark.sql.catalog.prod.uri: https://catalog.example.org\n",
    )
    settings = load_settings(project(tmp_path), (), environment)
    assert (settings.catalog.name, settings.catalog.kind) == ("prod", "rest")
    assert settings.catalog.options["uri"] == "https://catalog.example.org"
    assert settings.confs == {}


@pytest.mark.parametrize("catalog", [None, "spark_catalog"])
def test_iceberg_session_catalog_is_the_lake(tmp_path: Path, catalog: str | None) -> None:
    spec = project(
        tmp_path,
        {
            "spark.sql.catalog.spark_catalog": SESSION,
            "spark.sql.catalog.spark_catalog.type": "hadoop",
            "spark.sql.catalog.spark_catalog.warehouse": "/data/warehouse",
        },
        catalog=catalog,
    )
    settings = load_settings(spec, (), {})
    assert settings.catalog.name == "lake"
    assert settings.catalog.options == {"type": "hadoop", "warehouse": "/data/warehouse"}
    assert not settings.ignored


def test_settings_of_other_engines_are_ignored(tmp_path: Path) -> None:
    spec = project(
        tmp_path,
        {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension, org.example.Own",
            "spark.sql.catalog.spark_catalog": DELTA,
            "spark.jars.packages": "io.delta:delta-spark_2.13:4.0.0,org.apache.iceberg:"
            "iceberg-spark-runtime-4.0_2.13:1.10.0",
            "spark.sql.warehouse.dir": "/data",
            "spark.api.mode": "connect",
        },
    )
    settings = load_settings(spec, [conf("spark.sql.catalogImplementation", "hive")], {})
    assert settings.catalog.kind == "jdbc"
    assert settings.confs == {
        "spark.sql.extensions": "org.example.Own",
        "spark.jars.packages": "io.delta:delta-spark_2.13:4.0.0",
    }
    assert not settings.configuration
    assert ignored(settings) == {
        "spark.sql.extensions": "OTHER_ENGINE",
        "spark.sql.catalog.spark_catalog": "OTHER_ENGINE",
        "spark.jars.packages": "JAR_PROVIDED",
        "spark.sql.warehouse.dir": "SESSION_CATALOG_NOT_USED",
        "spark.api.mode": "CONNECT_NOT_USED",
        "spark.sql.catalogImplementation": "SESSION_CATALOG_NOT_USED",
    }
    texts = [str(setting.reason) for setting in settings.ignored]
    assert "io.delta.sql.DeltaSparkSessionExtension belongs to another table format" in texts[0]


def test_catalog_of_another_engine_becomes_the_lake(tmp_path: Path) -> None:
    spec = project(
        tmp_path, {"spark.sql.catalog.unity": "io.unitycatalog.spark.UCSingleCatalog"}, catalog="unity"
    )
    settings = load_settings(spec, (), {})
    assert (settings.catalog.name, settings.catalog.kind) == ("unity", "jdbc")
    assert ignored(settings) == {"spark.sql.catalog.unity": "OTHER_ENGINE"}


@pytest.mark.parametrize(
    ("options", "error_class", "words"),
    [
        ({"": "org.example.Catalog"}, "CATALOG_NOT_ICEBERG", "org.example.Catalog"),
        ({".type": "hadoop"}, "CATALOG_NOT_ICEBERG", "no class"),
        (
            {"": ICEBERG, ".type": "hadoop", ".warehouse": "s3a://bucket/w"},
            "CATALOG_NOT_ATOMIC",
            "jdbc or rest",
        ),
        ({"": ICEBERG, ".type": "hadoop"}, "CATALOG_NOT_SUPPORTED", "warehouse"),
        (
            {"": ICEBERG, ".catalog-impl": "org.apache.iceberg.nessie.NessieCatalog"},
            "CATALOG_NOT_SUPPORTED",
            "type=rest",
        ),
    ],
)
def test_refused_catalogs(tmp_path: Path, options: dict[str, str], error_class: str, words: str) -> None:
    configuration = {f"spark.sql.catalog.c{name}": text for name, text in options.items()}
    with pytest.raises(SettingsError) as caught:
        load_settings(project(tmp_path, configuration, catalog="c"), (), {})
    assert caught.value.error_class == error_class
    assert words in caught.value.render()


def test_lake_options_replace_those_of_the_spec(tmp_path: Path) -> None:
    configuration = {"spark.sql.catalog.c": ICEBERG, "spark.sql.catalog.c.type": "hadoop"}
    toml = '[lake.options]\ntype = "rest"\nuri = "https://example.org"\n'
    settings = load_settings(project(tmp_path, configuration, catalog="c", toml=toml), (), {})
    assert settings.catalog.options == {"type": "rest", "uri": "https://example.org"}
    assert ignored(settings) == {"spark.sql.catalog.c": "CATALOG_SET_ELSEWHERE"}


def test_master_of_the_spec_is_weaker_than_a_flag(tmp_path: Path) -> None:
    spec = project(tmp_path, {"spark.master": "yarn"})
    assert load_settings(spec, (), {}).confs["spark.master"] == "yarn"
    flag = Given("--master", "local[2]", path=("spark", "master"))
    settings = load_settings(spec, [flag], {})
    assert "spark.master" not in settings.confs
    assert settings.spark.master == "local[2]"


def test_spark_defaults_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    text = (
        "# comment\n! comment\n\nspark.a 1\n  spark.b=two words  \nspark.c : x=y\n"
        "spark.d \\\n   1,\\\n   2\nspark.e\nother.key 1\nspark.path c:\\\\x\n"
    )
    environment = defaults(tmp_path, text)
    defaults_read = {
        name: (value, Path(origin).name) for name, value, origin in read_spark_defaults(environment)
    }
    assert defaults_read == {
        "spark.a": ("1", "spark-defaults.conf:4"),
        "spark.b": ("two words", "spark-defaults.conf:5"),
        "spark.c": ("x=y", "spark-defaults.conf:6"),
        "spark.d": ("1,2", "spark-defaults.conf:7"),
        "spark.e": ("", "spark-defaults.conf:10"),
        "spark.path": ("c:\\x", "spark-defaults.conf:12"),
    }


def test_spark_home_has_the_defaults_without_a_conf_folder(tmp_path: Path) -> None:
    defaults(tmp_path, "spark.a 1\n")
    assert [entry[:2] for entry in read_spark_defaults({"SPARK_HOME": str(tmp_path)})] == [("spark.a", "1")]
    assert list(read_spark_defaults({"SPARK_HOME": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path)})) == []


@pytest.mark.parametrize(
    ("name", "is_needed"),
    [
        ("spark.jars.packages", True),
        ("spark.driver.memory", True),
        ("spark.hadoop.fs.s3a.endpoint", True),
        ("spark.sql.extensions", True),
        ("spark.sql.catalog.x.type", True),
        ("spark.sql.ansi.enabled", False),
        ("my.own", False),
    ],
)
def test_what_spark_needs_before_it_starts(name: str, is_needed: bool) -> None:
    assert needed_at_start(name) is is_needed


def test_settings_are_read_without_importing_spark() -> None:
    code = "import sys, tautochrone.project.settings; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_account_keys_are_masked(tmp_path: Path) -> None:
    name = "spark.hadoop.fs.azure.account.key.shop.dfs.core.windows.net"
    environment = defaults(tmp_path, f"{name} c2VjcmV0LWFjY291bnQta2V5\n")
    spec = project(tmp_path)
    assert load_settings(spec, (), environment).confs[name] == "c2VjcmV0LWFjY291bnQta2V5"
    values = {value.path[-1]: value.text for value in effective_values(spec, (), environment).values()}
    assert values[name] == "***"
