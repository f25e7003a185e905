"""`taut doctor`: checks everything that a run needs. One finding per check, cheapest first.

It writes nothing: what the first run would create is reported as such.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tautochrone.app.finding import Finding, State, check, skipped
from tautochrone.app.locate import Options, locate
from tautochrone.errors import EnvironmentProblemError, MetaError, SettingsError
from tautochrone.project.setting_layers import shown
from tautochrone.spark.session.jars import CORE, KAFKA, cache_folder, resolve
from tautochrone.spark.session.java import archive_file, find_java, java_version

if TYPE_CHECKING:
    from tautochrone.meta.database import StoreDatabase
    from tautochrone.project.settings import Settings
    from tautochrone.project.spec import PipelineSpec

__all__ = ["health_findings"]

_PORTS = ("spark.driver.port", "spark.blockManager.port", "spark.driver.blockManager.port", "spark.ui.port")
_MIN_FREE_MB = 500
_CONNECT_TIMEOUT_S = 3.0


def health_findings(options: Options) -> Iterator[Finding]:
    """All checks, each yielded when it is done. Starts Spark (about 6 s) when every check before succeeded.

    Args:
        options: where the project is. Without a project, its checks are skipped.
    """
    findings: list[Finding] = []

    def done(finding: Finding) -> Finding:
        findings.append(finding)
        return finding

    yield done(check("python", lambda: f"Python {platform.python_version()} ({sys.executable})"))
    yield done(check("java", _java))
    yield done(check("spark", _spark))
    yield done(check("jars", _jars))
    yield done(_classes())
    located: list[tuple[PipelineSpec, Settings]] = []
    project = check("project", lambda: _project(options, located))
    if project.error == "PIPELINE_SPEC_FILE_NOT_FOUND" and options.spec is None:
        reason = "no pipeline spec here or above: its storage, catalog and Kafka are left out"
        project = skipped("project", reason)
    yield done(project)
    settings = located[0][1] if located else None
    yield done(check("ports", lambda: _check_ports(settings)))
    if settings is not None:
        yield done(check("storage", lambda: _check_storage(Path(settings.storage))))
        yield done(check("store", lambda: _check_store(settings)))
        yield done(check("master", lambda: _check_master(settings.spark.master)))
    failed = [finding.check for finding in findings if finding.state is State.FAILED]
    if failed:
        names = ("session", "catalog", "definitions", "kafka", "captures", "sinks")
        for name in names if located else ("session",):
            yield skipped(name, f"needs {', '.join(failed)}")
        return
    from tautochrone.app.health_spark import spark_health_findings

    yield from spark_health_findings(options, located[0] if located else None)


def _java() -> str:
    command = find_java()
    return f"Java {java_version(command)} ({command})"


def _spark() -> str:
    import pyspark

    supported_version, installed_version = KAFKA[0].version, pyspark.__version__
    if installed_version != supported_version:
        raise EnvironmentProblemError(
            "SPARK_VERSION_UNSUPPORTED",
            f"PySpark is {installed_version}; the connectors are those of {supported_version}",
            hint=f"install pyspark=={supported_version} in this environment",
        )
    home = os.environ.get("SPARK_HOME")
    if home is not None and not list(Path(home).glob(f"jars/spark-core_*-{supported_version}.jar")):
        raise EnvironmentProblemError(
            "SPARK_HOME_UNSUPPORTED",
            f"SPARK_HOME is {home}, which is no Spark {supported_version}",
            hint=f"unset SPARK_HOME, or let it name a Spark {supported_version}",
        )
    return f"PySpark {installed_version} ({home or Path(pyspark.__file__).parent})"


def _jars() -> str:
    artifacts = CORE + KAFKA
    return f"{len(resolve(artifacts, shutil.which('java') or 'java'))} jars in {cache_folder()}"


def _classes() -> Finding:
    try:
        archive = archive_file(find_java())
    except EnvironmentProblemError:
        return skipped("classes", "needs java")
    if archive.exists():
        return Finding(check="classes", state=State.OK, detail=f"Spark's classes are archived in {archive}")
    warning = "no archive of Spark's classes: each start takes some seconds longer than it must"
    return skipped("classes", f"{warning}; `taut prepare` makes one")


def _project(options: Options, located: list[tuple[PipelineSpec, Settings]]) -> str:
    spec_and_settings = locate(options)
    located.append(spec_and_settings)
    spec, settings = spec_and_settings
    target = "" if settings.target is None else f", target {settings.target.name}"
    off = "" if settings.sinks_off is None else f"; sinks are off: {settings.sinks_off.reason}"
    return f"pipeline {spec.name} ({spec.path}){target}{off}"


def _check_ports(settings: Settings | None) -> str:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise EnvironmentProblemError(
            "PORTS_UNUSABLE",
            f"127.0.0.1 cannot be listened on and reached: {error}",
            hint="Spark's driver and the REST catalog need it; look at firewalls and network name spaces",
        ) from error
    configured_ports = {
        key: settings.confs[key] for key in _PORTS if settings and settings.confs.get(key, "0") != "0"
    }
    for key, text in configured_ports.items():
        _require_free_port(key, text)
    free_ports = (
        f"; free: {', '.join(f'{key}={value}' for key, value in configured_ports.items())}"
        if configured_ports
        else ""
    )
    return f"127.0.0.1 can be listened on and reached{free_ports}"


def _require_free_port(key: str, text: str) -> None:
    try:
        socket.create_server(("127.0.0.1", int(text))).close()
    except ValueError as error:
        raise SettingsError("INVALID_PORT", f"{key} is {text!r}", hint="give a number, 0 for any") from error
    except (OSError, OverflowError) as error:
        raise EnvironmentProblemError(
            "PORT_TAKEN",
            f"Port {text} of {key} cannot be had: {error}",
            hint="end the process that has it, or set another port (0 for any)",
        ) from error


def _check_storage(folder: Path) -> str:
    existing_folder = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        # A temporary file without a name vanishes when it is closed.
        with tempfile.TemporaryFile(dir=existing_folder):
            free_mb = shutil.disk_usage(existing_folder).free // 1_000_000
    except OSError as error:
        raise EnvironmentProblemError(
            "STORAGE_NOT_WRITABLE",
            f"{existing_folder} cannot be written: {error.strerror or error}",
            hint="give this user the right to write there, or change `storage` in the spec",
        ) from error
    if free_mb < _MIN_FREE_MB:
        raise EnvironmentProblemError(
            "STORAGE_FULL",
            f"{existing_folder} has {free_mb} MB left",
            hint="free some space, or change `storage` in the spec",
        )
    creation_note = "" if existing_folder == folder else ", made by the first run"
    return f"{folder}, {free_mb / 1000:,.1f} GB free{creation_note}"


def _check_store(settings: Settings) -> str:
    from tautochrone.app.stores import is_service, open_store
    from tautochrone.meta.database import StoreDatabase, parsed_url
    from tautochrone.meta.database.engine import HEAD

    if is_service(settings.meta_url):
        with open_store(settings.meta_url, token=settings.meta_token, retry_ms=0) as service:
            return f"{shown('url', settings.meta_url)} answers (store {service.incarnation})"
    url = parsed_url(settings.meta_url)
    safe = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        return f"{safe}, made by the first run"
    database = StoreDatabase(settings.meta_url)
    try:
        if database.revision() == HEAD:
            safe += _unfinished_changes(database)
    except MetaError as error:
        setting = "see [meta] url in tautochrone.toml and TAUTOCHRONE_META_URL"
        error.hint = error.hint or f"is it up, and may this user read it? {setting}"
        raise
    finally:
        database.close()
    return safe


def _unfinished_changes(database: StoreDatabase) -> str:
    """The drops and renames of datasets that somebody has to go on with, as the end of a sentence."""
    from tautochrone.meta.queries.dataset_changes import pending_changes

    with database.read() as connection:
        changes = pending_changes(connection)
    return "".join(
        f"; {change.dataset}: `{change.command}` is unfinished, run it again" for change in changes
    )


def _check_master(master: str) -> str:
    if not master.startswith("spark://"):
        return master
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
        except (OSError, ValueError) as error:
            raise EnvironmentProblemError(
                "MASTER_NOT_REACHABLE",
                f"No Spark master at {address}: {error}",
                hint="is the master up? It is chosen by --master, TAUTOCHRONE_MASTER or [spark] master",
            ) from error
    return f"{master} answers"
