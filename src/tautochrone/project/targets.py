"""The targets of a project: the same definitions over different storages, such as `dev` and `prod`.

    [run]
    target = "dev"

    [targets.dev]
    storage = ".dev"
    roots_from = "prod"

    [targets.prod]
    production = true

A target never opens what another one writes. What that is follows from the file: the variables and flags of
a command are those of its own target.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from tautochrone.errors import SettingsError
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.model.folders import is_within, real_location
from tautochrone.model.near_names import near_names_hint
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.setting_layers import (
    PREFIX,
    Given,
    Value,
    collect_values,
    declared_targets,
)
from tautochrone.project.spec import PipelineSpec

__all__ = ["Target", "TargetPlaces", "at_target", "check_apart", "in_target", "target_of"]

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_PINNED_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target that a command works on.

    Attributes:
        production: it is marked so.
        delivers: whether it delivers to sinks and publications.
        roots_from: the target whose ingested tables it reads; None: it ingests itself.
        roots_checkpoint: of that target; None: the newest published one.
        roots_pinned_ms: how long that checkpoint stays pinned, in milliseconds.
    """

    name: str
    production: bool = False
    delivers: bool = False
    roots_from: str | None = None
    roots_checkpoint: int | None = None
    roots_pinned_ms: int = _PINNED_MS

    @property
    def sinks_off(self) -> Reason | None:
        """Why nothing is delivered to sinks; None: everything is."""
        if self.delivers:
            return None
        code = ReasonCode.SINKS_DISABLED if self.production else ReasonCode.TARGET_NOT_PRODUCTION
        return Reason.of(code, target=self.name)


def at_target(
    spec: PipelineSpec, flags: Sequence[Given], environment: Mapping[str, str] | None = None
) -> PipelineSpec:
    """The pipeline in the target that flags, environment or file choose; unchanged without targets.

    Raises:
        SettingsError: `TARGET_NOT_FOUND`, `TARGET_NOT_CHOSEN`; `INVALID_SETTING`, a target has a name that no
            folder can have.
        SpecError: the target's storage is none.
    """
    targets = declared_targets(spec)
    for name, origin in targets.items():
        if not _NAME.fullmatch(name):
            raise SettingsError(
                "INVALID_SETTING",
                f"A target cannot be called {name!r}",
                location=origin,
                hint="names of targets consist of letters, digits, _ and -",
            )
    values = collect_values(spec, flags, environment)
    chosen = values.get(("run", "target"))
    if chosen is None:
        if not targets:
            return spec
        raise SettingsError(
            "TARGET_NOT_CHOSEN",
            f"The project has targets ({', '.join(targets)}), and none is chosen",
            location=next(iter(targets.values())),
            hint="choose one by --target or TAUTOCHRONE_TARGET, or by target below [run]",
        )
    if chosen.value not in targets:
        raise SettingsError(
            "TARGET_NOT_FOUND",
            f"The project has no target {chosen.value}",
            location=chosen.origin,
            hint=near_names_hint(chosen.value, targets, "its targets are", "it declares none in [targets]"),
        )
    return _in_target(spec, chosen.value, values)


def _in_target(spec: PipelineSpec, name: str, values: Mapping[tuple[str, ...], Value]) -> PipelineSpec:
    storage = values.get(("targets", name, "storage"))
    if storage is None:
        return spec.at_target(name, None, "")
    return spec.at_target(name, storage.value, storage.origin)


def in_target(
    spec: PipelineSpec, name: str, environment: Mapping[str, str] | None = None
) -> tuple[PipelineSpec, list[Given], dict[str, str]]:
    """Another target of the project of `spec`, with the flags and the environment to load its settings: this
    command's own flags and variables are about its own target.

    Raises:
        SettingsError, SpecError: as of `at_target`.
    """
    variables = os.environ if environment is None else environment
    others = {key: value for key, value in variables.items() if not key.startswith(PREFIX)}
    flags = [Given("--target", name, path=("run", "target"))]
    return at_target(spec.base or spec, flags, others), flags, others


def target_of(spec: PipelineSpec, values: Mapping[tuple[str, ...], Value]) -> Target | None:
    """The chosen target's own settings, from all settings in force.

    Raises:
        SettingsError: `TARGET_NOT_FOUND`, it reads the roots of no other target; `INVALID_SETTING`, it reads
            those of a target that reads another one's; `TARGET_ROOTS_NOT_SUPPORTED`, it has several jobs.
    """
    if spec.target is None:
        return None

    def setting(name: str, target: str = spec.target) -> Value | None:
        return values.get(("targets", target, name))

    def value(name: str, default: object = None) -> object:
        given = setting(name)
        return default if given is None else given.value

    production = bool(value("production", default=False))
    roots_from = setting("roots_from")
    if roots_from is not None:
        others = [name for name in declared_targets(spec) if name != spec.target]
        if roots_from.value not in others:
            raise SettingsError(
                "TARGET_NOT_FOUND",
                f"Target {spec.target} reads the roots of {roots_from.value}, which is no other target",
                location=roots_from.origin,
                hint=near_names_hint(
                    str(roots_from.value), others, "there are", "the project has no other one"
                ),
            )
        further = setting("roots_from", roots_from.value)
        if further is not None:
            raise SettingsError(
                "INVALID_SETTING",
                f"Target {spec.target} reads the roots of {roots_from.value}, which reads those of "
                f"{further.value}",
                location=roots_from.origin,
                hint=f"read those of {further.value} itself",
            )
        jobs = [each for path, each in values.items() if path[0] == "jobs"]
        if jobs:
            # Each job's run would change the tables under the other ones.
            raise SettingsError(
                "TARGET_ROOTS_NOT_SUPPORTED",
                f"Target {spec.target} reads the roots of {roots_from.value}, and has several jobs",
                location=jobs[0].origin,
                hint=f"write [targets.{roots_from.value}.jobs.NAME] in place of [jobs.NAME]; "
                f"{spec.target} then runs as one job",
            )
    checkpoint, pinned_ms = value("roots_checkpoint"), value("roots_pinned", _PINNED_MS)
    assert checkpoint is None or isinstance(checkpoint, int)
    assert isinstance(pinned_ms, int)
    return Target(
        name=spec.target,
        production=production,
        delivers=bool(value("sinks_enabled", production)),
        roots_from=None if roots_from is None else str(roots_from.value),
        roots_checkpoint=checkpoint,
        roots_pinned_ms=pinned_ms,
    )


