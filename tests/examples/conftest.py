"""Makes `examples` importable, and reads the flights project as plain batch Spark."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    # `examples` is not part of the installed package.
    sys.path.insert(0, str(ROOT))

TRANSFORMATIONS = ROOT / "examples" / "flights" / "transformations"
_STATEMENT = re.compile(
    r"CREATE\s+(?:STREAMING\s+TABLE|MATERIALIZED\s+VIEW|TEMPORARY\s+VIEW)\s+(?P<name>\w+)"
    r"\s+(?:COMMENT\s+'[^']*'\s+)?AS\s+(?P<query>SELECT.*)",
    re.IGNORECASE | re.DOTALL,
)


@pytest.fixture(scope="session", autouse=True)
def _tables_are_parsed_once() -> Iterator[None]:
    """Every replay asks for all flights of the year, whose file takes a second."""
    source = importlib.import_module("examples.flights.source")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("flights", "weather"):
            parse = cache(getattr(source, name))
            patch.setattr(source, name, lambda parse=parse: parse().copy())
        yield


@pytest.fixture(scope="module")
def plain_spark(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A session of its own for temporary views; on the suite's Spark when there is one."""
    try:
        base = request.getfixturevalue("spark")
        owns_spark = False
    except pytest.FixtureLookupError:
        builder = importlib.import_module("pyspark.sql").SparkSession.builder.master("local[2]")
        base = builder.config("spark.ui.enabled", "false").getOrCreate()
        owns_spark = True
    session = base.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    yield session
    if owns_spark:
        base.stop()


def sql_definitions() -> dict[str, str]:
    """Query per dataset of the project's SQL files."""
    queries = {}
    for file in sorted(TRANSFORMATIONS.glob("*.sql")):
        text = re.sub(r"^--.*$", "", file.read_text(), flags=re.MULTILINE)
        for statement in filter(None, (part.strip() for part in text.split(";"))):
            match = _STATEMENT.fullmatch(statement)
            assert match, f"{file.name}: {statement[:80]}"
            queries[match["name"]] = match["query"]
    return queries


@pytest.fixture(scope="module")
def load(plain_spark: Any) -> Callable[[Path], Any]:
    """Define every dataset of the project over one input folder as a batch view of that name."""

    def load_project(folder: Path) -> Any:
        _load_python(plain_spark, folder)
        remaining = sql_definitions()
        while remaining:
            # A definition may use those of a later file; each round defines at least one.
            ready = [n for n, q in remaining.items() if not _used(q) & (remaining.keys() - {n})]
            assert ready, f"definitions in a cycle: {sorted(remaining)}"
            for name in ready:
                query = re.sub(r"\bSTREAM\s+(?=\w)", "", remaining.pop(name))
                plain_spark.sql(query).createOrReplaceTempView(name)
        return plain_spark

    return load_project


def _used(query: str) -> set[str]:
    return set(re.findall(r"\b(?:FROM|JOIN)\s+(?:STREAM\s+)?(\w+)", query))


def _load_python(session: Any, folder: Path) -> None:
    registry_module = importlib.import_module("pyspark.pipelines.graph_element_registry")

    class Registry(registry_module.GraphElementRegistry):  # type: ignore[misc,name-defined]
        def register_output(self, output: Any) -> None: ...

        def register_flow(self, flow: Any) -> None:
            flow.func().createOrReplaceTempView(flow.target)

        def register_sql(self, sql_text: str, file_path: Path) -> None: ...

    with registry_module.graph_element_registration_context(Registry()):
        for file in sorted(TRANSFORMATIONS.glob("*.py")):
            # The same definition as a batch read instead of a stream, in this session and folder.
            text = file.read_text().replace("spark.readStream", "spark.read")
            text = text.replace("SparkSession.active()", "SESSION")
            text = re.sub(r"^INPUT = .*$", "INPUT = FOLDER", text, flags=re.MULTILINE)
            scope = {"SESSION": session, "FOLDER": str(folder), "__file__": str(file)}
            exec(compile(text, str(file), "exec"), {"__name__": file.stem, **scope})
