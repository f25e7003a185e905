"""Finding a project's spec and settings: everything that can be wrong without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tautochrone.project.settings import Settings, load_settings
from tautochrone.project.spec import PipelineSpec, find_spec, load_spec

__all__ = ["Options", "locate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line may override."""

    spec: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    master: str | None = None
    interval: str | None = None


def locate(options: Options) -> tuple[PipelineSpec, Settings]:
    """Spec and settings, without Spark.

    Raises:
        SpecError, SettingsError: what is wrong with them.
    """
    path = Path(options.spec) if options.spec else find_spec(Path.cwd())
    spec = load_spec(path)
    return spec, load_settings(spec, conf=options.conf, master=options.master, interval=options.interval)
