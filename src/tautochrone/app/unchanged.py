"""What a one-shot run knows of its news before Spark starts: without any, it starts none.

At its end a run that was complete writes down what it depended on:

    <storage>/last-run/<hash of the job>.json    {"program": …, "fence": 7, "checkpoint": 3, …}

The next run compares: definitions, settings and environment; who owned the job last, and its newest
checkpoint; the names, sizes and times of the files in the folders of sources; and the state of each table,
which maintenance leaves as it is. When all of it is the same, this run is recorded in the store and over.
Whatever is not known without Spark, such as how far a topic goes, is a reason to write nothing down.

What is compared is taken before a run reads its sources, so that what comes meanwhile is news for the next
one. Only the job's own tables are taken at its end.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from enum import Enum, auto
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from tautochrone.app.source_ends import CaptureEnd, SourceEnds, capture_ends, is_topic, news_of, source_ends
from tautochrone.errors import MetaError, TautochroneError
from tautochrone.model import events
from tautochrone.model.effects import Step
from tautochrone.model.jobs import JobStatus, Liveness
from tautochrone.model.moments import now_ms
from tautochrone.model.names import TableName, describe_input, is_file_table, is_shadow_table
from tautochrone.model.reason import Reason, ReasonCode, joined_reasons
from tautochrone.model.run_report import RunEnd
from tautochrone.project.readable_code import files_read
from tautochrone.project.spec import INVARIANTS_FOLDER

if TYPE_CHECKING:
    from tautochrone.meta import Store
    from tautochrone.project.graph import ResolvedFlow
    from tautochrone.project.settings import Settings
    from tautochrone.project.spec import PipelineSpec
    from tautochrone.runtime.job.job import Job
    from tautochrone.runtime.job.ownership import Ownership
    from tautochrone.runtime.loop.run import Run, RunState

__all__ = [
    "LastRun",
    "News",
    "SinceLastRun",
    "definitions_of",
    "end_without_news",
    "has_same_definitions",
    "last_run",
    "program_of",
    "run_and_remember",
    "since_last_run",
]

_FOLDER = "last-run"
_VALID_MS = 3_600_000
"""After an hour a run starts Spark in any case: it also maintains tables and compares them with the store."""
_MAX_FILES = 50_000
"""In all folders of a job. More of them are listed by Spark."""
_LITTLE_BYTES = 32_000_000
_LITTLE_CPU_MS = 20_000
"""What grew by no more, after a run that spent no more, is read before an optimising compiler pays. It is CPU
time, because how long a run takes depends on what else the machine does."""
_OF_SESSION = frozenset({"_", "OLDPWD", "PWD", "SHLVL", "TERM", "INVOCATION_ID", "JOURNAL_STREAM"})
"""Environment variables that differ between two starts of the same command."""
_OF_RESTARTS = "_TAUT_"
_FILES_IN = "files in "
_OF_MAINTENANCE = frozenset(
    {
        *("last-updated-ms", "metadata-log", "snapshots", "snapshot-log", "refs"),
        *("statistics", "partition-statistics"),
    }
)
"""Fields of a table's metadata that change without another state: the current snapshot is not one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """What a run depended on.

    Attributes:
        program: a hash of definitions, settings and environment.
        incarnation: of the store.
        folders, tables: of each folder a hash of its files, of each table a hash of its state.
        observed: the tables of which the checkpoint showed all that their sources held.
        sinks: that have the checkpoint.
        until_ms: when it is no longer valid, in epoch milliseconds.
        size: of the files in the folders, in bytes.
        cpu_ms: CPU time of the last run that started Spark, without the start.
        obstacle: why it cannot be told without Spark that nothing is new, as text; None: it can.
        unknown: why only a run can tell what came into its sources, as text; None: `since_last_run` can.
        ends: a `SourceEnds` as JSON.
    """

    program: str
    incarnation: str
    fence: int
    checkpoint: int
    folders: Mapping[str, str]
    tables: Mapping[str, str]
    observed: tuple[str, ...]
    sinks: tuple[str, ...]
    until_ms: int
    size: int
    cpu_ms: int
    obstacle: str | None = None
    unknown: str | None = None
    ends: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Folders:
    """Folders as they are: of each a hash of its files, and the bytes of all together."""

    hashes: Mapping[str, str]
    size: int


@dataclass(frozen=True, slots=True)
class _Watched:
    """What a run depends on, as it was before the run."""

    program: str | Reason
    folders: _Folders
    tables: Mapping[str, str]
    obstacle: Reason | None
    unknown: Reason | None
    sinks: tuple[str, ...]
    captures: Mapping[str, CaptureEnd]


def run_and_remember(job: Job, program: str | Reason, execution: Run, emit: events.Emit) -> RunState:
    """A one-shot run of everything, which writes down for the next one what it depended on.

    Args:
        program: of `program_of`, from before the definitions were loaded.
    """
    from tautochrone.spark.session.cpu_usage import cpu_ms

    if _file_of(job.settings) is None:
        emit(events.RunNotRemembered(reason=_not_remembered("a storage that is no local folder")))
        return execution.once()
    watched, before_ms = _watch(job, program), cpu_ms()
    obstacle = watched if isinstance(watched, Reason) else watched.obstacle
    if obstacle is not None:
        emit(events.RunNotRemembered(reason=obstacle))
    state = execution.once()
    if isinstance(watched, _Watched) and state == "COMPLETED":
        try:
            last = _last_run(job, watched, cpu_ms() - before_ms)
        except (OSError, TautochroneError) as error:
            # The run is complete, whatever a catalog answers now.
            emit(events.RunNotRemembered(reason=_not_remembered(f"{type(error).__name__}: {error}")))
        else:
            if last is not None:
                _write(_file_of(job.settings), last)
    return state


def _not_remembered(source: str) -> Reason:
    return Reason.of(ReasonCode.SOURCE_NOT_WATCHED, source=source)


def _last_run(job: Job, watched: _Watched, cpu_ms: int) -> LastRun | None:
    """What a run depended on that is complete; None if it has no checkpoint.

    Raises:
        OSError, TautochroneError: a table or the store does not answer.
    """
    store = job.store
    newest = store.checkpoints.latest_published(job.name)
    if newest is None:
        return None
    try:
        ends = source_ends(job, watched.captures)
    except TautochroneError:
        ends = None
    unknown = None if watched.unknown is None else str(watched.unknown)
    return LastRun(
        program=str(watched.program),
        incarnation=store.incarnation,
        fence=int(job.journal.fence),
        checkpoint=int(newest.number),
        folders=watched.folders.hashes,
        tables={**watched.tables, **_states(job.settings, job.graph.order)},
        observed=tuple(str(table) for table in job.graph.order if job.topology.ingestion_flows(table)),
        sinks=watched.sinks,
        until_ms=now_ms() + _VALID_MS,
        size=watched.folders.size,
        cpu_ms=cpu_ms,
        obstacle=None if watched.obstacle is None else str(watched.obstacle),
        unknown="a flow has no position in its source" if ends is None else unknown,
        ends=asdict(ends or SourceEnds()),
    )


class News(Enum):
    """What is known of a run's news before Spark starts."""

    NONE = auto()
    """The run is over."""
    LITTLE = auto()
    UNKNOWN = auto()


