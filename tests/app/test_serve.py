"""Participants of `taut serve`: which settings are refused, and what the service says of them."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from tautochrone.app.locate import Options
from tautochrone.app.serve import ListenAddress, open_participants, report_participants, run
from tautochrone.errors import SettingsError
from tautochrone.project.settings import Settings, effective_values, load_settings
from tautochrone.project.spec import load_spec

NAME = "[transactions.participants.warehouse]\n"
FORMAT = f'{NAME}format = "clickhouse"\n'


def settings(folder: Path, toml: str, **environment: str) -> Settings:
    (folder / "tautochrone.toml").write_text(toml)
    spec = folder / "spark-pipeline.yml"
    spec.write_text("name: p\nstorage: s\nlibraries:\n  - glob: {include: d/**}\n")
    return load_settings(load_spec(spec), environment=environment)


def options(text: str) -> str:
    return f"{FORMAT}[transactions.participants.warehouse.options]\n{text}\n"


@pytest.mark.parametrize(
    ("toml", "error_class"),
    [
        (f'{NAME}format = "oracle"', "PARTICIPANT_FORMAT_UNKNOWN"),
        (f'{NAME}[transactions.participants.warehouse.options]\nurl = "x"', "PARTICIPANT_FORMAT_UNKNOWN"),
        (FORMAT.replace("warehouse", "client"), "PARTICIPANT_NAME_RESERVED"),
        (FORMAT, "PARTICIPANT_OPTION_MISSING"),
        (options('url = "http://ch/shop"'), "PARTICIPANT_OPTION_INVALID"),
        (options('url = "clickhouse://ch:port/shop"'), "PARTICIPANT_OPTION_INVALID"),
        (options('url = "clickhouse://one/shop, clickhouse://one:8123/x"'), "PARTICIPANT_OPTION_INVALID"),
        (options('url = "clickhouse://one/shop, clickhouse://two"'), "PARTICIPANT_OPTION_INVALID"),
        (options('url = "clickhouse://a:hunter-2@ch/shop"'), "PARTICIPANT_OPTION_INVALID"),
        (options('url = "clickhouse://embedded/shop"'), "PARTICIPANT_OPTION_INVALID"),
        (options('url = "clickhouse://ch"'), "PARTICIPANT_OPTION_INVALID"),
        (options('url = "clickhouse://ch/shop"\nchunk_rows = 7'), "PARTICIPANT_OPTION_INVALID"),
        (options('url = "clickhouse://ch/shop"\ntls_ca = "ca.pem"'), "PARTICIPANT_OPTION_INVALID"),
        (options('url = "clickhouses://ch/shop"\ntls_ca = "absent.pem"'), "PARTICIPANT_OPTION_INVALID"),
        (options('url = "clickhouse://ch/shop"\npassword = { env = "ABSENT" }'), "SECRET_NOT_FOUND"),
    ],
)
def test_what_cannot_be_used_is_refused_with_place_and_hint(
    tmp_path: Path, toml: str, error_class: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        open_participants(settings(tmp_path, toml).participants)
    assert refused.value.error_class == error_class
    assert refused.value.hint
    assert str(refused.value.location).startswith("tautochrone.toml:")
    assert "hunter-2" not in f"{refused.value} {refused.value.hint}"


def test_a_run_does_not_need_the_password(tmp_path: Path) -> None:
    toml = options('url = "clickhouses://loader@ch/shop"\npassword = { env = "PASSWORD_OF_LOADER" }')
    loaded = settings(tmp_path, toml)
    assert loaded.participants["warehouse"].format == "clickhouse"
    values = effective_values(
        load_spec(tmp_path / "spark-pipeline.yml"), environment={"PASSWORD_OF_LOADER": "hunter-2"}
    )
    shown = {value.key: value.text for value in values.values()}
    key = "transactions.participants.warehouse.options.password"
    assert shown[key] == '{ env = "PASSWORD_OF_LOADER" }'
    opened = open_participants(settings(tmp_path, toml, PASSWORD_OF_LOADER="hunter-2").participants)
    assert opened["warehouse"].description == "ClickHouse at ch:8443/shop"


def test_serve_refuses_before_it_listens(tmp_path: Path) -> None:
    settings(tmp_path, FORMAT)
    with pytest.raises(SettingsError) as refused:
        run(Options(spec=str(tmp_path / "spark-pipeline.yml")), ListenAddress("127.0.0.1", 0))
    assert refused.value.error_class == "PARTICIPANT_OPTION_MISSING"


def test_a_server_that_does_not_answer_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    toml = options(f'url = "clickhouse://127.0.0.1:{port}/shop"\npassword = {{ env = "PASSWORD" }}')
    participants = open_participants(settings(tmp_path, toml, PASSWORD="hunter-2").participants)
    with caplog.at_level(logging.INFO, "tautochrone.serve"):
        (thread,) = report_participants(participants)
        thread.join(30)
    assert f"participant warehouse of transactions: ClickHouse at 127.0.0.1:{port}/shop" in caplog.text
    assert "cannot commit now: [SINK_NOT_REACHABLE] Participant warehouse: no connection" in caplog.text
    assert "hunter-2" not in caplog.text
