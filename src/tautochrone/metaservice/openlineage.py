"""Refreshes as OpenLineage events, for catalogs of lineage such as Marquez or DataHub: a listener of a run.

For each refresh that did something there is a START and a COMPLETE, for each that failed a START and a FAIL.
Events are sent by a thread of their own, so a slow or absent receiver never holds up a run; what cannot be
delivered is dropped, with the event `openlineage_failed`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from tautochrone.errors import SettingsError
from tautochrone.model import events
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.names import TableName

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent, RunState
    from openlineage.client.transport import Transport

__all__ = ["OpenLineage", "transport_to"]

_PRODUCER = "tautochrone"
_QUEUE_SIZE = 10_000
_CLOSE_TIMEOUT_S = 10.0


def transport_to(target: str, root: Path) -> Transport:
    """The transport to a URL, or to a file that gets one line of JSON for each event.

    Args:
        root: where a relative path starts.

    Raises:
        SettingsError: `OPENLINEAGE_MISSING`, the library is not installed.
    """
    try:
        from openlineage.client.transport.file import FileConfig, FileTransport
        from openlineage.client.transport.http import HttpConfig, HttpTransport
    except ImportError as error:
        raise SettingsError(
            "OPENLINEAGE_MISSING",
            f"[events] openlineage is set, but {error.name or 'openlineage-python'} is not installed",
            hint="pip install 'tautochrone[openlineage]'",
        ) from error
    if target.startswith(("http://", "https://")):
        return HttpTransport(HttpConfig(url=target))
    return FileTransport(FileConfig(log_file_path=str(root / target), append=True))


class OpenLineage:
    """A listener (`model.events.Emit`); `close` delivers what waits, for at most ten seconds.

    Args:
        transport: see `transport_to`.
        emit: receives `openlineage_failed`.
        pipeline: the first part of each job's name; the second is the dataset's.
        lake: the namespace of datasets: the catalog's warehouse.
        inputs: what each dataset reads.
    """

    def __init__(
        self,
        transport: Transport,
        emit: events.Emit,
        *,
        pipeline: str,
        lake: str,
        inputs: Mapping[TableName, Collection[TableName]],
    ) -> None:
        self._transport = transport
        self._emit = emit
        self._pipeline = pipeline
        self._lake = lake
        self._inputs = {str(name): sorted(read) for name, read in inputs.items()}
        self._waiting: Queue[RunEvent] = Queue(_QUEUE_SIZE)
        self._closing = Event()
        self._sender = Thread(target=self._send, name="tautochrone-openlineage", daemon=True)
        self._sender.start()

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Refresh) and event.mode is not RefreshMode.NO_DATA:
            self._refreshed(event)
        elif isinstance(event, events.RefreshFailed):
            self._failed(event)

    def close(self) -> None:
        self._closing.set()
        self._sender.join(_CLOSE_TIMEOUT_S)
        left = self._waiting.qsize()
        if left:
            self._emit(
                events.OpenlineageFailed(dropped=left, error="the run ended before they were delivered")
            )

    def _refreshed(self, event: events.Refresh) -> None:
        from openlineage.client.event_v2 import RunState
        from openlineage.client.generated.output_statistics_output_dataset import (
            OutputStatisticsOutputDatasetFacet,
        )

        statistics = OutputStatisticsOutputDatasetFacet(rowCount=event.rows_inserted)
        self._put(RunState.COMPLETE, event.dataset, event.duration_ms, {}, {"outputStatistics": statistics})

    def _failed(self, event: events.RefreshFailed) -> None:
        from openlineage.client.event_v2 import RunState
        from openlineage.client.generated.error_message_run import ErrorMessageRunFacet

        error = ErrorMessageRunFacet(message=str(event.error), programmingLanguage="SQL")
        self._put(RunState.FAIL, event.dataset, 0, {"errorMessage": error}, {})

    def _put(
        self,
        state: RunState,
        dataset: str,
        duration_ms: int,
        of_run: dict[str, Any],
        of_output: dict[str, Any],
    ) -> None:
        from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
        from openlineage.client.uuid import generate_new_uuid

        ended = datetime.now(UTC)
        began = ended - timedelta(milliseconds=duration_ms)
        name = TableName.parse(dataset)
        run = str(generate_new_uuid(began))
        for event_type, event_time, in_run, in_output in (
            (RunState.START, began, {}, {}),
            (state, ended, of_run, of_output),
        ):
            event = RunEvent(
                eventTime=event_time.isoformat(),
                eventType=event_type,
                producer=_PRODUCER,
                run=Run(runId=run, facets=in_run),
                job=Job(namespace=_PRODUCER, name=f"{self._pipeline}.{name.without_catalog}"),
                inputs=[
                    InputDataset(namespace=self._lake, name=read.without_catalog)
                    for read in self._inputs.get(str(name), ())
                ],
                outputs=[
                    OutputDataset(namespace=self._lake, name=name.without_catalog, outputFacets=in_output)
                ],
            )
            try:
                self._waiting.put_nowait(event)
            except Full:
                self._emit(events.OpenlineageFailed(dropped=1, error=f"{_QUEUE_SIZE} events wait already"))

    def _send(self) -> None:
        while True:
            try:
                event = self._waiting.get(timeout=0.2)
            except Empty:
                if self._closing.is_set():
                    return
                continue
            try:
                self._transport.emit(event)
            except Exception as error:
                # A library's transport raises what its own libraries raise.
                self._emit(events.OpenlineageFailed(dropped=1, error=f"{type(error).__name__}: {error}"))
