"""The refresh policy: where it can be set, its default, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tautochrone.errors import SettingsError
from tautochrone.model.checkpoint import RefreshPolicy
from tautochrone.model.definitions import Dataset, DatasetKind, SourceLocation
from tautochrone.model.names import TableName
from tautochrone.project.settings import Settings, load_settings
from tautochrone.project.spec import load_spec
from tautochrone.project.table_properties import POLICY_PROPERTY, policy_of

from .conftest import ProjectMaker, lake


def settings_of(folder: Path, toml: str = "", **environment: str) -> Settings:
    (folder / "spark-pipeline.yml").write_text(
        "name: p\nstorage: s\nlibraries:\n  - glob:\n      include: d/**\n"
    )
    (folder / "tautochrone.toml").write_text(toml)
    return load_settings(load_spec(folder / "spark-pipeline.yml"), environment=environment)


def test_the_project_has_a_default(tmp_path: Path) -> None:
    assert settings_of(tmp_path).refresh_policy is RefreshPolicy.AUTO
    toml = '[refresh]\npolicy = "incremental"\n'
    assert settings_of(tmp_path, toml).refresh_policy is RefreshPolicy.INCREMENTAL
    assert settings_of(tmp_path, toml, TAUTOCHRONE_REFRESH_POLICY="full").refresh_policy is RefreshPolicy.FULL
    with pytest.raises(SettingsError, match="INVALID_REFRESH_POLICY") as caught:
        settings_of(tmp_path, '[refresh]\npolicy = "fast"\n')
    assert caught.value.hint == "it must be one of auto, incremental, incremental_strict, full"
    with pytest.raises(SettingsError, match=r"UNKNOWN_SETTING.*\[refresh\] has no setting mode"):
        settings_of(tmp_path, '[refresh]\nmode = "full"\n')


def test_a_view_overrides_the_default() -> None:
    def view(**properties: str) -> Dataset:
        name, location = TableName("lake", ("db",), "v"), SourceLocation("a.sql", 1)
        return Dataset(name, DatasetKind.MATERIALIZED_VIEW, location, properties=properties)

    assert policy_of(view(), RefreshPolicy.FULL) is RefreshPolicy.FULL
    strict = view(**{POLICY_PROPERTY: " Incremental_Strict"})
    assert policy_of(strict, RefreshPolicy.FULL) is RefreshPolicy.INCREMENTAL_STRICT


@pytest.mark.spark
def test_sql_and_python_set_it(project: ProjectMaker) -> None:
    graph = project.graph(
        {
            "defs/a.sql": """
                CREATE MATERIALIZED VIEW s TBLPROPERTIES ('tautochrone.refresh-policy' = 'full')
                AS SELECT 1 AS a
            """,
            "defs/b.py": """
                from pyspark import pipelines as dp

                @dp.materialized_view(table_properties={"tautochrone.refresh-policy": "incremental"})
                def p():
                    return spark.range(3)
            """,
        }
    )
    datasets = graph.definitions.datasets
    policies = {n.table: policy_of(d, RefreshPolicy.AUTO) for n, d in datasets.items()}
    assert policies == {"s": RefreshPolicy.FULL, "p": RefreshPolicy.INCREMENTAL}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        (
            "CREATE MATERIALIZED VIEW m TBLPROPERTIES ('tautochrone.refresh-policy' = 'fast') AS SELECT 1 a",
            "'fast', which is no policy",
            "policies are auto, incremental, incremental_strict, full",
        ),
        (
            "CREATE MATERIALIZED VIEW m TBLPROPERTIES ('tautochrone.refresh_policy' = 'full') AS SELECT 1 a",
            "'tautochrone.refresh_policy'",
            "Did you mean 'tautochrone.refresh-policy'?",
        ),
        (
            "CREATE STREAMING TABLE m TBLPROPERTIES ('tautochrone.refresh-policy' = 'full')\n"
            "AS SELECT * FROM STREAM x",
            "is a streaming table",
            "Only materialized views are refreshed.",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(project: ProjectMaker, text: str, words: str, hint: str) -> None:
    error = project.sql_error(f"\n{text}")
    assert (error.error_class, error.location, error.hint) == ("INVALID_REFRESH_POLICY", "defs/a.sql:2", hint)
    assert words in error.message
    assert str(lake("m")) in error.message