def last_run(settings: Settings, program: str | Reason) -> LastRun | None:
    """The last run, if it is remembered and was one of the same definitions, settings and environment, and
    what is new is known without Spark.

    Args:
        program: of `program_of`.
    """
    last = _read(_file_of(settings))
    if last is None or last.obstacle is not None:
        return None
    return last if now_ms() < last.until_ms and program == last.program else None


def end_without_news(
    settings: Settings, last: LastRun, ownership: Ownership, emit: events.Emit
) -> News | Reason:
    """End a one-shot run of which nothing is new: record it in the store, and emit its events.

    Returns:
        A reason: why sinks are left to a run with Spark, where nothing else is new.

    Raises:
        MetaError: `JOB_RUNNING`.
    """
    started = time.monotonic()
    from tautochrone.app.stores import existing_store
    from tautochrone.runtime.delivery.sinks_at_rest import COMPARED_ROWS

    try:
        with existing_store(settings) as store:
            observed_ms = store.now_ms()
            news = _news(store, settings, last)
            if news is not News.NONE:
                return news
            fence = _record(store, settings, last, ownership, emit, observed_ms)
    except MetaError as error:
        if error.error_class == "JOB_RUNNING":
            raise
        # The run itself says what is wrong with the store.
        return News.UNKNOWN
    if fence != last.fence + 1:
        # Another process ran the job since the comparison.
        return News.UNKNOWN
    _write(_file_of(settings), replace(last, fence=fence))
    reason = Reason.of(ReasonCode.UNCHANGED_SINCE_LAST_RUN)
    if last.sinks:
        reason = Reason.of(ReasonCode.UNCHANGED_WITH_SINKS, rows=COMPARED_ROWS)
    duration_ms = round((time.monotonic() - started) * 1000)
    emit(events.NoNews(checkpoint=last.checkpoint, duration_ms=duration_ms, reason=reason))
    emit(events.Run(state="COMPLETED", problems=[]))
    return News.NONE


