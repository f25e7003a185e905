"""Connection strings that cannot be right, and those that a server refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tautochrone.errors import IngestError, SettingsError
from tautochrone.sources.mysql.change_log import MySQLChangeLog
from tautochrone.sources.mysql.connection import Address, address_of

from .conftest import Schema


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "it is empty"),
        ("jdbc:mysql://h/shop", "it begins with jdbc://"),
        ("mysql://capture@h:port/", "Port"),
        ("mysql://capture@h/?ssl_caa=/ca.pem", "the unknown parameters ssl_caa"),
        ("mysql://capture@h/?ssl_ca=/no/ca.pem", "ssl_ca=/no/ca.pem is no file"),
    ],
)
def test_wrong_urls(url: str, problem: str) -> None:
    with pytest.raises(SettingsError, match="CAPTURE_URL_INVALID") as refused:
        address_of(url, "shop")
    assert problem in str(refused.value)
    assert "mysql://user:password@host:3306/" in str(refused.value.hint)


def test_files_of_tls(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    address = address_of(f"mariadb://capture@h/?ssl_ca={tmp_path}/ca.pem", "shop")
    assert address.arguments["ssl_verify_cert"] is True


def test_a_refused_connection_is_not_an_absent_server(schema: Schema) -> None:
    schema.run("CREATE TABLE t (id INT PRIMARY KEY)")
    capture = schema.capture()
    for wrong, expected in (
        ({"password": "wrong-1"}, "CAPTURE_LOGIN_REFUSED"),
        ({"user": "nobody_here"}, "CAPTURE_LOGIN_REFUSED"),
        ({"database": "nowhere"}, "CAPTURE_DATABASE_MISSING"),
    ):
        address = Address({**capture.address.arguments, **wrong})
        with pytest.raises(IngestError) as raised:
            MySQLChangeLog(replace(capture, address=address)).begin("reader")
        assert (raised.value.error_class, raised.value.retryable) == (expected, False)
        assert "wrong-1" not in str(raised.value)
