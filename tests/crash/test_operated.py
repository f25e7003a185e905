"""A day of an operator in minutes: a pipeline with a capture and two mirrors is killed, stopped, cut off,
filled and repaired, while pages, commands, metrics and messages are read. Each says what is so within
seconds, each alarm comes once, and none is left over.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import mariadb

from tautochrone.cli.main import main

from .operated import BEHIND_S, LEASE_S, Expected, Operated, Reading

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.slow]

SOON_S = 10.0
START_S = 90.0
"""A JVM that starts on a machine with other work."""
BACK_S = 30.0
"""A run that ended by an error is back when it has gone on for so long."""
MEASURED_S = 60.0
"""So often a run asks a captured database what it keeps; the disk twice as often."""

ORDERS, LOG, TOTALS = (f"lake.default.{table}" for table in ("shop_orders", "shop_log", "totals"))
DOWN = ("job_not_running", "shop")


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not mariadb.is_installed(), reason="no MariaDB server is installed")
def test_each_state_is_true_and_each_alarm_comes_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Operated.make(tmp_path) as operated:
        day = Day(operated, capsys)
        operated.insert()
        operated.start()
        operated.running.wait_for("checkpoint")
        operated.service.start()
        reading = Reading(operated.service)
        try:
            for part in (
                day.kills_the_run,
                day.stops_the_run_and_lets_it_go_on,
                day.cuts_the_source_off,
                day.cuts_one_mirror_off,
                day.kills_the_run_and_a_mirror,
                day.breaks_a_row,
                day.breaks_a_definition,
                day.fills_the_disk,
                day.lets_another_reader_keep_log,
                day.kills_the_service,
                day.ends_in_order,
            ):
                part()
            day.is_quiet()
            day.got_each_message_once()
        finally:
            reading.close()
        assert not reading.problems, Counter(reading.problems)
        assert reading.requests > 100


class Day:
    """The script. Each part begins and ends with a pipeline without alarms."""

    def __init__(self, operated: Operated, capsys: pytest.CaptureFixture[str]) -> None:
        self._operated, self._capsys = operated, capsys
        self._fired: list[tuple[str, str]] = []
        self._open: set[tuple[str, str]] = set()

    def kills_the_run(self) -> None:
        self.is_quiet(START_S)
        self._operated.running.kill()
        self._shows(Expected(job="not running"), DOWN, within_s=LEASE_S + SOON_S)
        self._operated.start()
        self.is_quiet(START_S)

    def stops_the_run_and_lets_it_go_on(self) -> None:
        os.kill(self._operated.running.pid, signal.SIGSTOP)
        self._shows(Expected(job="not running"), DOWN, within_s=LEASE_S + SOON_S)
        self._operated.running.resume()
        self.is_quiet()

    def cuts_the_source_off(self) -> None:
        self._operated.source.stop(crash=True)
        self._shows(Expected(failing=frozenset({LOG})), ("dataset_failing", LOG))
        self._operated.source.start()
        self.is_quiet()

    def cuts_one_mirror_off(self) -> None:
        self._operated.left.stop(crash=True)
        self._publishes_a_row_to("right")
        self._shows(Expected(left="failing"), ("sink_behind", "left"), within_s=BEHIND_S + SOON_S)
        self._operated.left.start()
        self.is_quiet()
        self._operated.right.kill()
        self._publishes_a_row_to("left")
        self._shows(Expected(right="failing"), ("sink_behind", "right"), within_s=BEHIND_S + SOON_S)
        self._operated.right.start()
        self.is_quiet()

    def kills_the_run_and_a_mirror(self) -> None:
        self._operated.left.stop(crash=True)
        self._publishes_a_row_to("right")
        behind = ("sink_behind", "left")
        self._shows(Expected(left="failing"), behind, within_s=BEHIND_S + SOON_S)
        self._operated.running.kill()
        self._shows(Expected(left="failing", job="not running"), behind, DOWN, within_s=LEASE_S + SOON_S)
        self._operated.start()
        self._shows(Expected(left="failing"), behind, within_s=START_S)
        self._operated.left.start()
        # The pauses between the tries have grown.
        self._until(lambda: self._operated.mirrored("left") == self._operated.rows)
        self.is_quiet()

    def breaks_a_row(self) -> None:
        self._operated.insert(amount=0)
        self._shows(Expected(failing=frozenset({TOTALS})), ("dataset_failing", TOTALS))
        with self._operated.source.connect() as connection:
            connection.execute("UPDATE orders SET amount = 1")
        self.is_quiet()

    def breaks_a_definition(self) -> None:
        file = self._operated.folder / "definitions" / "shop.py"
        text = file.read_text()
        self._ends_in_order()
        file.write_text(text.replace("FROM shop_orders", "FROM no_such_table"))
        self._operated.start()
        self._operated.running.wait()
        self._shows(Expected(job="failed"), DOWN)
        file.write_text(text)
        self._operated.start()
        self.is_quiet(START_S + BACK_S)

    def fills_the_disk(self) -> None:
        filler = self._operated.fill_disk()
        self._shows(Expected(), ("disk_space", "shop"), within_s=MEASURED_S / 2 + SOON_S)
        filler.unlink()
        self.is_quiet(MEASURED_S / 2 + SOON_S)

    def lets_another_reader_keep_log(self) -> None:
        with self._operated.source.connect() as connection:
            connection.execute("SELECT pg_create_logical_replication_slot('tautochrone_shop_9', 'pgoutput')")
            connection.execute("CREATE SCHEMA other; CREATE TABLE other.texts (text text)")
            connection.execute("ALTER TABLE other.texts ALTER COLUMN text SET STORAGE EXTERNAL")
            connection.execute(
                "INSERT INTO other.texts SELECT repeat('x', 1000000) FROM generate_series(1, 60)"
            )
        (capture,) = {
            labels["source"]
            for labels in self._operated.metrics()["tautochrone_capture_measured_timestamp_seconds"]
        }
        self._shows(Expected(), ("log_retained", capture), within_s=MEASURED_S + SOON_S)
        with self._operated.source.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot('tautochrone_shop_9')")
        self.is_quiet(MEASURED_S + SOON_S)

    def kills_the_service(self) -> None:
        self._operated.service.kill()
        self._operated.running.kill()
        time.sleep(LEASE_S)
        self._operated.service.start()
        self._shows(Expected(job="not running"), DOWN, within_s=LEASE_S + SOON_S)
        self._operated.service.kill()
        self._operated.service.start()
        self._shows(Expected(job="not running"), DOWN)
        self._operated.start()
        self.is_quiet(START_S)

    def ends_in_order(self) -> None:
        self._ends_in_order()
        self._shows(Expected(job="ended"))
        self._operated.start()
        self.is_quiet(START_S)
        self._operated.insert()
        self._until(
            lambda: self._operated.mirrored("left") == self._operated.mirrored("right") == self._operated.rows
        )

    def is_quiet(self, within_s: float = SOON_S) -> None:
        """No reader says that anything is wrong."""
        self._shows(Expected(), within_s=within_s)

    def got_each_message_once(self) -> None:
        """The receiver got a message for each alarm of the script and one at its end."""
        receiver, fired = self._operated.receiver, self._fired
        self._until(lambda: len(receiver.messages) >= 2 * len(fired))
        begins, ends = self._messages("fired"), self._messages("resolved")
        assert [alarm for _, *alarm in begins] == [[*alarm] for alarm in fired]
        assert Counter(ends) == Counter(begins)

    def _messages(self, kind: str) -> list[tuple[int, str, str]]:
        """The ids, rules and subjects of the alarms about which the receiver got such messages."""
        messages = self._operated.receiver.messages
        return [(each["id"], each["rule"], each["subject"]) for each in messages if each["message"] == kind]

    def _publishes_a_row_to(self, sink: str) -> None:
        """A mirror gets a new row, whatever the other one does."""
        self._operated.insert()
        self._until(lambda: self._operated.mirrored(sink) == self._operated.rows)

    def _ends_in_order(self) -> None:
        self._operated.running.terminate()
        self._operated.running.wait()

    def _shows(self, expected: Expected, *alarms: tuple[str, str], within_s: float = SOON_S) -> None:
        """All readers say within this time what is expected, and that there are these alarms alone."""
        deadline = time.monotonic() + within_s
        # A reading that began in time counts, however long it takes on a machine with other work.
        began = time.monotonic()
        while wrong := self._wrong(expected, {*alarms}):
            assert began < deadline, (expected, alarms, wrong)
            began = time.monotonic()
        self._fired += [alarm for alarm in alarms if alarm not in self._open]
        self._open = {*alarms}
        # An alarm that is over before its message is sent has none.
        self._until(lambda: len(self._messages("fired")) >= len(self._fired))

    def _wrong(self, expected: Expected, alarms: set[tuple[str, str]]) -> dict[str, object]:
        """What readers say that is not expected."""
        said = self._operated.said(self._lines)
        meant = {**vars(expected), "alarms": alarms}
        return {
            f"{subject} of {reader}": value
            for subject, readers in said.items()
            for reader, value in readers.items()
            if value != meant[subject]
        }

    def _lines(self, command: str) -> list[dict[str, Any]]:
        """What a command of the project answers; alarms are an exit status of their own."""
        self._capsys.readouterr()
        spec = str(self._operated.folder / "spark-pipeline.yml")
        assert main([command, "--spec", spec, "--json"]) in (0, 1)
        answered = self._capsys.readouterr()
        assert not answered.err, answered.err
        return [json.loads(line) for line in answered.out.splitlines()]

    @staticmethod
    def _until(condition: Callable[[], bool], within_s: float = START_S) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)
