"""What a running job answers over its own Spark: queries, and whether its views equal their recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock

from pyspark.sql import SparkSession

from tautochrone.app.query_runner import SparkQueryRunner
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
        self._job_base, self._job_store, self._read_points = base, store, read_points
        self._definitions, self._graph = definitions, graph
        self._verifying = Lock()

    def verify(self, names: Sequence[str], checkpoint: int | None) -> Verification:
        """See `Verifier.verify`. One verification at a time: each uses all cores that the job needs."""
        named = find_all(self._definitions, names)
        if checkpoint is not None:
            self._job_store.checkpoints.get(checkpoint)
        return Verification(named=named, verdicts=self._verdicts(named, checkpoint))

    def _verdicts(self, named: Sequence[TableName], checkpoint: int | None) -> Iterator[Verdict]:
        if not self._verifying.acquire(blocking=False):
            raise QueryError("TOO_MANY_QUERIES", "Another verification is under way", retryable=True)
        try:
            yield from verify(
                self._job_base,
                self._job_store,
                self._read_points,
                self._definitions,
                self._graph,
                named or list(self._graph.order),
                checkpoint,
            )
        finally:
            self._verifying.release()
