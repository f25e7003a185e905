"""Who delivers to a sink: whose control topic it is, the fence, and the producer of the newest owner.

An owner commits only with a producer that it opened before it read in the control topic that no newer owner
is there. A newer one must open a producer before it writes its fence, which ends that producer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import Fence
from tautochrone.model.sink import TransactionId
from tautochrone.sinks.common.steps import require_fence
from tautochrone.sinks.json_rows import to_text
from tautochrone.sinks.kafka.client import Client, LoginRefusals, ProducerLostError, Session
from tautochrone.sinks.kafka.control import FENCE, OWNER, ControlTopic, Owner
from tautochrone.sinks.kafka.options import KafkaOptions

__all__ = ["Owners"]

_Record = tuple[str, Mapping[str, Any]]


class Owners:
    """See the module docstring.

    Attributes:
        session: the open producer.
        sent: whose records its open transaction has.
    """

    def __init__(
        self,
        sink: str,
        client: Client,
        control: ControlTopic,
        options: KafkaOptions,
        refusals: LoginRefusals,
        make_producer: Callable[[KafkaOptions, LoginRefusals], Any],
    ) -> None:
        self._sink = sink
        self._client = client
        self._control = control
        self._options = options
        self._refusals = refusals
        self._make_producer = make_producer
        self._claimed: Owner | None = None
        self._session_fence = Fence(0)
        self.session: Session | None = None
        self.sent: TransactionId | None = None

    def claim(self, lake: str) -> None:
        """See `model.sink.Sink.claim`."""
        self._claimed = Owner(self._sink, lake)
        self._refresh()
        if self._control.owner is None:
            self._open(self._control.fence)
            self.close_producer()

    def require(self, fence: Fence) -> None:
        """Refuse an owner that is not the newest, and a control topic of somebody else.

        Raises:
            SinkFencedError; SinkError: `SINK_DATABASE_TAKEN`.
        """
        try:
            self._refresh()
            require_fence(self._sink, fence, self._control.fence)
        except SinkError:
            self.close_producer()
            raise

    def fence(self, fence: Fence) -> None:
        """See `model.sink.Sink.fence`."""
        self.require(fence)
        is_recorded = self._control.fence == fence and self._claimed in (None, self._control.owner)
        if self.session is None or self._session_fence != fence or not is_recorded:
            self.close_producer()
            self._open(fence)

    def session_for(self, fence: Fence) -> Session:
        """A producer that no newer owner has ended yet, as far as is known."""
        self.fence(fence)
        assert self.session is not None
        return self.session

    def has_sent(self, transaction: TransactionId, fence: Fence) -> bool:
        """Whether the open transaction of the producer has the records of this one."""
        return self.session is not None and self._session_fence == fence and self.sent == transaction

    def close_producer(self) -> None:
        session, self.session, self.sent = self.session, None, None
        if session is not None:
            session.close()

    def abort_open(self) -> None:
        """Drop what the open Kafka transaction has, by force if its producer does not answer."""
        session, self.sent = self.session, None
        if session is not None:
            try:
                self.abort(session)
            except (SinkError, ProducerLostError):
                self.close_producer()

    def abort(self, session: Session) -> None:
        """Drop what the open transaction has, and wait until the partitions know."""
        if session.is_open:
            session.abort()
            self._client.await_decided(session.ends)

    @contextmanager
    def errors(self, fence: Fence) -> Iterator[None]:
        """After any failure the next operation opens a new producer, which ends what this one began."""
        try:
            yield
        except ProducerLostError as error:
            self.close_producer()
            self.require(fence)
            raise SinkError(
                "SINK_SESSION_LOST",
                f"Sink {self._sink}: Kafka ended the transaction or its producer ({error})",
                hint="A transaction may take kafka.transaction.timeout.ms; brokers allow at most their "
                "transaction.max.timeout.ms. The next try sends it again.",
                retryable=True,
                parameters={"sink": self._sink},
            ) from error
        except BaseException:
            self.close_producer()
            raise

    def commit_records(self, session: Session, records: Sequence[_Record]) -> None:
        """Commit records of the control topic in a Kafka transaction of their own."""
        self.abort(session)
        self.sent = None
        session.begin()
        self.send_records(session, records)
        session.commit()
        self._client.await_decided(session.ends)
        self._control.refresh()

    def send_records(self, session: Session, records: Sequence[_Record]) -> None:
        headers = self._control.headers()
        for key, value in records:
            session.send(self._control.name, key.encode(), to_text(value).encode(), headers)

    def _open(self, fence: Fence) -> None:
        """Open a producer, and write whose the control topic is."""
        self._control.create()
        with self.errors(fence):
            producer = self._make_producer(self._options, self._refusals)
            self.session = Session(self._sink, producer, self._refusals)
            # Somebody else may have come between the first look and the producer.
            self.require(fence)
            self._session_fence = fence
            records: list[_Record] = []
            if self._control.owner is None and self._claimed is not None:
                records.append((OWNER, self._claimed.as_json()))
            if self._control.fence < fence:
                records.append((FENCE, {"fence": int(fence)}))
            if records:
                self.commit_records(self.session, records)

    def _refresh(self) -> None:
        self._control.refresh()
        owner, claimed = self._control.owner, self._claimed
        if owner is None or claimed is None or owner == claimed:
            return
        whose = (
            f"sink {owner.sink} of this lake"
            if owner.lake == claimed.lake
            else f"sink {owner.sink} of another lake ({owner.lake})"
        )
        raise SinkError(
            "SINK_DATABASE_TAKEN",
            f"Sink {self._sink}: the control topic {self._control.name} belongs to {whose}",
            hint="Give the sink other topics by the options control_topic and topic. If nothing delivers to "
            "these any more, also after a sink was renamed or the lake got another catalog, delete the "
            "control topic and the topics of the tables: the next run creates them, and delivers all rows.",
            parameters={"sink": self._sink, "owner": owner.sink, "lake": owner.lake},
            sqlstate="55000",
        )
