"""A broker for the module's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.kafka import KafkaBroker

USERS = {"sink": "right-1"}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), USERS) as started:
        yield started
