"""Tests here read the published lake of `tests.published_lake`."""

from tests.published_lake import lake

__all__ = ["lake"]
