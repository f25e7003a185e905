"""A pipeline under operation: a capture, a view, two mirrors, a run, a service and a receiver of messages;
and what each of its readers says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pymysql
from prometheus_client.parser import text_string_to_metric_families
from tests.metaservice.pages.html import parse
from tests.support import mariadb
from tests.support.crash import Running, Taut
from tests.support.postgresql_servers import PostgreSQLServer

from tautochrone.model.alarms import AlarmRule

__all__ = ["BEHIND_S", "LEASE_S", "Expected", "Operated", "Service"]

LEASE_S = 5
BEHIND_S = 3
_FULL_BYTES = 4 * 1024**3
_SPEC = "name: shop\nstorage: storage\nlibraries:\n  - glob:\n      include: definitions/**\n"

_DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from tautochrone.sources import postgresql

spark = SparkSession.active()
BOTH = {"tautochrone.sinks": "left, right"}
postgresql.capture("shop", url=spark.conf.get("shop.url"), table_properties={"*.*": BOTH})
dp.create_sink("left", "postgresql", {"url": spark.conf.get("left.url")})
dp.create_sink("right", "mariadb", {"url": spark.conf.get("right.url")})


@dp.materialized_view(table_properties=BOTH)
def totals():
    return spark.sql("SELECT customer, 100 DIV min(amount) AS share FROM shop_orders GROUP BY customer")
"""

