"""What sinks and publications have of a dataset that left the project: dropped, or under its new name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from tautochrone.errors import SinkError
from tautochrone.model.effects import Step
from tautochrone.model.lake import local_folder
from tautochrone.model.names import TableName
from tautochrone.model.s3 import is_on_s3
from tautochrone.model.sink import DropsMirrors, RenamesMirrors, Sink
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.topology import declared_sinks
from tautochrone.sinks import has_adapter, open_sink

__all__ = ["Mirror", "drop_mirrors", "mirrors_of", "rename_mirrors", "require_free_in_sinks"]


@dataclass(frozen=True, slots=True)
class Mirror:
    """What a sink has of a table. `can_drop`: the sink can drop it."""

    sink: str
    name: str
    can_drop: bool
    can_rename: bool


@dataclass(frozen=True, slots=True)
class _Declared:
    name: str
    format: str
    options: Mapping[str, str] = field(repr=False)


def mirrors_of(job: Job, table: TableName) -> list[Mirror]:
    """What the sinks of the job have of a table.

    Raises:
        SinkError: a sink does not answer.
    """
    mirrors: list[Mirror] = []
    answering: set[str] = set()
    for declared in _declared(job):
        with _opened(declared) as sink:
            if not isinstance(sink, DropsMirrors):
                continue
            answering.add(declared.name)
            name = _name_in(sink, table)
            if name is not None:
                mirrors.append(Mirror(declared.name, name, True, isinstance(sink, RenamesMirrors)))
    for status in job.store.deliveries.sinks():
        shown = () if status.delivered is None else status.delivered.versions
        if status.job == job.name and status.name not in answering and table in (*status.tables, *shown):
            mirrors.append(Mirror(status.name, str(table), False, False))
    return mirrors


def drop_mirrors(job: Job, table: TableName) -> None:
    """Drop what the sinks of the job have of a table. Repeatable.

    Raises:
        SinkError: a sink does not answer, or belongs to another lake.
    """
    for declared in _declared(job):
        with _opened(declared) as sink:
            if isinstance(sink, DropsMirrors) and _name_in(sink, table) is not None:
                sink.claim(job.lake_id or "")
                job.effects.perform(Step.SINK_DROP, declared.name, partial(sink.drop_mirror, table))


def rename_mirrors(job: Job, old: TableName, new: TableName) -> None:
    """Let what the sinks of the job have of `old` go on under the new name. Repeatable.

    Raises:
        SinkError: as of `drop_mirrors`; `SINK_NAME_TAKEN`.
    """
    for declared in _declared(job):
        with _opened(declared) as sink:
            if isinstance(sink, RenamesMirrors) and _name_in(sink, old) is not None:
                sink.claim(job.lake_id or "")
                job.effects.perform(Step.SINK_RENAME, declared.name, partial(sink.rename_mirror, old, new))


def require_free_in_sinks(job: Job, old: TableName, new: TableName) -> None:
    """Refuse a new name under which a sink has something already, where it must rename what it has of `old`.

    Raises:
        SinkError: `RENAME_TARGET_EXISTS`; a sink does not answer.
    """
    for declared in _declared(job):
        with _opened(declared) as sink:
            if not isinstance(sink, RenamesMirrors) or _name_in(sink, old) is None:
                continue
            if _is_taken(sink, new):
                raise SinkError(
                    "RENAME_TARGET_EXISTS",
                    f"Sink {declared.name} has a table of the name {new} already, so that of {old} cannot "
                    "get it",
                    hint="drop or rename that table in the sink, then rename",
                    sqlstate="42P07",
                )


def _is_taken(sink: DropsMirrors, table: TableName) -> bool:
    try:
        return sink.mirror_of(table) is not None
    except SinkError as error:
        if error.error_class != "SINK_NAME_TAKEN":
            raise
        return True


def _name_in(sink: DropsMirrors, table: TableName) -> str | None:
    try:
        return sink.mirror_of(table)
    except SinkError as error:
        if error.error_class != "SINK_NAME_TAKEN":
            raise
        # What has its name there is somebody else's.
        return None


def _declared(job: Job) -> Sequence[_Declared]:
    """The sinks of the job with an adapter, those too that no table goes to any more."""
    settings = job.settings.sinks
    sinks = {
        sink.name: _Declared(sink.name, sink.format, sink.options)
        for sink in declared_sinks(job.topology, settings)
    }
    delivered = {sink.name for sink in job.store.deliveries.sinks()}
    for name, section in settings.items():
        if name in sinks or section.format is None or not has_adapter(section.format):
            continue
        settled = _Declared(name, section.format, section.options)
        if name in delivered or _may_have_tables(settled):
            sinks[name] = settled
    return tuple(sinks.values())


def _may_have_tables(sink: _Declared) -> bool:
    """Whether a sink is asked of which the store knows no delivery: it may be new, or have forgotten it.

    All publications have settings. Without the package of the server nothing was published from here.
    """
    folder = sink.options.get("folder", "")
    if not is_on_s3(folder):
        return local_folder(folder) is not None
    try:
        with _opened(sink):
            return True
    except SinkError as error:
        if error.error_class != "SINK_PACKAGE_MISSING":
            raise
        return False


@contextmanager
def _opened(declared: _Declared) -> Iterator[Sink]:
    sink = open_sink(declared.name, declared.format, declared.options)
    try:
        yield sink
    finally:
        sink.close()
