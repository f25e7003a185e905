"""`taut`: the same constructs in this process, on a Spark that exists already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline

from tautochrone.cli.main import _parser
from tautochrone.cli.options import names_of
from tautochrone.cli.run import check_refresh_options
from tautochrone.errors import TautochroneError
from tautochrone.runtime.job.topology import select
from tautochrone.runtime.loop.run import Run

from .construct import Construct, Outcome, Table


def run(construct: Construct, folder: Path, spark: SparkSession) -> Outcome:
    """Write the project into `folder` and run it as often as it has inputs."""
    construct.write(folder)
    pipeline = None
    try:
        with _working_in(folder):
            spec = (folder / "spark-pipeline.yml").read_text("utf-8")
            pipeline = Pipeline(folder, spark, spec=spec, may_fall_back=True)
            for statement in construct.prepare if construct.prepare_both else ():
                pipeline.session.sql(statement.replace("@PROJECT@", str(folder))).collect()
            for number in range(len(construct.inputs)):
                construct.add_inputs(folder, number)
                error = _run_once(pipeline, construct, number)
                if error:
                    return Outcome(error=error)
            return Outcome(tables=_tables(pipeline, construct, folder))
    except TautochroneError as error:
        return Outcome(error=str(error))
    except Exception as error:
        # A defect: no construct may end so.
        return Outcome(error=f"[INTERNAL_ERROR] {type(error).__name__}: {error}")
    finally:
        if pipeline is not None:
            pipeline.close()


def _run_once(pipeline: Pipeline, construct: Construct, number: int) -> str:
    """The text of the error, or an empty one."""
    arguments = _parser().parse_args([construct.command, *construct.arguments_of(number)])
    check_refresh_options(arguments)
    with pipeline.opened() as (job, happened):
        if construct.command == "dry-run":
            return ""
        everything = arguments.full_refresh_all
        names = names_of(arguments.refresh), names_of(arguments.full_refresh)
        Run(job, select(job.topology, *names, everything=everything)).once()
    return "" if happened.state == "COMPLETED" else _failure(happened)


def _failure(happened: Happened) -> str:
    errors = [str(event["error"]) for event in happened if event.get("error")]
    return errors[0] if errors else happened.state


def _tables(pipeline: Pipeline, construct: Construct, folder: Path) -> dict[str, Table]:
    frames = {name: pipeline.reader.sql(f"SELECT * FROM {name}") for name in construct.datasets}
    for path, form in construct.outputs.items():
        frames[path] = pipeline.session.read.format(form).load(str(folder / path))
    return {name: Table.of(frame.schema.simpleString(), frame.collect()) for name, frame in frames.items()}


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