_PAGES = ("/", "/alarms", "/datasets", "/jobs", "/sources", "/checkpoints", "/graph")


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What all readers have to say: of the job, the datasets that fail, and the mirrors."""

    job: str = "running"
    failing: frozenset[str] = frozenset()
    left: str = "active"
    right: str = "active"


class Receiver:
    """A web server that takes the messages about alarms."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.messages.append(json.loads(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Service:
    """`taut serve`, which is restarted at the same port."""

    folder: Path
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _starts: int = 0

    def start(self) -> None:
        self._starts += 1
        log = self.folder / f"serve-{self._starts}.log"
        command = [sys.executable, "-m", "tautochrone.cli.main", "serve", "--port", str(self.port)]
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, cwd=self.folder, stderr=stderr)
        self._process = process
        while (serving := re.search(r"serving at http://[^\s\"]+:(\d+)", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        self.port = int(serving[1])

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)


class Reading:
    """Somebody who looks at all pages and at the metrics all the time."""

    def __init__(self, service: Service) -> None:
        self._service, self._stopped = service, Event()
        self.problems: list[str] = []
        self.requests = 0
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stopped.is_set():
            for page in (*_PAGES, "/metrics", "/api/v1/alarms"):
                try:
                    answer = httpx.get(f"{self._service.uri}{page}", timeout=20)
                except httpx.TransportError as error:
                    # The script kills the service, too.
                    if isinstance(error, httpx.TimeoutException):
                        self.problems.append(f"{page}: {error!r}")
                    continue
                self.requests += 1
                if answer.status_code != 200:
                    self.problems.append(f"{page}: {answer.status_code} {answer.text[:300]}")
            self._stopped.wait(0.2)


@dataclass
class Operated:
    """The pipeline and all that belongs to it; see the module."""

    folder: Path
    source: PostgreSQLServer
    left: PostgreSQLServer
    right: Any
    receiver: Receiver
    service: Service
    stack: ExitStack
    run_stack: ExitStack = field(default_factory=ExitStack)
    taut: Taut = field(init=False)
    running: Running = field(init=False)
    rows: int = 0

    @classmethod
    @contextmanager
    def make(cls, folder: Path) -> Iterator[Operated]:
        with ExitStack() as stack:
            servers = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="operated")))
            # Their user must come to their folders.
            servers.chmod(0o755)
            source = PostgreSQLServer.create(servers / "source")
            stack.callback(source.remove)
            left = PostgreSQLServer.create(servers / "left")
            stack.callback(left.remove)
            right = mariadb.private_server()
            stack.callback(right.remove)
            receiver = Receiver()
            stack.callback(receiver.close)
            project = folder / "project"
            (project / "definitions").mkdir(parents=True)
            (project / "spark-pipeline.yml").write_text(_SPEC)
            (project / "definitions" / "shop.py").write_text(_DEFINITIONS)
            free = shutil.disk_usage(folder).free
            (project / "tautochrone.toml").write_text(
                f"""
[spark]
master = "local[2]"
[spark.conf]
"spark.sql.shuffle.partitions" = "1"
"shop.url" = "{source.url}"
"left.url" = "{left.url}"
"right.url" = "mariadb://root@localhost/lake?unix_socket={right.socket}"
[run]
lease = "{LEASE_S}s"
[alarms]
sink_behind = "{BEHIND_S}s"
retained_log = "40MB"
disk_free = {free - _FULL_BYTES // 2}
disk_free_percent = 100
[alarms.notify.ops]
url = {{ env = "OPERATED_WEBHOOK" }}
"""
            )
            os.environ["OPERATED_WEBHOOK"] = receiver.url
            stack.callback(os.environ.pop, "OPERATED_WEBHOOK")
            with source.connect() as connection:
                connection.execute("CREATE TABLE orders (id int PRIMARY KEY, customer int, amount int)")
            service = Service(project)
            stack.callback(service.close)
            operated = cls(project, source, left, right, receiver, service, stack)
            operated.taut = Taut(project, folder)
            stack.callback(lambda: operated.run_stack.close())
            yield operated

    def start(self) -> None:
        """A continuous run."""
        self.run_stack.close()
        self.running = self.run_stack.enter_context(self.taut.start("--continuous", "--interval", "1s"))

    def insert(self, amount: int = 1) -> None:
        """An order of a customer of its own."""
        self.rows += 1
        with self.source.connect() as connection:
            connection.execute("INSERT INTO orders VALUES (%s, %s, %s)", (self.rows, self.rows, amount))

    def mirrored(self, sink: str) -> int:
        """How many orders a mirror shows."""
        if sink == "left":
            with self.left.connect() as connection:
                return int(connection.execute("SELECT count(*) FROM lake.totals").fetchone()[0])  # type: ignore[index]
        connection = self.right.connect(database="lake")
        try:
            cursor = connection.cursor()
            cursor.execute("SELECT count(*) FROM totals")
            return int(cursor.fetchone()[0])
        except pymysql.Error:
            return -1
        finally:
            connection.close()

    def fill_disk(self) -> Path:
        """Take the space that the setting `alarms.disk_free` is about."""
        file = self.folder.parent / "filler"
        with file.open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, _FULL_BYTES)
        return file

    def metrics(self) -> dict[str, list[Mapping[str, str]]]:
        """By metric the labels of its samples that are not 0."""
        labels: dict[str, list[Mapping[str, str]]] = {}
        text = httpx.get(f"{self.service.uri}/metrics", timeout=20).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.value:
                    labels.setdefault(sample.name, []).append(sample.labels)
        return labels

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.service.uri}/api/v1{path}", timeout=20).json()

    def page_alarms(self) -> set[tuple[str, str]]:
        """Rules and subjects of the page."""
        root = parse(httpx.get(f"{self.service.uri}/alarms", timeout=20).text)
        labels = [article.attributes["aria-label"] for article in root.all("article")]
        rules = {rule.value.replace("_", " "): rule.value for rule in AlarmRule}
        return {
            (rule, label.removeprefix(f"{words} "))
            for label in labels
            for words, rule in rules.items()
            if label.startswith(f"{words} ")
        }

    def said(self, lines_of: Callable[..., list[dict[str, Any]]]) -> dict[str, Any]:
        """What each reader says now.

        Args:
            lines_of: executes a command of the project with `--json`, and gives its lines.
        """
        metrics = self.metrics()
        jobs, datasets = self.get("/jobs"), self.get("/datasets")
        sinks, status = lines_of("sinks"), lines_of("status")
        page = httpx.get(f"{self.service.uri}/jobs", timeout=20).text
        return {
            "alarms": {
                "api": {(alarm["rule"], alarm["subject"]) for alarm in self.get("/alarms")},
                "page": self.page_alarms(),
                "metrics": {
                    (labels["rule"], labels["subject"]) for labels in metrics.get("tautochrone_alarm", ())
                },
                "command": {(line["rule"], line["subject"]) for line in lines_of("alarms")},
            },
            "job": {
                "api": jobs[0]["liveness"],
                "page": parse(page).all("tr")[1].children[2].text,
                "metrics": metrics["tautochrone_job_liveness"][0]["liveness"],
                "command": lines_of("jobs")[0]["liveness"],
            },
            "failing": {
                "api": {each["name"] for each in datasets if each["state"] == "failing"},
                "metrics": {
                    labels["dataset"]
                    for labels in metrics["tautochrone_dataset_state"]
                    if labels["state"] == "failing"
                },
                "command": {
                    each["dataset"] for each in status if each.get("state") == "failing" and "dataset" in each
                },
            },
            **{
                name: {
                    "metrics": next(
                        labels["state"]
                        for labels in metrics["tautochrone_sink_state"]
                        if labels["sink"] == name
                    ),
                    "command": next(line["state"] for line in sinks if line["sink"] == name),
                }
                for name in ("left", "right")
            },
        }
