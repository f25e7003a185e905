"""Makes `bench` importable."""

from __future__ import annotations

import sys
from pathlib import Path

# `bench` is no part of the package that is installed.
sys.path.insert(0, str(Path(__file__).parents[2]))
