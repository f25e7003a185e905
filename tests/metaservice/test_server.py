"""The port of a service: taken, or none."""

from __future__ import annotations

import pytest

from tautochrone.errors import EnvironmentProblemError
from tautochrone.metaservice.server import listen


def test_a_port_that_cannot_be_opened_is_refused_with_what_to_do() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentProblemError, match="SERVER_NOT_STARTED") as refused:
            listen("127.0.0.1", port)
    assert str(refused.value).count("127.0.0.1") == 1, refused.value
    assert "--port" in str(refused.value.hint)


def test_a_number_that_is_no_port_is_refused() -> None:
    with pytest.raises(EnvironmentProblemError, match="99999 is no port") as refused:
        listen("127.0.0.1", 99_999)
    assert "65535" in str(refused.value.hint)
