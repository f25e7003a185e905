"""`taut`: parse, dispatch, render errors. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from tautochrone.cli.problems import report, report_defect
from tautochrone.errors import TautochroneError
from tautochrone.redaction import redacted

__all__ = ["entry", "main"]

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="taut",
        description="Run a Spark Declarative Pipelines project exactly-once, incrementally, "
        "with every table at the same instant.",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(
        name: str, text: str, *, reads: bool = False, spark: bool = True, within: Any = commands
    ) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = within.add_parser(name, help=text, description=text)
        added.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
        added.add_argument("--spec", metavar="PATH", help="the pipeline spec; searched upwards without it")
        added.add_argument("--set", action="append", default=[], metavar="K=V", help="a setting, by its key")
        if spark:
            added.add_argument("--conf", action="append", default=[], metavar="K=V", help="a Spark setting")
            added.add_argument("--master", metavar="URL", help="the Spark master (default local[*])")
        if reads:
            added.add_argument("--json", action="store_true", help="one JSON object per line on stdout")
        return added

    init = commands.add_parser("init", help="write a sample project that runs as it is")
    init.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    init.add_argument("--name", required=True, help="the project's name and folder")

    dry_run = command("dry-run", "resolve the whole graph and write nothing", reads=True)
    dry_run.add_argument(
        "--explain", metavar="NAME", help="how a view will be refreshed: its plan, rule by rule"
    )

    run = command("run", "take in what is there, refresh, publish")
    shown = run.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="events as JSON, one object per line on stdout")
    shown.add_argument("--quiet", action="store_true", help="say only what fails")
    run.add_argument("--continuous", action="store_true", help="go on until Ctrl-C")
    run.add_argument("--interval", metavar="5s", help="between checkpoints, with --continuous")
    run.add_argument(
        "--refresh", action="append", default=[], metavar="A,B", help="take in data for these only"
    )
    run.add_argument("--full-refresh", action="append", default=[], metavar="A,B", help="rebuild these")
    run.add_argument("--full-refresh-all", action="store_true", help="rebuild everything")

    adopt = command("adopt", "take over tables that spark-pipelines built, without a rebuild", reads=True)
    adopt.add_argument("--dry-run", action="store_true", help="tell what would be done, change nothing")
    adopt.add_argument(
        "--rebuild", action="append", default=[], metavar="A,B", help="views that the next run computes anew"
    )

    command("doctor", "check Java, Spark, jars, catalog, storage, Kafka, ports", reads=True)

    query = command("query", "any Spark SQL over datasets, at one instant")
    query.add_argument("sql", help="the query")
    query.add_argument(
        "--consistency",
        choices=("strong", "weak"),
        default="strong",
        help="all tables at one instant, or each at its newest",
    )
    query.add_argument("--checkpoint", type=int, metavar="N", help="read at this checkpoint")
    query.add_argument(
        "--format", choices=("table", "csv", "json"), default="table", help="how rows are printed"
    )

    status = command("status", "where every dataset stands", reads=True, spark=False)
    status.add_argument("name", nargs="?", help="one dataset")
    status.add_argument("--history", action="store_true", help="its refreshes, newest first")
    status.add_argument("--nodes", action="store_true", help="with --history: what each node did")
    status.add_argument("--limit", type=int, default=50, metavar="N", help="with --history: so many")

    checkpoints = command("checkpoints", "the newest checkpoints", reads=True, spark=False)
    checkpoints.add_argument("--limit", type=int, default=20, metavar="N", help="so many")

    verify = command("verify", "recompute views with plain Spark and compare", reads=True)
    verify.add_argument("names", nargs="*", help="views (default: all)")
    verify.add_argument("--checkpoint", type=int, metavar="N", help="at this checkpoint")

    config = commands.add_parser("config", help="settings: what is in force, and what there is")
    config.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = command("show", "every setting in force; secrets by their place only", reads=True, within=actions)
    show.add_argument("--origin", action="store_true", help="and where it was set")
    show.add_argument("--interval", metavar="5s", help=argparse.SUPPRESS)
    actions.add_parser("schema", help="the JSON Schema of tautochrone.toml")

    maintain = command("maintain", "expire what nobody needs any more and delete its files", reads=True)
    maintain.add_argument("--dry-run", action="store_true", help="tell what would be done, change nothing")
    maintain.add_argument(
        "--compact",
        action="store_true",
        help="merge small files too: takes the job over, so a run that is going on ends",
    )
    return parser


def _handler(name: str) -> Callable[[argparse.Namespace], int]:
    if name in ("init", "dry-run"):
        from tautochrone.cli import project

        return project.init if name == "init" else project.dry_run
    if name == "run":
        from tautochrone.cli import run

        return run.run
    if name == "adopt":
        from tautochrone.cli import adopt

        return adopt.adopt
    if name == "doctor":
        from tautochrone.cli import doctor

        return doctor.doctor
    if name == "config":
        from tautochrone.cli import config

        return config.config
    if name == "maintain":
        from tautochrone.cli import maintain

        return maintain.maintain
    if name in ("status", "checkpoints"):
        from tautochrone.cli import status

        return status.status if name == "status" else status.checkpoints
    from tautochrone.cli import reading

    return reading.query if name == "query" else reading.verify_views


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 for a handled failure, 2 for wrong use."""
    options = _parser().parse_args(arguments)
    try:
        return _handler(options.command)(options)
    except TautochroneError as error:
        if options.debug:
            _traceback()
            return EXIT_FAILED
        report(error)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_FAILED
    except Exception as error:
        if options.debug:
            _traceback()
            return EXIT_USAGE
        report_defect(error)
        return EXIT_USAGE


def _traceback() -> None:
    """Of the exception under way. Its causes are other people's and may quote secrets."""
    sys.stderr.write(redacted(traceback.format_exc()))


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