def _news(store: Store, settings: Settings, last: LastRun) -> News | Reason:
    newest = store.checkpoints.latest_published(settings.job)
    if (store.incarnation, int(store.jobs.newest_fence(settings.job))) != (last.incarnation, last.fence):
        return News.UNKNOWN
    if newest is None or newest.number != last.checkpoint:
        return News.UNKNOWN
    try:
        if _states(settings, map(TableName.parse, last.tables)) != last.tables:
            return News.UNKNOWN
        folders = _folders_now(last.folders)
    except (OSError, TautochroneError):
        return News.UNKNOWN
    if folders.hashes == last.folders:
        return _why_sinks_lack_something(store, settings, last) or News.NONE
    is_little = folders.size - last.size <= _LITTLE_BYTES and last.cpu_ms <= _LITTLE_CPU_MS
    return News.LITTLE if is_little else News.UNKNOWN


def _why_sinks_lack_something(store: Store, settings: Settings, last: LastRun) -> Reason | None:
    """Why a sink may not show the newest checkpoint, or somebody may have changed one."""
    if not last.sinks:
        return None
    from tautochrone.runtime.delivery.sinks_at_rest import why_not_at_rest

    return why_not_at_rest(store, settings, last.sinks, last.checkpoint)


def has_same_definitions(store: Store, settings: Settings, program: str) -> bool:
    """Whether a job's last run was complete and over the same definitions, settings and environment, and
    nobody wrote a table of it, or one that it reads, since. Without Spark, and not known of a job with sinks,
    of which a plan says more than that.

    Args:
        program: of `program_of`.
    """
    last = _read(_file_of(settings))
    if last is None or last.obstacle or last.sinks:
        return False
    if last.program != program or store.incarnation != last.incarnation:
        return False
    newest = store.checkpoints.latest_published(settings.job)
    fence = int(store.jobs.newest_fence(settings.job))
    if newest is None or (fence, newest.number) != (last.fence, last.checkpoint):
        return False
    try:
        return _states(settings, map(TableName.parse, last.tables)) == last.tables
    except (OSError, TautochroneError):
        return False


def _record(
    store: Store,
    settings: Settings,
    last: LastRun,
    ownership: Ownership,
    emit: events.Emit,
    observed_ms: int,
) -> int:
    """Let the store know that the job ran, and that its newest checkpoint shows all that its sources held."""
    from tautochrone.runtime.job.effects import effects_from_environment

    job = settings.job
    fence = effects_from_environment().perform(
        Step.META_TAKE_OVER,
        job,
        lambda: ownership.claim_when_free(
            store, job, emit, lambda claim: store.jobs.take_over(job, lease_ms=settings.lease_ms, claim=claim)
        ),
    )
    if fence == last.fence + 1:
        store.jobs.heartbeat(
            job,
            fence,
            settings.lease_ms,
            observed_ms=observed_ms,
            observations={TableName.parse(name): observed_ms for name in last.observed},
            checkpoint=last.checkpoint,
        )
    store.jobs.end_run(job, fence, RunEnd())
    return int(fence)


