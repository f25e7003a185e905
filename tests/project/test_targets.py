"""Targets: which one is chosen, what it overrides, and that it never shares what another one writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.project.test_settings import spec_in

from tautochrone.app.locate import Options, locate, settings_in_force
from tautochrone.errors import LakeError, TautochroneError
from tautochrone.project.settings import Settings, json_schema

_TWO = """
[run]
interval = "5s"
target = "dev"

[lake.options]
type = "jdbc"
uri = "jdbc:postgresql://db/base"
warehouse = "/lakes/base"

[targets.dev]
storage = "dev"
run.interval = "1m"

[targets.dev.lake.options]
type = "rest"
uri = "https://dev.example"

[targets.prod]
production = true

[targets.prod.spark.conf]
"spark.executor.memory" = "8g"
"""


def settings_at(folder: Path, toml: str, target: str | None = None, **given: str) -> Settings:
    spec = spec_in(folder, toml)
    return locate(Options(spec=str(spec.path), target=target, given=given))[1]


def refused(folder: Path, toml: str, target: str | None = None, **given: str) -> TautochroneError:
    with pytest.raises(TautochroneError) as caught:
        settings_at(folder, toml, target, **given)
    return caught.value


def test_a_target_overrides_the_file(tmp_path: Path) -> None:
    dev, prod = settings_at(tmp_path, _TWO), settings_at(tmp_path, _TWO, "prod")
    assert (dev.storage, prod.storage) == (f"{tmp_path}/dev", f"{tmp_path}/s")
    assert (dev.interval_ms, prod.interval_ms) == (60_000, 5_000)
    assert dev.meta_url == f"sqlite:///{tmp_path}/dev/meta.db"
    assert (dev.confs, prod.confs) == ({}, {"spark.executor.memory": "8g"})


def test_options_of_a_catalog_are_replaced_as_a_whole(tmp_path: Path) -> None:
    assert settings_at(tmp_path, _TWO).catalog.options == {"type": "rest", "uri": "https://dev.example"}
    assert settings_at(tmp_path, _TWO, "prod").catalog.options["warehouse"] == "/lakes/base"


def test_variables_and_flags_win_over_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAUTOCHRONE_INTERVAL", "2m")
    assert settings_at(tmp_path, _TWO).interval_ms == 120_000
    monkeypatch.setenv("TAUTOCHRONE_TARGET", "prod")
    target = settings_at(tmp_path, _TWO).target
    assert target is not None
    assert target.name == "prod"
    assert settings_at(tmp_path, _TWO, "dev", **{"run.interval": "3m"}).interval_ms == 180_000


def test_origins_are_those_of_the_target(tmp_path: Path) -> None:
    spec = spec_in(tmp_path, _TWO)
    origins = {value.key: value.origin for value in settings_in_force(Options(spec=str(spec.path)))}
    assert origins["run.interval"] == "tautochrone.toml:13"
    assert origins["lake.options.uri"] == "tautochrone.toml:17"


def test_a_project_without_targets_has_none(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, "")
    assert (settings.target, settings.sinks_off, settings.foreign_folders) == (None, None, ())
    error = refused(tmp_path, "", "dev")
    assert (error.error_class, error.hint) == ("TARGET_NOT_FOUND", "it declares none in [targets]")


@pytest.mark.parametrize(
    ("toml", "error_class", "words"),
    [
        ("[targets.dev]\n[targets.prod]\nstorage = 'p'", "TARGET_NOT_CHOSEN", "(dev, prod)"),
        ("[run]\ntarget = 'test'\n[targets.dev]", "TARGET_NOT_FOUND", "its targets are dev"),
        ("[run]\ntarget = 'dev'\n[targets.dev]\nstorag = 'p'", "UNKNOWN_SETTING", "did you mean storage?"),
        ("[run]\ntarget = 'a'\n[targets.a]\n[targets.b]\nstorage = 'b'\nrun.intervall = '1s'",
         "UNKNOWN_SETTING", "Target b: [run] has no setting intervall"),
        ("[run]\ntarget = 'dev'\n[targets.dev.run]\ninterval = 'soon'", "INVALID_DURATION", "soon"),
        ("[run]\ntarget = 'dev'\n[targets.dev.run]\ntarget = 'prod'", "INVALID_SETTING", "chooses a target"),
        ("[run]\ntarget = 'dev'\n[targets.dev.targets.x]\nstorage = 'p'", "UNKNOWN_SETTING", "targets"),
        ("[run]\ntarget = 'a/b'\n[targets.'a/b']", "INVALID_SETTING", "letters, digits"),
        ("[run]\ntarget = 'dev'\n[targets]\ndev = 3", "UNKNOWN_SETTING", "dev"),
        ("targets = 'dev'", "INVALID_SETTING", "tautochrone.toml:1 targets cannot be 'dev'"),
        ("[run]\n[[targets]]\nname = 'dev'", "INVALID_SETTING", "toml:2 targets cannot be a list"),
        ("[run]\ntarget = 'dev'\n[targets.dev]\nroots_from = 'dev'", "TARGET_NOT_FOUND", "no other target"),
        ("[run]\ntarget = 'a'\n[targets.a]\nroots_from = 'b'\n[targets.b]\nstorage = 'b'\nroots_from = 'c'\n"
         "[targets.c]\nstorage = 'c'", "INVALID_SETTING", "read those of c itself"),
        ("[jobs.fast]\ndatasets = ['sales.*']\n[run]\ntarget = 'a'\n[targets.a]\n"
         "roots_from = 'b'\n[targets.b]\nstorage = 'b'", "TARGET_ROOTS_NOT_SUPPORTED",
         "toml:2 Target a reads the roots of b"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, toml: str, error_class: str, words: str) -> None:
    error = refused(tmp_path, toml)
    assert error.error_class == error_class
    assert words in f"{error.location} {error.message} {error.hint}"


_APART = "[run]\ntarget = 'dev'\n[targets.prod]\nproduction = true\n[targets.dev]\nstorage = 'd'\n"


@pytest.mark.parametrize(
    ("toml", "shared"),
    [
        ("[run]\ntarget = 'dev'\n[targets.dev]\n[targets.prod]", "the store"),
        ("[run]\ntarget = 'dev'\n[targets.dev]\nstorage = './s/../s'\n[targets.prod]", "the store"),
        ("[run]\ntarget = 'dev'\n[targets.dev]\nstorage = 's/dev'\n[targets.prod]", "the folder"),
        ("[meta]\nurl = 'postgresql://db/meta'\n" + _APART, "the store"),
        ("[meta]\nurl = { env = 'META' }\n" + _APART, "the store"),
        (_APART + "meta.url = 'sqlite:///FOLDER/s/meta.db'", "the store"),
        (_APART + "meta.url = 'sqlite:///FOLDER/s/dev.db'", "the folder"),
        (_APART + "meta.url = 'sqlite+pysqlite:///FOLDER/s/meta.db'", "the store"),
        ("[meta]\nurl = 'postgresql://db/meta'\n" + _APART + "meta.url = 'postgresql+psycopg://me@DB:5432/meta'",
         "the store"),
        ("[lake.options]\ntype = 'rest'\nuri = 'https://c.example'\nwarehouse = 'w'\n" + _APART, "catalog"),
        ("[lake.options]\ntype = 'rest'\nuri = 'http://c'\nwarehouse = 'w'\n" + _APART
         + "[targets.dev.lake.options]\ntype = 'rest'\nuri = 'http://C:80/'\nwarehouse = 'w'", "catalog"),
        ("[lake.options]\ntype = 'jdbc'\nuri = 'jdbc:postgresql://db/c?user=a'\nwarehouse = '/w/prod'\n"
         + _APART + "[targets.dev.lake.options]\ntype = 'jdbc'\nuri = 'jdbc:postgresql://db:5432/c'\n"
         "warehouse = '/w/dev'", "catalog"),
        (_APART + "[targets.dev.lake.options]\ntype = 'jdbc'\nuri = 'jdbc:sqlite:FOLDER/s/catalog.db'\n"
         "warehouse = 'FOLDER/d/w'", "catalog"),
        (_APART + "[targets.dev.lake.options]\ntype = 'jdbc'\nuri = 'jdbc:sqlite:FOLDER/d/catalog.db'\n"
         "warehouse = 'FOLDER/s/warehouse'", "the folder"),
        ("[lake.options]\ntype = 'jdbc'\nuri = 'jdbc:postgresql://db/c'\nwarehouse = 's3://a/prod/w'\n"
         + _APART + "[targets.dev.lake.options]\ntype = 'jdbc'\nuri = 'jdbc:postgresql://db/d'\n"
         "warehouse = 's3a://a/prod//w/dev'", "the folder"),
    ],
)  # fmt: skip
def test_targets_share_nothing_that_they_write(tmp_path: Path, toml: str, shared: str) -> None:
    error = refused(tmp_path, toml.replace("FOLDER", str(tmp_path)))
    assert error.error_class == "TARGETS_NOT_APART"
    assert "target prod" in error.message
    assert shared in error.message


@pytest.mark.parametrize(
    "others",
    ["postgresql://db:5433/meta", "postgresql://db/Meta", "mysql://db/meta",
     "postgresql://db/meta?options=-csearch_path%3Ddev"],
)  # fmt: skip
def test_stores_apart(tmp_path: Path, others: str) -> None:
    toml = "[meta]\nurl = 'postgresql://db/meta'\n" + _APART + f"meta.url = '{others}'"
    assert settings_at(tmp_path, toml).meta_url == others


def test_neither_variables_nor_flags_nor_links_lead_to_another_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings_at(tmp_path, _APART).foreign_folders == (f"{tmp_path}/s", f"{tmp_path}/s/warehouse")
    prod_store = f"sqlite:///{tmp_path}/s/meta.db"
    assert refused(tmp_path, _APART, **{"meta.url": prod_store}).error_class == "TARGETS_NOT_APART"
    (tmp_path / "s").mkdir()
    (tmp_path / "d").symlink_to(tmp_path / "s")
    assert refused(tmp_path, _APART).error_class == "TARGETS_NOT_APART"
    (tmp_path / "d").unlink()
    monkeypatch.setenv("TAUTOCHRONE_META_URL", prod_store)
    assert refused(tmp_path, _APART).error_class == "TARGETS_NOT_APART"
    # A variable is about the target of the command: another one has what the file says.
    monkeypatch.setenv("TAUTOCHRONE_META_URL", "postgresql://db/of_this_machine")
    assert settings_at(tmp_path, _APART).meta_url == "postgresql://db/of_this_machine"


def test_sinks_are_off_outside_production(tmp_path: Path) -> None:
    toml = "[lake]\npublish = ['delta']\n[sinks.shop]\nformat = 'kafka'\n" + _APART
    off = settings_at(tmp_path, toml).sinks_off
    assert off is not None
    assert (str(off.reason.code), off.names) == ("TARGET_NOT_PRODUCTION", ("delta", "shop"))
    assert not settings_at(tmp_path, toml).sinks["delta-publication"].publishes_all
    assert settings_at(tmp_path, toml, "prod").sinks_off is None
    assert settings_at(tmp_path, toml, "prod").sinks["delta-publication"].publishes_all
    assert settings_at(tmp_path, toml + "sinks_enabled = true").sinks_off is None


def test_a_storage_belongs_to_one_target(tmp_path: Path) -> None:
    from tautochrone.app.storage import check_storage, identify, read_identity
    from tautochrone.runtime.job.effects import DirectEffects

    path = str(spec_in(tmp_path, _APART).path)
    spec, settings = locate(Options(spec=path, target="prod"))
    Path(settings.storage).mkdir()
    # A storage from before the project had targets becomes that of the target which has it.
    plain = spec_in(tmp_path, "")
    identify(plain, locate(Options(spec=path))[1], None, DirectEffects())
    spec_in(tmp_path, _APART)
    identify(spec, settings, check_storage(spec, settings), DirectEffects())
    assert getattr(read_identity(settings), "targets", None) == {"p": "prod"}
    swapped = _APART.replace("[targets.dev]\nstorage = 'd'", "[targets.dev]\nstorage = 's'").replace(
        "production = true", "storage = 'p'"
    )
    spec_in(tmp_path, swapped)
    with pytest.raises(LakeError) as caught:
        check_storage(*locate(Options(spec=path)))
    assert caught.value.error_class == "STORAGE_OF_ANOTHER_TARGET"


def test_the_schema_knows_what_a_target_overrides() -> None:
    targets = json_schema()["properties"]["targets"]["additionalProperties"]
    assert targets["properties"]["storage"]["type"] == "string"
    assert targets["properties"]["run"] == json_schema()["properties"]["run"]
    assert "targets" not in targets["properties"]
    assert not targets["additionalProperties"]
