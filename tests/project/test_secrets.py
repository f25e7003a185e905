"""Secrets by reference: resolved or refused, and masked in every text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tautochrone.cli.main import main
from tautochrone.errors import MetaError, SettingsError, TautochroneError
from tautochrone.meta import MetaStore
from tautochrone.project.settings import Settings, effective_values, load_settings
from tautochrone.project.spec import PipelineSpec, load_spec
from tautochrone.redaction import MASK, keep_secret, redacted, redacted_fields


def spec_in(folder: Path, toml: str) -> PipelineSpec:
    spec = folder / "spark-pipeline.yml"
    spec.write_text("name: p\nstorage: s\nlibraries:\n  - glob:\n      include: d/**\n")
    (folder / "tautochrone.toml").write_text(toml)
    return load_spec(spec)


def test_references_are_resolved_and_shown_as_references(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text("secret of a file\n")
    spec = spec_in(
        tmp_path,
        '[lake.options]\ncredential = { env = "CRED" }\n[spark.conf]\n"a.b" = { file = "key.txt" }\n',
    )
    environment = {"CRED": "secret of a variable"}
    settings = load_settings(spec, environment=environment)
    assert settings.catalog.options == {"credential": "secret of a variable"}
    assert settings.confs == {"a.b": "secret of a file"}
    assert "secret of" not in repr(settings)
    shown = {value.key: value.text for value in effective_values(spec, environment=environment).values()}
    assert shown["lake.options.credential"] == '{ env = "CRED" }'
    assert shown["spark.conf.a.b"] == '{ file = "key.txt" }'


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ('{ env = "NOWHERE" }', "the variable NOWHERE is not set or empty"),
        ('{ env = "EMPTY" }', "the variable EMPTY is not set or empty"),
        ('{ file = "nowhere.txt" }', "the file nowhere.txt cannot be read: No such file or directory"),
        ('{ file = "bytes" }', "the file bytes cannot be read: it is no text"),
        ('{ file = "blank" }', "the file blank is not set or empty"),
    ],
)
def test_missing_secret_is_refused(tmp_path: Path, reference: str, words: str) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "blank").write_text("\n")
    spec = spec_in(tmp_path, f"[meta]\nurl = {reference}\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(spec, environment={"EMPTY": ""})
    assert (caught.value.error_class, caught.value.location) == ("SECRET_NOT_FOUND", "tautochrone.toml:2")
    assert words in caught.value.message
    # Settings can be listed where the secrets do not exist.
    assert effective_values(spec, environment={})["meta", "url"].text == reference


def test_plain_secrets_are_masked(tmp_path: Path) -> None:
    toml = """
        [meta]
        url = "postgresql://joe:plain-one@db/taut"
        [lake.options]
        "jdbc.password" = "plain-two"
        uri = "jdbc:postgresql://db/x?user=joe&password=plain-four&ssl=true"
        [spark.conf]
        "kafka.sasl.jaas.config" = '''LoginModule required username="joe" password="plain-five";'''
        "spark.token.refresh" = true
    """
    shown = {
        value.key: value.text for value in effective_values(spec_in(tmp_path, toml), environment={}).values()
    }
    assert shown["meta.url"] == f"postgresql://joe:{MASK}@db/taut"
    assert shown["lake.options.jdbc.password"] == MASK
    assert shown["lake.options.uri"] == f"jdbc:postgresql://db/x?user=joe&password={MASK}&ssl=true"
    jaas = f'LoginModule required username="joe" password="{MASK}";'
    assert shown["spark.conf.kafka.sasl.jaas.config"] == jaas
    masked_text = redacted("plain-one, plain-two, plain-four, plain-five, true")
    assert masked_text == f"{MASK}, {MASK}, {MASK}, {MASK}, true"


def test_every_spelling_is_masked() -> None:
    keep_secret('p@ss w/ "quotes" and ä')
    spellings = (
        "p@ss w/ \"quotes\" and ä",
        "p%40ss%20w%2F%20%22quotes%22%20and%20%C3%A4",
        "p%40ss+w%2F+%22quotes%22+and+%C3%A4",
        json.dumps("p@ss w/ \"quotes\" and ä"),
    )  # fmt: skip
    for text in spellings:
        assert "quotes" not in redacted(f"before {text} after")
    fields = {"a": [spellings[0]], "b": {"c": spellings[1]}, "n": 1, "t": (spellings[0], None)}
    assert redacted_fields(fields) == {"a": [MASK], "b": {"c": MASK}, "n": 1, "t": (MASK, None)}


def test_errors_are_masked_when_they_are_made() -> None:
    keep_secret("let-nobody-see")
    error = TautochroneError(
        "X", "it said let-nobody-see", hint="try let-nobody-see", parameters={"u": "let-nobody-see"}
    )
    assert "let-nobody-see" not in f"{error} {error!r} {error.render()} {dict(error.parameters)}"


@pytest.mark.parametrize("debug", [[], ["--debug"]])
@pytest.mark.parametrize(
    ("url", "error_class"),
    [
        ("nonsense:let-me-hide", "META_URL_INVALID"),
        ("oracle9://joe:let-me-hide@db/x", "META_URL_INVALID"),
        ("mysql+mysqldb://joe:let-me-hide@db/x", "META_DRIVER_MISSING"),
        ("sqlite:////proc/let-me-hide/meta.db", "META_STORE_FAILED"),
    ],
)
def test_a_store_that_cannot_be_opened(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    url: str,
    error_class: str,
    debug: list[str],
) -> None:
    spec = spec_in(tmp_path, '[meta]\nurl = { env = "STORE" }\n')
    monkeypatch.setenv("STORE", url)

    def opened(settings: Settings) -> MetaStore:
        return MetaStore.open(settings.meta_url)

    monkeypatch.setattr("tautochrone.cli.status.existing_store", opened)
    assert main(["status", "--spec", str(spec.path), *debug]) != 0
    output = capsys.readouterr()
    assert "let-me-hide" not in output.out + output.err
    assert error_class in output.err or MASK in output.err
    assert ("Traceback" in output.err) == bool(debug)
    assert "INTERNAL_ERROR" not in output.err


def test_an_unusable_url_never_quotes_itself() -> None:
    with pytest.raises(MetaError, match="META_URL_INVALID") as caught:
        MetaStore.open("joe:never-registered@db")
    assert "never-registered" not in str(caught.value)