def since_last_run(settings: Settings, job: JobStatus) -> Reason | None:
    """What came since the last run of a job, without Spark and without another run; None for a job that did
    not end, or is none of the project's."""
    if job.name != settings.job or job.liveness is not Liveness.ENDED:
        return None
    last = _read(_file_of(settings))
    if last is None:
        return Reason.of(ReasonCode.NEWS_NOT_KNOWN, cause="it failed, or its storage is not a local folder")
    if last.fence != job.fence:
        return Reason.of(
            ReasonCode.NEWS_NOT_KNOWN, cause="the newest run was not complete, or a command had the job since"
        )
    try:
        now = _folders_now(last.folders).hashes
        tables = _states(settings, map(TableName.parse, last.tables))
    except (OSError, TautochroneError) as error:
        return Reason.of(ReasonCode.NEWS_NOT_KNOWN, cause=f"{type(error).__name__}: {error}")
    changed = [folder for folder in last.folders if now.get(folder) != last.folders[folder]]
    changed += [table for table in last.tables if tables.get(table) != last.tables[table]]
    news = [Reason.of(ReasonCode.FILES_SINCE_LAST_RUN, folders=", ".join(changed))] if changed else []
    try:
        ends = SourceEnds.from_json(last.ends)
    except (AttributeError, KeyError, TypeError):
        return Reason.of(ReasonCode.NEWS_NOT_KNOWN, cause="another release of Tautochrone ran")
    news += news_of(ends, settings.confs)
    if news:
        return joined_reasons(news)
    if last.unknown is not None:
        return Reason.of(ReasonCode.NEWS_NOT_KNOWN, cause=last.unknown)
    return Reason.of(ReasonCode.NOTHING_SINCE_LAST_RUN)


@dataclass(slots=True)
class _Answer:
    """What came since the last run of a job, and until when that counts, by the monotonic clock."""

    job: JobStatus
    reason: Reason | None
    until_s: float


class SinceLastRun:
    """`since_last_run` for readers who ask often, such as pages that renew themselves: it goes through all
    folders of sources and asks brokers, so an answer counts for some seconds. Safe to share between threads.

    Args:
        settings: the project's; None: nothing is known of any job.
        counts_s: how long an answer counts; `unknown_counts_s`: one that says that it is not known.
    """

    def __init__(
        self, settings: Settings | None, *, counts_s: float = 5.0, unknown_counts_s: float = 60.0
    ) -> None:
        self._settings, self._counts_s, self._unknown_counts_s = settings, counts_s, unknown_counts_s
        self._lock = Lock()
        self._answers: dict[str, _Answer] = {}
        self._questions: dict[str, Lock] = {}

    def __call__(self, job: JobStatus) -> Reason | None:
        if self._settings is None:
            return None
        with self._lock:
            question = self._questions.setdefault(job.name, Lock())
        # Whoever asks of the same job meanwhile waits for the same answer.
        with question:
            answer = self._answers.get(job.name)
            if answer is None or not _counts(answer, job):
                reason = since_last_run(self._settings, job)
                is_unknown = reason is not None and reason.code is ReasonCode.NEWS_NOT_KNOWN
                counts_s = max(self._counts_s, self._unknown_counts_s if is_unknown else 0)
                answer = self._answers[job.name] = _Answer(job, reason, time.monotonic() + counts_s)
            return answer.reason


def _counts(answer: _Answer, job: JobStatus) -> bool:
    is_same = (answer.job.fence, answer.job.liveness) == (job.fence, job.liveness)
    return is_same and time.monotonic() < answer.until_s


# -- what a run depends on -----------------------------------------------------------------------------------


def _watch(job: Job, program: str | Reason) -> _Watched | Reason:
    """What a run that begins depends on, as far as that is known without Spark; or why nothing of it is."""
    from tautochrone.runtime.delivery.sinks_at_rest import sinks_to_ask

    sinks = sinks_to_ask(job)
    obstacle = program if isinstance(program, Reason) else _why_not_watched(job)
    if isinstance(sinks, Reason):
        obstacle, sinks = obstacle or sinks, ()
    sources = {name for flow in _ingestion_flows(job) for name in flow.sources}
    folders = {name.removeprefix(_FILES_IN) for name in sources if _is_local_folder(name)}
    try:
        tables = _states(job.settings, job.external_tables())
        captures = capture_ends(job)
        unknown = _unknown_source(job, captures, asks_topics=True)
        return _Watched(program, _folders_now(folders), tables, obstacle, unknown, sinks, captures)
    except (OSError, TautochroneError) as error:
        return _not_remembered(f"{type(error).__name__}: {error}")


def _ingestion_flows(job: Job) -> list[ResolvedFlow]:
    return [flow for table in job.graph.order for flow in job.topology.ingestion_flows(table)]


