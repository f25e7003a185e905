"""Tests here read the published lake of `tests.published_lake`."""

from tests.published_lake import built_lake, lake

__all__ = ["built_lake", "lake"]