# -- what belongs to whom ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlaces:
    """Where a target keeps what it writes. A secret by reference is its reference.

    Attributes:
        folders: of its storage and its warehouse, as paths or URIs.
        store: the URL of its store.
        catalog: what tells its catalog from others.
    """

    target: str
    folders: tuple[str, ...]
    store: str
    catalog: tuple[str, ...]

    @classmethod
    def of(
        cls, spec: PipelineSpec, meta_url: Value, catalog: str, options: Mapping[str, Value]
    ) -> TargetPlaces:
        """From the settings in force of the target of `spec`."""
        texts = {name: str(value.value) for name, value in options.items()}
        kind = CatalogSettings(catalog, texts).kind
        uri, warehouse = texts.get("uri", ""), texts.get("warehouse", "")
        if kind == "hadoop":
            identity: tuple[str, ...] = (kind, real_location(warehouse))
        elif kind == "jdbc":
            # Its tables say by the catalog's name whose they are.
            identity = (kind, _same_spelling(uri.partition("?")[0]), catalog)
        elif kind == "rest":
            identity = (kind, _same_spelling(uri), real_location(warehouse))
        else:
            identity = (kind, _same_spelling(uri), texts.get("glue.id", ""))
        # The warehouse of a REST catalog may be a name.
        folders = [spec.storage_path, spec.storage_root]
        folders += [warehouse] if "/" in warehouse else []
        return cls(
            target=str(spec.target),
            folders=tuple(dict.fromkeys(map(real_location, folders))),
            store=_same_spelling(str(meta_url.value)),
            catalog=identity,
        )

    def shared_with(self, other: TargetPlaces) -> str | None:
        """What both would write, in words; None: nothing."""
        if self.store == other.store:
            return "the store (meta.url)"
        if self.catalog == other.catalog:
            return "the lake's catalog (lake.options)"
        for folder in self.folders:
            for taken in other.folders:
                if is_within(folder, taken) or is_within(taken, folder):
                    return f"the folder {folder if is_within(folder, taken) else taken}"
        for owner, neighbour in ((self, other), (other, self)):
            for path in (owner.store, *owner.catalog):
                if any(is_within(path, folder) for folder in neighbour.folders):
                    return f"the folder of {path}"
        return None


def check_apart(own: TargetPlaces, others: Sequence[TargetPlaces], origin: str) -> None:
    """Refuse a target that would write what belongs to another one.

    Raises:
        SettingsError: `TARGETS_NOT_APART`.
    """
    for other in others:
        shared = own.shared_with(other)
        if shared is not None:
            raise SettingsError(
                "TARGETS_NOT_APART",
                f"Target {own.target} would write what belongs to target {other.target}: {shared}",
                location=origin,
                hint=f"give [targets.{own.target}] its own storage, store (meta.url) and catalog "
                "(lake.options); the store and the catalog are in the storage where nothing else is set",
            )


_URL = re.compile(r"(?P<jdbc>jdbc:)?(?P<backend>[a-z][a-z0-9]*)(?:\+\w+)?:(?P<rest>.*)", re.IGNORECASE)
_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "http": 80, "https": 443, "thrift": 9083}
_DATABASES = ("postgresql", "mysql", "mariadb")


def _same_spelling(url: str) -> str:
    """A URL of SQLAlchemy, JDBC or HTTP without what does not tell where it leads: driver, user, case of the
    host, default port. The file of SQLite as a path. Other texts stay.

    >>> _same_spelling("postgres://me@DB/lake"), _same_spelling("sqlite+pysqlite:////data//meta.db")
    ('postgresql://db:5432/lake', '/data/meta.db')
    """
    match = _URL.fullmatch(url.strip())
    if match is None or not (match["jdbc"] or match["rest"].startswith("//")):
        return url.rstrip("/")
    backend, rest = re.sub("^postgres$", "postgresql", match["backend"].lower()), match["rest"]
    if backend == "sqlite":
        file = (rest if match["jdbc"] else rest.removeprefix("///")).partition("?")[0].removeprefix("file:")
        return os.path.realpath(re.sub("^/+", "/", file)) if file.strip("/") else url
    parts = urlsplit(f"{backend}:{rest}")
    query = dict(parse_qsl(parts.query))
    user, _, hosts = parts.netloc.rpartition("@")
    is_database = backend in _DATABASES
    hosts = hosts.lower() or (query.get("host", "localhost") if is_database else "")
    port = query.get("port", _PORTS.get(backend, "")) if is_database else _PORTS.get(backend, "")
    with_ports = [
        host if re.search(r":\d+$", host) else f"{host.rstrip(':')}:{port}".rstrip(":")
        for host in hosts.split(",")
    ]
    path = unquote(parts.path).strip("/") or (
        query.get("dbname", user.partition(":")[0]) if is_database else ""
    )
    # A schema of its own is a store of its own.
    schema = f"?{query['options']}" if "options" in query else ""
    return f"{backend}://{','.join(with_ports)}/{path}{schema}"