def _why_not_watched(job: Job) -> Reason | None:
    """Why it cannot be told without Spark that a run would have nothing to do."""
    settings = job.settings
    if settings.jobs or job.tables_of_other_jobs() or settings.align_ms is not None:
        return Reason.of(ReasonCode.SOURCE_NOT_WATCHED, source="another job")
    if settings.target is not None and settings.target.roots_from is not None:
        return Reason.of(ReasonCode.SOURCE_NOT_WATCHED, source=f"target {settings.target.roots_from}")
    return _unknown_source(job, (), asks_topics=False)


def _unknown_source(job: Job, captures: Collection[str], *, asks_topics: bool) -> Reason | None:
    """A source of which only Spark knows what is in it.

    Args:
        captures: flows whose databases are asked for the end of their logs.
        asks_topics: topics are asked for their offsets.
    """
    topology = job.topology
    for table in job.graph.order:
        for flow in topology.flows(table):
            if flow.flow.name in captures:
                continue
            source = _unwatched_source(flow, is_view=topology.is_view(table), asks_topics=asks_topics)
            if source is not None:
                return Reason.of(ReasonCode.SOURCE_NOT_WATCHED, source=source)
    return None


def _unwatched_source(flow: ResolvedFlow, *, is_view: bool, asks_topics: bool) -> str | None:
    inputs = flow.inputs
    if inputs.unversioned or inputs.clocks:
        return ", ".join([*inputs.unversioned, *("the time" for _ in sorted(map(str, inputs.clocks))[:1])])
    if any(map(is_file_table, inputs.batch)):
        return "files that a batch query reads"
    shadow = next(filter(is_shadow_table, sorted(inputs.tables)), None)
    if shadow is not None:
        return describe_input(shadow)
    if not is_view and flow.stateful:
        return "a stream with state"
    if inputs.external_streams and not flow.sources:
        return "a stream"
    unwatched = (
        source
        for source in sorted(flow.sources)
        if not (_is_local_folder(source) or (asks_topics and is_topic(source)))
    )
    return next(unwatched, None)


def _is_local_folder(source: str) -> bool:
    """Whether a source is a folder, or a file, of this machine without wildcards."""
    path = source.removeprefix(_FILES_IN)
    return path != source and path.startswith("/") and not set(path) & set("*?[]{}\\,%")


def program_of(spec: PipelineSpec, settings: Settings) -> str | Reason:
    """A hash of the definitions, the settings and the environment; or why definitions may depend on more, or
    nothing is remembered of this project."""
    if _file_of(settings) is None:
        return _not_remembered("a storage that is no local folder")
    try:
        return _program_of(spec, settings)
    except (OSError, ValueError, RecursionError) as error:
        # The run itself says what is wrong with a file.
        return Reason.of(ReasonCode.CODE_MAY_READ, position=spec.path.name, what=type(error).__name__)


def _program_of(spec: PipelineSpec, settings: Settings) -> str | Reason:
    contents = _definition_files(spec)
    if isinstance(contents, Reason):
        return contents
    root = spec.root.resolve()
    configuration = {file: file.read_bytes() for file in (*root.glob("*.toml"), spec.path.resolve())}
    python = [sys.version, sys.path, [_importable(entry) for entry in sys.path], os.getcwd()]
    return _digest([python, _environment(), spec, settings], {**contents, **configuration})


def definitions_of(spec: PipelineSpec, settings: Settings) -> str | Reason:
    """A hash of the definitions and of the settings that they are evaluated with; or why they may depend on
    more. The environment counts where they read it.

    Two processes with the same hash load the same definitions.
    """
    try:
        contents = _definition_files(spec)
    except (OSError, ValueError, RecursionError) as error:
        return Reason.of(ReasonCode.CODE_MAY_READ, position=spec.path.name, what=type(error).__name__)
    if isinstance(contents, Reason):
        return contents
    reads_environment = any(word in text for text in contents.values() for word in (b"environ", b"getenv"))
    evaluated_with = [
        spec,
        settings.confs,
        settings.spark.conf,
        settings.other_formats,
        settings.other_catalogs,
        settings.bad_records,
        _environment() if reads_environment else None,
    ]
    return _digest(evaluated_with, contents)


