"""How the values of a topic are written and read: as JSON, or as Avro with a schema registry."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Protocol

import httpx
from pyspark.sql.types import StructType

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.sinks.common.errors import login_refused_error, rights_missing_error
from tautochrone.sinks.common.options import invalid_option_error
from tautochrone.sinks.json_rows import to_text
from tautochrone.sinks.kafka.avro import Codec, envelope_schema, row_schema
from tautochrone.sinks.kafka.control import Claim
from tautochrone.sinks.kafka.options import KafkaOptions, Mode, ValueFormat

__all__ = ["SchemaRegistry", "Values", "check_avro", "values_of"]

_HEADER = struct.Struct(">bi")
"""What precedes each value: the byte 0 and the number of its schema in the registry."""
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_S = 30.0


class Values(Protocol):
    """The values of one topic, from and to JSON values."""

    def encode(self, value: Mapping[str, Any]) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class _JsonValues:
    def encode(self, value: Mapping[str, Any]) -> bytes:
        return to_text(value).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class SchemaRegistry:
    """A schema registry with Confluent's HTTP interface."""

    def __init__(self, sink: str, options: KafkaOptions) -> None:
        self._sink = sink
        user, password = options.registry_user, options.registry_password
        self._client = httpx.Client(
            base_url=options.registry_url.rstrip("/") + "/",
            auth=(user, password) if user else None,
            headers={"Accept": _MEDIA_TYPE},
            timeout=_TIMEOUT_S,
        )
        self._codecs: dict[int, Codec] = {}

    def register(self, subject: str, schema: Mapping[str, Any]) -> int:
        """The number of a schema. The same one has the same number, also when it is registered again.

        Raises:
            SinkError: `SINK_SCHEMA_REFUSED`, `SINK_NOT_REACHABLE`, `SINK_LOGIN_REFUSED`,
                `SINK_RIGHTS_MISSING`.
        """
        body = json.dumps({"schema": json.dumps(schema)})
        answer = self._ask("POST", f"subjects/{subject}/versions", body)
        return int(answer["id"])

    def codec(self, number: int) -> Codec:
        """What a value was written with."""
        if number not in self._codecs:
            schema = json.loads(self._ask("GET", f"schemas/ids/{number}")["schema"])
            self._codecs[number] = Codec(schema)
        return self._codecs[number]

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, path: str, body: str | None = None) -> Any:
        try:
            response = self._client.request(
                method, path, content=body, headers={"Content-Type": _MEDIA_TYPE} if body else None
            )
        except httpx.HTTPError as error:
            raise self._unreachable_error(str(error)) from error
        if response.status_code >= 500 or response.status_code in (408, 429):
            raise self._unreachable_error(f"it answers {response.status_code}")
        if response.status_code in (401, 403):
            subject = f"Sink {self._sink}"
            answer = f"{response.status_code} {' '.join(response.text.split())[:500]}"
            if response.status_code == 401:
                settings = "the options schema.registry.user and schema.registry.password"
                raise login_refused_error(subject, "the schema registry", answer, settings=settings)
            raise rights_missing_error(
                subject,
                "the schema registry",
                answer,
                needed=f"The user must be allowed to {'read' if method == 'GET' else 'register'} schemas.",
            )
        if response.status_code != 200:
            raise SinkError(
                "SINK_SCHEMA_REFUSED",
                f"Sink {self._sink}: the schema registry refuses {path} with {response.status_code}: "
                f"{' '.join(response.text.split())[:500]}",
                hint="Columns that may be null are added: the subject's compatibility may be BACKWARD, "
                "FORWARD or FULL.",
                parameters={"sink": self._sink},
                sqlstate="42501",
            )
        return response.json()

    def _unreachable_error(self, problem: str) -> SinkError:
        return SinkError(
            "SINK_NOT_REACHABLE",
            f"Sink {self._sink}: the schema registry does not answer: {problem}",
            hint="Is it up, and is schema.registry.url right?",
            retryable=True,
            sqlstate="08006",
        )


class _AvroValues:
    """Avro with the header of Confluent's serializers.

    The schema is registered before the first value is written: what only reads needs no right to register.
    """

    def __init__(self, registry: SchemaRegistry, topic: str, schema: Mapping[str, Any]) -> None:
        self._registry = registry
        self._topic = topic
        self._schema = schema
        self._codec = Codec(schema)
        self._number: int | None = None

    def encode(self, value: Mapping[str, Any]) -> bytes:
        if self._number is None:
            self._number = self._registry.register(f"{self._topic}-value", self._schema)
        return _HEADER.pack(0, self._number) + self._codec.encode(value)

    def decode(self, data: bytes) -> Any:
        _, number = _HEADER.unpack_from(data)
        return self._registry.codec(number).decode(data[_HEADER.size :])


def values_of(sink: str, table: TableName, claim: Claim, registry: SchemaRegistry | None) -> Values:
    """How the values of a claimed topic are written."""
    if claim.value_format != ValueFormat.AVRO:
        return _JsonValues()
    if registry is None:
        raise invalid_option_error(
            sink, f"wrote the topic {claim.topic} as Avro, and now has value.format = json", "Set it back."
        )
    row = row_schema(sink, table, StructType.fromJson(dict(claim.schema)))
    return _AvroValues(registry, claim.topic, envelope_schema(row) if claim.mode == Mode.CHANGELOG else row)


def check_avro(sink: str, table: TableName, schema: Any, options: KafkaOptions) -> None:
    """Refuse a table that has no Avro schema, if the sink needs one.

    Raises:
        SinkError: `SINK_TYPE_UNSUPPORTED`.
    """
    if options.value_format is ValueFormat.AVRO:
        row_schema(sink, table, schema)
