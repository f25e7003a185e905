from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.harness import Pipeline

from .world import World


@pytest.fixture
def world(pipeline: Pipeline, tmp_path: Path) -> World:
    return World(pipeline, tmp_path)
