"""`taut verify`: a continuous run of the same definitions recomputes its views; else a Spark of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tautochrone.app.locate import Options, locate
from tautochrone.app.remote import RemoteReader
from tautochrone.app.serving import ServingProcess, serving_processes
from tautochrone.app.unchanged import definitions_of
from tautochrone.errors import MetaError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.verdict import Verification
from tautochrone.project.settings import Settings

__all__ = ["verification_by_run", "verification_by_spark"]


@contextmanager
def verification_by_run(
    options: Options, names: Sequence[str], checkpoint: int | None
) -> Iterator[Verification | Reason | None]:
    """The verdicts of a continuous run of this project on this machine; why it gives none; None: none runs.

    A run that was started with other definitions would compare its own ones.

    Args:
        names, checkpoint: see `model.verdict.Verifier`.

    Raises:
        SpecError, SettingsError: what is wrong with the project.
        TautochroneError: as of `Verifier.verify`; within the block from the verdicts, also
            `META_SERVICE_UNREACHABLE` (retryable) when the run ends meanwhile.
    """
    spec, settings = locate(options)
    # `taut serve` has no definitions.
    runs = [process for process in serving_processes(spec, settings) if process.has_spark]
    if not runs:
        yield None
        return
    definitions = definitions_of(spec, settings)
    if isinstance(definitions, Reason):
        yield definitions
        return
    run = next((run for run in runs if run.definitions == definitions), None)
    if run is None:
        yield Reason.of(ReasonCode.RUN_HAS_OTHER_DEFINITIONS, uri=runs[0].uri)
        return
    with _reader_of(run, settings) as reader:
        yield _begun(reader, run, names, checkpoint)


def _reader_of(run: ServingProcess, settings: Settings) -> RemoteReader:
    return RemoteReader(run.uri, settings.meta_token, key=run.key)


def _begun(
    reader: RemoteReader, run: ServingProcess, names: Sequence[str], checkpoint: int | None
) -> Verification | Reason:
    try:
        return reader.verify(names, checkpoint)
    except MetaError as error:
        return Reason.of(ReasonCode.SERVICE_DID_NOT_ANSWER, uri=run.uri, error_class=error.error_class)


@contextmanager
def verification_by_spark(
    options: Options, names: Sequence[str], checkpoint: int | None
) -> Iterator[Verification]:
    """The verdicts of a Spark that starts and ends with the block.

    Raises:
        TautochroneError: what is wrong with the project; as of `Verifier.verify`.
    """
    from tautochrone.app.launch import locate_and_launch

    located = locate_and_launch(options, reads_store=True)
    from tautochrone.app.open import Project, log_event
    from tautochrone.runtime.job.topology import find_all
    from tautochrone.runtime.views.verify import verify

    with Project(options, log_event, short_lived=True, located=located) as project:
        definitions, graph = project.analysed()
        store = project.store()
        named = find_all(definitions, names)
        read_points = project.open_read_point_server(store)
        views = named or list(graph.order)
        verdicts = verify(project.base, store, read_points, definitions, graph, views, checkpoint)
        yield Verification(named=named, verdicts=verdicts)
