"""Writes `docs/compatibility.md`: `python -m tests.compatibility GUIDE`, or renews some lines: `… NAME…`.

GUIDE is `declarative-pipelines-programming-guide.md` of Spark's documentation, whose samples are run too.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.kafka import KafkaBroker, KafkaTopics

from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.iceberg.sessions.spark_sessions import start_session
from tautochrone.spark.session.factory import use_database
from tautochrone.spark.session.settings import SparkSettings

from . import taut
from .construct import Outcome, compare
from .document import DOCUMENT, document, with_results
from .guide import guide_constructs
from .suite import CONSTRUCTS
from .vanilla import vanilla


@contextmanager
def _spark(folder: Path) -> Iterator[SparkSession]:
    folder.mkdir()
    conf = {"spark.driver.memory": "2g", "spark.sql.session.timeZone": "UTC"}
    session = start_session(SparkSettings(master="local[2]", conf=conf), CatalogSettings.default(str(folder)))
    use_database(session, "lake", "default", create=True)
    yield session
    session.stop()


def main(arguments: list[str]) -> int:
    guides = [Path(argument) for argument in arguments if argument.endswith(".md")]
    names = [argument for argument in arguments if not argument.endswith(".md")]
    if not names and len(guides) != 1:
        sys.stderr.write(__doc__ or "")
        return 2
    results: dict[str, tuple[Outcome, Outcome]] = {}
    with tempfile.TemporaryDirectory() as path, ExitStack() as stack:
        folder = Path(path)
        constructs = [*CONSTRUCTS]
        if guides:
            broker = stack.enter_context(KafkaBroker(folder / "kafka"))
            constructs += guide_constructs(guides[0].read_text("utf-8"), broker.bootstrap)
        chosen = [c for c in constructs if not names or any(c.name.startswith(name) for name in names)]
        server = stack.enter_context(vanilla(folder / "server"))
        spark = stack.enter_context(_spark(folder / "lake"))
        if guides:
            KafkaTopics(spark.sparkContext._gateway, broker.bootstrap).create("orders")
        for construct in chosen:
            theirs = server.run(construct, folder / "vanilla" / construct.name)
            ours = taut.run(construct, folder / "taut" / construct.name, spark)
            results[construct.name] = theirs, ours
            sys.stdout.write(f"{construct.name}: {compare(theirs, ours)}\n")
            for engine, outcome in (("spark-pipelines", theirs), ("taut", ours)) if names else ():
                sys.stdout.write(f"  {engine}: {outcome.error or outcome.tables}\n")
    page = with_results(DOCUMENT.read_text("utf-8"), results, chosen) if names else document(results, chosen)
    DOCUMENT.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
