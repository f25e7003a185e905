"""Connection strings of a capture that cannot be right are refused before a server is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tautochrone.errors import SettingsError
from tautochrone.sources.mysql.connection import address_of


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
