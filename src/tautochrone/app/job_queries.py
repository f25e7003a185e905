"""What a running job answers over its own Spark: queries, and whether its views equal their recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from threading import Event, Lock
from uuid import uuid4

from pyspark.sql import SparkSession

from tautochrone.app.query_runner import SparkQueryRunner, cancel_jobs
from tautochrone.errors import QueryError
from tautochrone.meta import Store
from tautochrone.model.catalog import ReadPointServer
from tautochrone.model.names import TableName
from tautochrone.model.verdict import Verdict, Verification
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph
from tautochrone.project.settings import Settings
from tautochrone.project.spec import PipelineSpec
from tautochrone.runtime.job.topology import find_all
from tautochrone.runtime.views.verify import verify

__all__ = ["JobQueries"]


class JobQueries(SparkQueryRunner):
    """A `Verifier` too. Views are recomputed by the definitions that the job runs.

    Args:
        spec, settings, store: as of `SparkQueryRunner`.
        base: the job's Spark.
        read_points: serves checkpoints as catalogs.
        definitions, graph: of the whole project, as they were when the job started.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        settings: Settings,
        store: Store,
        base: SparkSession,
        read_points: ReadPointServer,
        definitions: Definitions,
        graph: Graph,
    ) -> None:
        super().__init__(spec, settings, store, base=base)
        self._session, self._read_points = base, read_points
        self._definitions, self._graph = definitions, graph
        self._verifying = Lock()

    def verify(self, names: Sequence[str], checkpoint: int | None) -> Verification:
        """See `Verifier.verify`. One verification at a time: each uses all cores that the job needs."""
        named = find_all(self._definitions, names)
        if checkpoint is not None:
            self._store.checkpoints.get(checkpoint)
        group, stopped = f"verification {uuid4().hex[:8]}", Event()
        return Verification(
            named=named,
            verdicts=self._verdicts(named, checkpoint, group, stopped),
            stop=partial(self._stop, group, stopped),
        )

    def _verdicts(
        self, named: Sequence[TableName], checkpoint: int | None, group: str, stopped: Event
    ) -> Iterator[Verdict]:
        if not self._verifying.acquire(blocking=False):
            raise QueryError("TOO_MANY_QUERIES", "Another verification is under way", retryable=True)
        try:
            verdicts = verify(
                self._session,
                self._store,
                self._read_points,
                self._definitions,
                self._graph,
                named or list(self._graph.order),
                checkpoint,
            )
            # Its pins end with it.
            with closing(verdicts):
                while not stopped.is_set():
                    # The group belongs to the thread, and each verdict may be computed by another one.
                    self._session.sparkContext.setJobGroup(group, "verification", interruptOnCancel=True)
                    verdict = next(verdicts, None)
                    if verdict is None:
                        return
                    yield verdict
        finally:
            self._verifying.release()

    def _stop(self, group: str, stopped: Event) -> None:
        if stopped.is_set():
            return
        stopped.set()
        cancel_jobs(self._session, group)
