"""The text of an analyzed plan by which a definition is recognised as changed: the same in every process.

A call into the JVM for each node would take a second for a plan of some hundred nodes. So the plan is walked
inside the JVM, by `PlanText.java`, which the compiler compiles that Spark has for its own generated code.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from tautochrone.spark.jvm.driver_calls import compiled_class, driver_calls

__all__ = ["DERIVED", "PlanText", "PythonCommand", "plan_text"]

DERIVED = "~"


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A function that Python runs in a plan: what PySpark pickled, and the files of its broadcasts by id."""

    pickled: bytes
    broadcasts: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class PlanText:
    """A plan's text.

    Attributes:
        tokens: the text. Plans with the same tokens and the same functions give the same rows. Those that
            begin with `DERIVED` follow from the types of the columns that the plan reads.
        inputs: the columns of tables and files that the plan reads, with their types.
        functions: what the tokens `python 0`, `python 1`, … stand for.
        sources: names of tables that belong to no catalog.
        opaque: classes of values of which only the class is in the text.
    """

    tokens: tuple[str, ...]
    inputs: tuple[str, ...]
    functions: tuple[PythonCommand, ...]
    sources: tuple[str, ...]
    opaque: tuple[str, ...]


def plan_text(session: SparkSession, plan: JavaObject, secret: str) -> PlanText:
    """The text of an analyzed plan. Rows that the driver gave to Spark are read by a job.

    Args:
        session: any.
        secret: a regular expression for names of options that are left out.
    """
    compiled = compiled_class(Path(__file__).with_name("PlanText.java"))
    text = driver_calls().newInstance(compiled, session._jsparkSession, plan, secret)  # noqa: SLF001
    return PlanText(
        tokens=tuple(str(text.text()).split("\n")[:-1]),
        inputs=tuple(str(text.inputs()).splitlines()),
        functions=tuple(_command(text, number) for number in range(text.functions())),
        sources=tuple(str(text.sources()).splitlines()),
        opaque=tuple(str(text.opaque()).splitlines()),
    )


def _command(text: JavaObject, number: int) -> PythonCommand:
    broadcasts = (line.split(" ", 1) for line in str(text.broadcasts(number)).splitlines())
    return PythonCommand(bytes(text.command(number)), tuple((int(key), path) for key, path in broadcasts))
