"""`python -m tautochrone.app.warm_up FILE [--by-class-loader]`: runs the sample project and some queries,
then Java writes the classes that it loaded into FILE. Called by `spark.session.java.make_archives` only."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkContext

from tautochrone.app.locate import Options
from tautochrone.app.open import Project
from tautochrone.project.spec import init_project
from tautochrone.runtime.job.topology import select
from tautochrone.runtime.loop.run import Run, RunState
from tautochrone.spark.jvm.driver_calls import write_compiled
from tautochrone.spark.session.jars import CORE, resolve
from tautochrone.spark.sources.batch_shares import batch_shares

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tautochrone.model import events

_NEW_ORDERS = ('{"id": 4, "product": "tea", "price": 3.50}', '{"id": 5, "product": "milk", "price": 1.20}')
_STATEMENTS = """
CREATE TABLE visits (id BIGINT, customer STRING, at TIMESTAMP, price DECIMAL(10, 2), tags ARRAY<STRING>);
INSERT INTO visits
SELECT id, CAST(id % 3 AS STRING), timestamp_seconds(id), id / 7, array('a', 'b') FROM range(100);
CREATE TABLE totals (customer STRING, visits BIGINT, value DECIMAL(30, 2));
INSERT INTO totals SELECT customer, count(*), sum(price) FROM visits GROUP BY customer;
MERGE INTO totals t USING (
  SELECT customer, count(DISTINCT at) n FROM visits WHERE id < 9 GROUP BY customer
) s ON t.customer = s.customer
WHEN MATCHED THEN UPDATE SET visits = s.n
WHEN NOT MATCHED THEN INSERT (customer, visits, value) VALUES (s.customer, s.n, 0);
DELETE FROM visits WHERE id = 7
"""
_QUERIES = """
SELECT v.id, t.value, rank() OVER (PARTITION BY v.customer ORDER BY v.at)
FROM visits v LEFT JOIN totals t USING (customer)
WHERE v.id IN (SELECT id FROM visits WHERE price > 1) ORDER BY 1 LIMIT 5;
SELECT customer, tag, max(at) FROM visits LATERAL VIEW explode(tags) AS tag GROUP BY ROLLUP(customer, tag)
"""


def _run_project(project: Project) -> None:
    job = project.job()
    if Run(job, select(job.topology, [], [], everything=False)).once() is not RunState.COMPLETED:
        raise RuntimeError("The sample project failed, as its events say")


def _run_statements(session: SparkSession) -> None:
    for statement in _STATEMENTS.split(";"):
        session.sql(statement)
    for query in _QUERIES.split(";"):
        session.sql(query).toArrow()


def _write_event(event: events.Event) -> None:
    """Read only if the sample project fails."""
    sys.stderr.write(f"{event}\n")


def main(file: str, *flags: str) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = init_project(Path(scratch), "sample")
        conf = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={file}"}
        by_class_loader = "--by-class-loader" in flags
        if by_class_loader:
            # As the jar of a project would do it.
            conf["spark.jars"] = str(resolve(CORE)[0])
        options = Options(spec=str(folder / "spark-pipeline.yml"), conf=conf, master="local[2]")
        with Project(options, _write_event, short_lived=True) as project:
            _run_project(project)
            for number, order in enumerate(_NEW_ORDERS, 2):
                (folder / "orders" / f"{number}.json").write_text(order)
                _run_project(project)
            _run_statements(project.base)
            if not by_class_loader:
                # The sample project reads no topic.
                batch_shares()
                write_compiled(Path(file).parent)
            gateway = SparkContext._gateway  # noqa: SLF001
        if gateway is None:
            return 1
        # Java writes the archive when it exits, and it exits when its stdin is closed.
        gateway.shutdown()
        gateway.proc.stdin.close()
        return int(gateway.proc.wait())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
