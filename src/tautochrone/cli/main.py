"""`taut`: parse, dispatch, render errors. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from tautochrone.cli.options import add_ownership, duration_ms
from tautochrone.cli.output import report, stdout_reserved
from tautochrone.errors import EnvironmentProblemError, FencedError, SparkDiedError, TautochroneError
from tautochrone.redaction import redacted
from tautochrone.traces import defect_error, show_traces, trace_of

__all__ = ["COMMANDS", "entry", "handler_of", "main"]

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


class _Version(argparse.Action):
    """Prints the version. Other commands do not import the metadata of packages, which takes long."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        version = importlib.import_module("importlib.metadata").version("tautochrone")
        sys.stdout.write(f"taut {version}\n")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Says which command or option is nearest to a wrong one."""

    commands: Mapping[str, argparse.ArgumentParser]

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        # The options of `taut` itself take no values.
        command = next((word for word in words if not word.startswith("-")), None)
        if command is not None and command not in self.commands:
            self.error(
                f"there is no command {command!r}{_nearest(command, self.commands)}; `taut --help` lists all"
            )
        parsed, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self._usage_error(self.commands[parsed.command], unknown[0])
        return parsed

    def _usage_error(self, command: argparse.ArgumentParser, word: str) -> NoReturn:
        option = word.partition("=")[0]
        if not option.startswith("-"):
            command.error(f"it takes no further argument {word!r}; text with blanks needs quotes")
        options = [text for action in command._actions for text in action.option_strings]  # noqa: SLF001
        command.error(f"it has no option {option}{_nearest(option, options)}")


def _nearest(word: str, words: Iterable[str]) -> str:
    import difflib

    # The dashes of options are alike in all of them.
    by_name = {each.lstrip("-"): each for each in words}
    nearest = difflib.get_close_matches(word.lstrip("-"), by_name, n=1)
    return f"; did you mean {by_name[nearest[0]]}?" if nearest else ""


def _parser() -> _Parser:
    parser = _Parser(
        prog="taut",
        description="Run a Spark Declarative Pipelines project exactly-once, incrementally, "
        "with all tables at the same checkpoint.",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_init(commands)
    _add_prepare(commands)
    _add_dry_run(commands)
    _add_test(commands)
    _add_plan(commands)
    _add_apply(commands)
    _add_run(commands)
    _add_adopt(commands)
    _add_command(commands, "doctor", "check Java, Spark, jars, catalog, storage, Kafka, ports", reads=True)
    _add_query(commands)
    _add_status(commands)
    _add_checkpoints(commands)
    _add_serve(commands)
    _add_lineage(commands)
    _add_jobs_and_pins(commands)
    _add_alarms(commands)
    _add_sinks_and_sources(commands)
    _add_transactions(commands)
    _add_token(commands)
    _add_verify(commands)
    _add_diff(commands)
    _add_config(commands)
    _add_support_bundle(commands)
    _add_maintain(commands)
    _add_drop(commands)
    _add_rename(commands)
    _add_publish(commands)
    _add_relocate(commands)
    _add_revise(commands)
    parser.commands = commands.choices
    return parser


def _add_command(
    within: Any, name: str, text: str, *, reads: bool = False, spark: bool = True
) -> argparse.ArgumentParser:
    """Add a command over a project.

    Args:
        within: the sub-parsers that get it.
        reads: it has `--json`.
        spark: it has the settings of Spark.
    """
    added: argparse.ArgumentParser = within.add_parser(name, help=text, description=text)
    _add_debug(added)
    added.add_argument(
        "--spec", metavar="PATH", help="the pipeline spec (default: searched from this folder upwards)"
    )
    added.add_argument(
        "--target", metavar="NAME", help="the target, one of [targets] (default: target below [run])"
    )
    added.add_argument("--set", action="append", default=[], metavar="K=V", help="set a setting by its key")
    if spark:
        added.add_argument("--conf", action="append", default=[], metavar="K=V", help="set a Spark setting")
        added.add_argument("--master", metavar="URL", help="the Spark master (default local[*])")
    if reads:
        added.add_argument("--json", action="store_true", help="one JSON object per line on stdout")
    return added


def _add_debug(parser: argparse.ArgumentParser) -> None:
    # Its default would undo a --debug that stands before the command.
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")


def _add_meta(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--meta", metavar="URL", help="use this store or service, without a project")


def _add_init(commands: Any) -> None:
    init = commands.add_parser("init", help="create a sample project that is ready to run")
    _add_debug(init)
    init.add_argument("--name", required=True, help="the project's name and folder")


def _add_prepare(commands: Any) -> None:
    prepare = commands.add_parser(
        "prepare", help="download the jars that the first run needs", description="Fill the cache of jars."
    )
    _add_debug(prepare)
    folders = prepare.add_mutually_exclusive_group()
    folders.add_argument(
        "--download", metavar="DIR", help="write the jars into this folder, for a machine without a network"
    )
    folders.add_argument(
        "--from", dest="source", metavar="DIR", help="take the jars from a folder that --download filled"
    )


def _add_dry_run(commands: Any) -> None:
    dry_run = _add_command(commands, "dry-run", "resolve the whole graph and write nothing", reads=True)
    dry_run.add_argument(
        "--explain", metavar="NAME", help="show how a view will be refreshed: its plan, rule by rule"
    )


def _add_test(commands: Any) -> None:
    test = _add_command(
        commands, "test", "run the unit tests of views: given rows, expected rows, without a lake", reads=True
    )
    test.epilog = "Exit status: 0 all tests pass; 1 one of them fails."
    test.add_argument("names", nargs="*", metavar="VIEW", help="views, or names of tests (default: all)")
    test.add_argument("--junit", metavar="FILE", help="write the results as JUnit XML")
    test.add_argument("--record", metavar="VIEW", help="write a test of rows of a checkpoint instead")
    test.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help="with --record: take the rows of inputs that meet this, or, as 'INPUT: CONDITION', those of one",
    )
    test.add_argument(
        "--rows",
        type=_count,
        default=100,
        metavar="N",
        help="with --record: so many rows of an input at most (default 100)",
    )
    test.add_argument(
        "--checkpoint", type=int, metavar="N", help="with --record: this checkpoint (default: the newest)"
    )
    test.add_argument("--output", metavar="FILE", help="with --record: write it into this new file")


def _add_plan(commands: Any) -> None:
    plan = _add_command(commands, "plan", "show what the next run will do, and change nothing")
    shown = plan.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="the plan as one JSON object on stdout")
    shown.add_argument("--markdown", action="store_true", help="the plan for a pull request")
    plan.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with 1 when something changes, with 3 when the run will refuse something",
    )
    plan.add_argument("--job", metavar="NAME", help="plan this job of the project's [jobs]")
    plan.add_argument(
        "--full-refresh", action="append", default=[], metavar="A,B", help="as if these tables were rebuilt"
    )
    plan.add_argument("--full-refresh-all", action="store_true", help="as if all tables were rebuilt")
    built = plan.add_mutually_exclusive_group()
    built.add_argument(
        "--build",
        action="store_true",
        help="compute the views that change beside the deployed ones, and compare the rows",
    )
    built.add_argument(
        "--list", action="store_true", help="the built plans of all jobs, and the last ones that are over"
    )
    built.add_argument(
        "--drop", nargs="?", const="", metavar="ID", help="delete a built plan (without ID: all of the job)"
    )
    plan.add_argument(
        "--rows", type=_count, metavar="N", help="with --build: rows of each sign to show (default 5)"
    )
    plan.add_argument(
        "--key", metavar="COLUMN,…", help="with --build: also count the rows that changed, and their values"
    )


def _add_apply(commands: Any) -> None:
    applied = _add_command(commands, "apply", "let a built plan's rows be the next checkpoint", reads=True)
    applied.add_argument("build", metavar="ID", help="of the plan, as `taut plan --build` says it")
    applied.add_argument("--job", metavar="NAME", help="the job of the plan")
    add_ownership(applied)


def _add_run(commands: Any) -> None:
    run = _add_command(commands, "run", "read new source data, refresh all tables, publish a checkpoint")
    shown = run.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="events as JSON, one object per line on stdout")
    shown.add_argument("--quiet", action="store_true", help="print failures only")
    run.add_argument("--continuous", action="store_true", help="run until Ctrl-C")
    run.add_argument("--interval", metavar="5s", help="time between checkpoints, with --continuous")
    run.add_argument("--job", metavar="NAME", help="run this job of the project's [jobs]")
    run.add_argument(
        "--refresh", action="append", default=[], metavar="A,B", help="read new data for these tables only"
    )
    run.add_argument(
        "--full-refresh", action="append", default=[], metavar="A,B", help="rebuild these tables"
    )
    run.add_argument("--full-refresh-all", action="store_true", help="rebuild all tables")
    add_ownership(run)


def _add_adopt(commands: Any) -> None:
    adopt = _add_command(
        commands, "adopt", "take over tables that spark-pipelines built, without a rebuild", reads=True
    )
    adopt.add_argument(
        "--from-pipeline", metavar="OLD", help="take over the tables of this pipeline, which was renamed"
    )
    adopt.add_argument(
        "--from-warehouse",
        metavar="DIR",
        help="first copy the tables of this warehouse of a hadoop catalog into the lake",
    )
    adopt.add_argument("--dry-run", action="store_true", help="show what would be done and change nothing")
    adopt.add_argument(
        "--rebuild", action="append", default=[], metavar="A,B", help="views that the next run rebuilds"
    )
    add_ownership(adopt)


def _add_query(commands: Any) -> None:
    query = _add_command(commands, "query", "run Spark SQL over datasets, all at one checkpoint")
    query.add_argument("sql", help="the query")
    query.add_argument(
        "--consistency",
        choices=("strong", "weak"),
        default="strong",
        help="strong: all tables at one checkpoint; weak: each at its newest version (default strong)",
    )
    query.add_argument(
        "--only-named",
        action="store_true",
        help="only the tables of this query must be at one checkpoint, not their relatives",
    )
    query.add_argument("--checkpoint", type=int, metavar="N", help="read at this checkpoint")
    query.add_argument(
        "--after",
        metavar="TOKEN",
        help="read what was written before this token of `taut token`; fails when it is not published",
    )
    query.add_argument(
        "--wait",
        type=duration_ms,
        default="0s",
        metavar="30s",
        help="with --after: how long to wait until it is published (default 0s)",
    )
    query.add_argument(
        "--own-spark",
        action="store_true",
        help="start Spark, though a service or a continuous run of this project could answer",
    )
    query.add_argument(
        "--format",
        choices=("table", "csv", "json"),
        default="table",
        help="the output format (default table)",
    )


def _add_status(commands: Any) -> None:
    status = _add_command(commands, "status", "the status of every dataset", reads=True, spark=False)
    status.add_argument("name", nargs="?", help="one dataset")
    status.add_argument("--history", action="store_true", help="list refreshes, newest first")
    status.add_argument(
        "--what-if",
        action="store_true",
        help="estimate from the history what a longer interval or another policy would have cost",
    )
    status.add_argument(
        "--cost", action="store_true", help="list what refreshes cost, by day and dataset, newest first"
    )
    status.add_argument("--nodes", action="store_true", help="with --history: what each node of the plan did")
    status.add_argument(
        "--limit",
        type=int,
        default=50,
        metavar="N",
        help="with --history and --cost: maximum rows to print (default 50)",
    )


def _add_checkpoints(commands: Any) -> None:
    checkpoints = _add_command(commands, "checkpoints", "the newest checkpoints", reads=True, spark=False)
    checkpoints.add_argument(
        "--limit", type=int, default=20, metavar="N", help="maximum rows to print (default 20)"
    )


def _add_serve(commands: Any) -> None:
    serve = _add_command(
        commands, "serve", "the MetaService as a process: versions, lineage, events over HTTP", spark=False
    )
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen at (default 127.0.0.1)")
    serve.add_argument(
        "--port", type=int, default=7117, help="the port to listen at (default 7117); 0: any free port"
    )
    serve.add_argument(
        "--meta", metavar="URL", help="serve this store without a project; there is no Iceberg catalog then"
    )
    serve.add_argument(
        "--proxy",
        metavar="ADDRESS",
        action="append",
        default=[],
        help="take X-Forwarded-Proto, -Host, -Prefix and -For of requests from the reverse proxy at this "
        "address; can be repeated",
    )
    serve.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="the format of the log on stderr (default text)",
    )


def _add_lineage(commands: Any) -> None:
    lineage = _add_command(
        commands,
        "lineage",
        "the tables that a table is computed from, and the tables computed from it",
        reads=True,
        spark=False,
    )
    lineage.add_argument("name", help="a dataset, or any table by its full name")
    direction = lineage.add_mutually_exclusive_group()
    direction.add_argument("--up", action="store_true", help="only the tables that it is computed from")
    direction.add_argument("--down", action="store_true", help="only the tables that are computed from it")
    _add_meta(lineage)


def _add_jobs_and_pins(commands: Any) -> None:
    jobs = _add_command(
        commands, "jobs", "the jobs, their tables and their newest checkpoints", reads=True, spark=False
    )
    pins = _add_command(
        commands,
        "pins",
        "who reads at which checkpoint, and until when its versions are kept",
        reads=True,
        spark=False,
    )
    _add_meta(jobs)
    _add_meta(pins)


def _add_alarms(commands: Any) -> None:
    alarms = _add_command(commands, "alarms", "what somebody has to look at", reads=True, spark=False)
    alarms.epilog = "Exit status: 0 no alarm, or somebody looks after each; 1 nobody looks after one of them."
    alarms.add_argument("--acknowledge", type=int, metavar="ID", help="you look after this alarm")
    alarms.add_argument("--by", metavar="NAME", help="with --acknowledge: who does (default: your user name)")
    alarms.add_argument("--resolved", action="store_true", help="list alarms that are over, too")
    alarms.add_argument(
        "--limit", type=int, default=20, metavar="N", help="with --resolved: so many at most (default 20)"
    )
    alarms.add_argument(
        "--test", action="store_true", help="send a test to each target of [alarms.notify] instead"
    )
    _add_meta(alarms)


def _add_sinks_and_sources(commands: Any) -> None:
    sinks = _add_command(
        commands, "sinks", "the sinks: what they show, how far they are behind", reads=True, spark=False
    )
    sinks.add_argument("--forget", metavar="NAME", help="drop what the store knows of a sink")
    _add_command(
        commands,
        "sources",
        "captured databases: how far they are, and the log that is kept for them",
        reads=True,
    )


def _add_transactions(commands: Any) -> None:
    transactions = commands.add_parser(
        "transactions", help="transactions that programs drive: list, show, settle"
    )
    _add_debug(transactions)
    steps = transactions.add_subparsers(dest="action", metavar="ACTION", required=True)
    for action, text in (
        ("list", "the transactions, by their ids"),
        ("show", "one transaction and its chunks"),
        ("commit", "decide to commit a prepared one, or try a commit that needs attention again"),
        ("rollback", "decide to roll one back, or try a rollback that needs attention again"),
        ("confirm", "record that a decision was carried out, after the target was put right by hand"),
    ):
        step = _add_command(steps, action, text, reads=True, spark=False)
        _add_meta(step)
        if action != "list":
            step.add_argument("id", help="the id of the transaction")
            continue
        step.add_argument("--attention", action="store_true", help="only those that need attention")
        step.add_argument("--owner", metavar="NAME", help="only those of this program")
        step.add_argument(
            "--state",
            choices=("initialized", "prepared", "committing", "committed", "aborting", "aborted"),
            help="only those in this state",
        )
        step.add_argument(
            "--limit", type=int, default=100, metavar="N", help="maximum rows to print (default 100)"
        )


def _add_token(commands: Any) -> None:
    token = _add_command(
        commands,
        "token",
        "a token for `query --after`: all that has been written to the sources by now",
        reads=True,
        spark=False,
    )
    _add_meta(token)


def _add_verify(commands: Any) -> None:
    verify = _add_command(commands, "verify", "recompute views with plain Spark and compare", reads=True)
    verify.epilog = (
        "Exit status: 0 equal, 1 something differs, 3 nothing differs, but nothing could be compared, or not "
        "all that is named, or with --sink not all at the checkpoint that is named."
    )
    verify.add_argument("names", nargs="*", help="views (default: all)")
    verify.add_argument(
        "--checkpoint", type=int, metavar="N", help="verify at this checkpoint (default: the newest)"
    )
    verify.add_argument(
        "--sink", metavar="NAME", help="compare what this sink shows with the lake instead; names are tables"
    )
    verify.add_argument(
        "--own-spark",
        action="store_true",
        help="start Spark, though a continuous run of this project could recompute its views",
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is no number from 0 on")
    return int(text)


def _side(text: str) -> int | str:
    """A side of a comparison: the number of a checkpoint, or the id of a built plan."""
    from tautochrone.model.project_build import build_of

    build = build_of(text)
    if build is None and not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a checkpoint nor a built plan as plan-3f2a91c0"
        )
    return build or int(text)


def _add_diff(commands: Any) -> None:
    diff = _add_command(
        commands, "diff", "the rows that differ between two published checkpoints or built plans", reads=True
    )
    diff.epilog = "Exit status: 0; with --exit-code 1 if a table differs. 3 if a table could not be compared."
    diff.add_argument("old", type=_side, metavar="A", help="a checkpoint, or a built plan as `plan-3f2a91c0`")
    diff.add_argument("new", type=_side, metavar="B", help="another one: rows that only it has are added")
    # Without a default argparse names it among the required ones when others are missing.
    diff.add_argument("names", nargs="*", default=[], metavar="TABLE", help="tables (default: all)")
    diff.add_argument("--rows", type=_count, default=0, metavar="N", help="show so many rows of each sign")
    diff.add_argument(
        "--key",
        metavar="COLUMN,…",
        help="also count the rows that changed: those whose values of these columns are on both sides",
    )
    diff.add_argument(
        "--parquet", metavar="FOLDER", help="write the rows to TABLE.added.parquet and TABLE.removed.parquet"
    )
    diff.add_argument("--exit-code", action="store_true", help="exit with 1 if a table differs")


def _add_config(commands: Any) -> None:
    config = commands.add_parser("config", help="settings in force, and the schema of all settings")
    _add_debug(config)
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = _add_command(
        actions, "show", "every setting in force; of secrets only where they come from", reads=True
    )
    show.add_argument("--origin", action="store_true", help="show where each was set")
    show.add_argument("--interval", metavar="5s", help=argparse.SUPPRESS)
    show.add_argument("--job", metavar="NAME", help=argparse.SUPPRESS)
    actions.add_parser("schema", help="the JSON Schema of tautochrone.toml")


def _add_support_bundle(commands: Any) -> None:
    support = _add_command(
        commands,
        "support-bundle",
        "write a zip file for a bug report: versions, settings, history, no secrets",
    )
    support.add_argument(
        "--output", metavar="FILE", help="the file to write (default taut-support-<time>.zip)"
    )


def _add_maintain(commands: Any) -> None:
    maintain = _add_command(
        commands, "maintain", "expire versions that nobody needs any more and delete their files", reads=True
    )
    maintain.add_argument("--job", metavar="NAME", help="maintain the tables of this job")
    maintain.add_argument("--dry-run", action="store_true", help="show what would be done and change nothing")
    maintain.add_argument(
        "--compact",
        action="store_true",
        help="merge small files too; not possible while the job runs",
    )
    add_ownership(maintain)


def _add_drop(commands: Any) -> None:
    drop = _add_command(
        commands, "drop", "remove datasets that left the project, with all that is theirs", reads=True
    )
    drop.add_argument(
        "names", nargs="+", metavar="TABLE", help="datasets that no definition file has any more"
    )
    drop.add_argument("--job", metavar="NAME", help="work for this job of the project's [jobs]")
    drop.add_argument("--dry-run", action="store_true", help="list what goes, with sizes, and change nothing")
    drop.add_argument("--yes", action="store_true", help="do it without asking")
    drop.add_argument(
        "--keep-table",
        action="store_true",
        help="leave the tables of the lake, as tables that belong to no pipeline",
    )
    add_ownership(drop)


def _add_rename(commands: Any) -> None:
    rename = _add_command(
        commands, "rename", "let a dataset go on under the new name of its definition", reads=True
    )
    rename.add_argument("old", metavar="OLD", help="its former name, which no definition file has any more")
    rename.add_argument("new", metavar="NEW", help="its new name, as the project defines it")
    rename.add_argument("--job", metavar="NAME", help="the job of the project's [jobs] that writes it")
    rename.add_argument("--dry-run", action="store_true", help="list what is renamed and change nothing")
    add_ownership(rename)


def _add_publish(commands: Any) -> None:
    publish = _add_command(
        commands, "publish", "published tables that others damaged, and how to publish them anew", reads=True
    )
    publish.epilog = "Exit status: 0 nothing is damaged any more, 1 something is."
    publish.add_argument("names", nargs="*", metavar="NAME", help="published tables (default: all)")
    publish.add_argument(
        "--repair",
        action="store_true",
        help="set damaged tables aside and publish them anew at the newest checkpoint; not possible while "
        "the job runs",
    )
    add_ownership(publish)


def _add_relocate(commands: Any) -> None:
    relocate = _add_command(
        commands, "relocate", "make a copied or moved storage usable at its new path", reads=True, spark=False
    )
    relocate.add_argument(
        "--from-project",
        metavar="PATH",
        help="the old path of the project, for storages that do not record it",
    )
    relocate.add_argument(
        "--moved",
        action="store_true",
        help="the original is gone and this storage takes its place",
    )
    relocate.add_argument("--dry-run", action="store_true", help="check everything and change nothing")


def _add_revise(commands: Any) -> None:
    revise = _add_command(
        commands, "revise", "take tables back to a checkpoint after their source was corrected", reads=True
    )
    revise.add_argument("names", nargs="*", metavar="NAME", help="the tables whose source was corrected")
    revise.add_argument("--to", type=int, metavar="N", help="the newest checkpoint with correct data")
    revise.add_argument(
        "--read-again",
        action="store_true",
        help="take the named tables back too, and read their sources again from there",
    )
    revise.add_argument(
        "--full", action="store_true", help="empty the tables downstream and rebuild them from the beginning"
    )
    revise.add_argument(
        "--dry-run", action="store_true", help="list what would be taken back and change nothing"
    )
    revise.add_argument("--accept", action="store_true", help="do it without asking")
    add_ownership(revise)
    revise.add_argument("--confirm", metavar="ID", help="delete the old data that this revision has kept")


COMMANDS = {
    "init": ("project", "init"),
    "prepare": ("project", "prepare"),
    "dry-run": ("project", "dry_run"),
    "test": ("unit_tests", "unit_tests"),
    "plan": ("plan", "plan"),
    "apply": ("builds", "apply"),
    "run": ("run", "run"),
    "adopt": ("lake", "adopt"),
    "doctor": ("project", "doctor"),
    "config": ("project", "config"),
    "serve": ("run", "serve"),
    "lineage": ("metaservice", "lineage"),
    "alarms": ("metaservice", "alarms"),
    "jobs": ("metaservice", "jobs"),
    "pins": ("metaservice", "pins"),
    "sinks": ("status", "sinks"),
    "sources": ("status", "sources"),
    "token": ("metaservice", "token"),
    "transactions": ("metaservice", "transactions"),
    "maintain": ("lake", "maintain"),
    "drop": ("lake", "drop"),
    "rename": ("lake", "rename"),
    "publish": ("publish", "publish"),
    "relocate": ("lake", "relocate"),
    "revise": ("lake", "revise"),
    "support-bundle": ("project", "support_bundle"),
    "status": ("status", "status"),
    "checkpoints": ("status", "checkpoints"),
    "query": ("reading", "query"),
    "verify": ("reading", "verify_views"),
    "diff": ("diff", "diff"),
}
"""By command: the module of this package and the function in it."""


def handler_of(name: str) -> Callable[[argparse.Namespace], int]:
    module, function = COMMANDS[name]
    handler: Callable[[argparse.Namespace], int] = getattr(
        importlib.import_module(f"tautochrone.cli.{module}"), function
    )
    return handler


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0, 1 for a handled failure, 2 for wrong use.

    `taut verify` has one more: 3 when nothing could be compared.
    """
    options = _parser().parse_args(arguments)
    if options.debug:
        show_traces()
    # When another program calls this, its thread hook and its process image must not be changed.
    options.embedded = arguments is not None
    if options.embedded:
        return _run_command(options)
    threading.excepthook = _thread_failed
    with stdout_reserved():
        return _run_command(options)


