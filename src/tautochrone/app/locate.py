"""Finding a project's spec and settings, and every error in them that shows without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tautochrone.project.setting_layers import Given, Value
from tautochrone.project.settings import Settings, effective_values, load_settings
from tautochrone.project.spec import PipelineSpec, find_spec, load_spec
from tautochrone.project.targets import at_target
from tautochrone.traces import keep_traces, logs_of

__all__ = ["Options", "locate", "settings_in_force"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line may override. `given` are settings by key, as `--set` takes them."""

    spec: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    master: str | None = None
    interval: str | None = None
    job: str | None = None
    target: str | None = None
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def flags(self) -> list[Given]:
        """All options as settings. A dedicated flag wins over `--set`."""
        given = [Given(f"--set {key}", text, key=key) for key, text in self.given.items()]
        given += [Given("--conf", text, path=("spark", "conf", key)) for key, text in self.conf.items()]
        if self.master is not None:
            given.append(Given("--master", self.master, path=("spark", "master")))
        if self.interval is not None:
            given.append(Given("--interval", self.interval, path=("run", "interval")))
        if self.job is not None:
            given.append(Given("--job", self.job, path=("run", "job")))
        if self.target is not None:
            given.append(Given("--target", self.target, path=("run", "target")))
        return given


def locate(options: Options) -> tuple[PipelineSpec, Settings]:
    """Spec and settings, without Spark. From then on traces of defects go into the project's storage.

    Raises:
        SpecError, SettingsError: what is wrong with them.
    """
    spec = _spec(options)
    keep_traces(logs_of(spec.storage_path))
    settings = load_settings(spec, options.flags)
    # Definitions are evaluated with the part of the spec's configuration that is left to them.
    return replace(spec, configuration=settings.configuration), settings


def settings_in_force(options: Options) -> list[Value]:
    """Every setting with its origin; secrets stay references, and need not resolve.

    Raises:
        SpecError, SettingsError: what is wrong with them.
    """
    return list(effective_values(_spec(options), options.flags).values())


def _spec(options: Options) -> PipelineSpec:
    spec = load_spec(Path(options.spec) if options.spec else find_spec(Path.cwd()))
    return at_target(spec, options.flags)