def _definition_files(spec: PipelineSpec) -> dict[Path, bytes] | Reason:
    """The content of each file with definitions or imported by one; or why they may read more.

    Raises:
        OSError, ValueError, RecursionError: one cannot be read.
    """
    root = spec.root.resolve()
    definitions = {file.resolve() for pattern in spec.libraries for file in _matches(root, pattern)}
    files = files_read(definitions, root)
    if isinstance(files, Reason):
        return files
    return {file: file.read_bytes() for file in {*files, *_matches(root, f"{INVARIANTS_FOLDER}/*.sql")}}


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_SESSION and not name.startswith(_OF_RESTARTS)
    }


def _digest(parts: object, contents: Mapping[Path, bytes]) -> str:
    digest = hashlib.sha256(json.dumps(parts, default=_json_value, sort_keys=True).encode())
    for file, content in sorted(contents.items()):
        digest.update(json.dumps([str(file), len(content)]).encode() + content)
    return digest.hexdigest()


def _json_value(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return sorted(map(str, value)) if isinstance(value, Set) else repr(value)


def _matches(root: Path, pattern: str) -> Iterable[Path]:
    path = Path(pattern)
    base, relative = (root, pattern) if not path.is_absolute() else (Path(path.anchor), pattern[1:])
    return (file for file in base.glob(relative) if file.is_file() and "__pycache__" not in file.parts)


def _importable(entry: str) -> list[str] | int | None:
    """What can be imported from an entry of `sys.path`, with the versions of installed packages.

    The time of a folder does not tell: tools leave their caches in the folder that they are started in.
    """
    try:
        folder = Path(entry or ".")
        if not folder.is_dir():
            return folder.stat().st_mtime_ns
        return sorted(name for name in os.listdir(folder) if _is_importable(folder / name))
    except OSError:
        return None


def _is_importable(path: Path) -> bool:
    """A folder without an `__init__.py` hides no module of this name that comes later in `sys.path`."""
    if path.name.endswith((".dist-info", ".egg-info", ".egg-link", ".pth", ".py", ".pyc", ".so")):
        return True
    return path.name.isidentifier() and (path / "__init__.py").exists()


def _folders_now(folders: Iterable[str]) -> _Folders:
    """Of each folder a hash of the names, sizes and times of all files in it.

    Raises:
        OSError: one cannot be listed, or they have too many files.
    """
    left, size = _MAX_FILES, 0
    hashes: dict[str, str] = {}
    for folder in sorted(folders):
        entries = _entries(folder, left)
        left -= len(entries)
        size += sum(entry[1] for entry in entries)
        hashes[folder] = hashlib.sha256(json.dumps(sorted(entries)).encode()).hexdigest()
    return _Folders(hashes, size)


def _entries(folder: str, limit: int) -> list[tuple[str, int, int]]:
    """Name, size and time of each file in a folder, or of a file by itself."""
    entries: list[tuple[str, int, int]] = []
    for path, _, names in os.walk(folder, onerror=_raise, followlinks=True):
        for name in names:
            status = (Path(path) / name).stat()
            entries.append((f"{path}/{name}", status.st_size, status.st_mtime_ns))
        if len(entries) > limit:
            raise OSError(f"more than {_MAX_FILES} files in the folders of sources")
    if not entries:
        status = Path(folder).stat()
        entries.append((folder, status.st_size if Path(folder).is_file() else 0, status.st_mtime_ns))
    return entries


def _raise(error: OSError) -> None:
    raise error


def _states(settings: Settings, tables: Iterable[TableName]) -> dict[str, str]:
    """A hash of the newest metadata of each table, without what maintenance changes."""
    from tautochrone.rest_catalog.metadata import metadata_source

    source = metadata_source(settings.catalog)
    return {str(table): _state(source.load(table)[1]) for table in tables}


def _state(metadata: Mapping[str, Any]) -> str:
    state = {key: value for key, value in metadata.items() if key not in _OF_MAINTENANCE}
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


# -- the file ------------------------------------------------------------------------------------------------


def _file_of(settings: Settings) -> Path | None:
    if "://" in settings.storage:
        return None
    name = hashlib.sha256(settings.job.encode()).hexdigest()[:16]
    return Path(settings.storage) / _FOLDER / f"{name}.json"


def _read(file: Path | None) -> LastRun | None:
    try:
        return None if file is None else LastRun(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        # There is none, or another release wrote it.
        return None


def _write(file: Path | None, last: LastRun) -> None:
    """A storage that cannot be written to has no such file: then each run starts Spark."""
    if file is None:
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(asdict(last)))
        new.replace(file)