def _run_command(options: argparse.Namespace) -> int:
    try:
        return handler_of(options.command)(options)
    except TautochroneError as error:
        error = error if isinstance(error, FencedError) else _spark_died_error() or error
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
        missing = _package_missing_error(error)
        if missing is not None and not options.debug:
            report(missing)
            return EXIT_FAILED
        died = _spark_died_error()
        if died is not None:
            report(died)
            return EXIT_FAILED
        trace = trace_of(error, f"taut {options.command}")
        if not options.debug:
            report(defect_error(error, trace))
        return EXIT_USAGE


def _package_missing_error(error: Exception) -> EnvironmentProblemError | None:
    """The error for a package that Tautochrone is installed without, such as beside the client alone."""
    package = "" if not isinstance(error, ModuleNotFoundError) else (error.name or "").partition(".")[0]
    if package in ("", "tautochrone"):
        return None
    return EnvironmentProblemError(
        "PACKAGE_MISSING",
        f"The Python package {package} is not installed in {sys.prefix}",
        hint="install Tautochrone with its dependencies there: pip install without --no-deps",
    )


def _spark_died_error() -> SparkDiedError | None:
    """The error for a Spark process that died, if it did: it is the cause of every other failure."""
    if "pyspark" not in sys.modules:
        return None
    from tautochrone.spark.session.jvm_liveness import jvm_error

    return jvm_error(ask=True)


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    """An unexpected exception ended a thread; the process continues."""
    error = failed.exc_value
    if error is not None:
        name = "a thread" if failed.thread is None else failed.thread.name
        report(defect_error(error, trace_of(error, f"thread {name}")))


def _traceback() -> None:
    """Print the traceback of the current exception, redacted: its causes may quote secrets."""
    sys.stderr.write(redacted(traceback.format_exc()))


def _fix_hashes() -> None:
    """Start this program again with a fixed seed of hashes, which Python takes at its start only.

    The order of a set is another one in each process otherwise. A query whose columns or text come from a set
    would be another query in each run, and its view would be built anew.
    """
    command = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    # A service evaluates nothing, and a known seed helps who attacks it.
    if not os.environ.get("PYTHONHASHSEED") and command != "serve":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def entry() -> None:
    """The console script."""
    _fix_hashes()
    sys.exit(main())


if __name__ == "__main__":
    entry()
