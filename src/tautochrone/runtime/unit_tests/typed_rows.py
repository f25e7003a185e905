"""Rows of a unit test as rows of Spark: each value is cast to the type of its column, as `CAST` does it in
the session's time zone and with ANSI rules. A value that would lose digits is refused.

Texts reach Spark as hexadecimal digits: no sign in them can end a literal, or name a variable.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from tautochrone.errors import DefinitionError, all_at_once
from tautochrone.model.names import quoted
from tautochrone.project.unit_test_files import Fields, Items, Row, Rows, Scalar, Value, parsed_value
from tautochrone.runtime.unit_tests.query_rows import loss_sql, tables_of
from tautochrone.spark.analysis.session_context import dataframe_of_plan, session_settings
from tautochrone.spark.execute.materialize import local_relation
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["RefusedError", "columns_of", "json_of", "microseconds", "typed_rows"]

_ANSI = {"spark.sql.ansi.enabled": "true"}


def typed_rows(
    session: SparkSession, rows: Rows, schema: StructType, owner: str, columns: Sequence[str] | None = None
) -> DataFrame:
    """The rows, as a local relation. A column that a row does not name is NULL.

    Args:
        rows: values by column, or a query.
        schema: of the input or the model.
        owner: what the schema belongs to, for messages.
        columns: of the schema that the result has, in its spelling; None: all.

    Raises:
        DefinitionError: all at once `UNIT_TEST_COLUMN_NOT_FOUND`, `UNIT_TEST_VALUE_INVALID`,
            `UNIT_TEST_VALUE_MISSING`; `UNIT_TEST_QUERY_FAILED` for rows by a query.

    Example:
        >>> typed_rows(spark, Rows(location, (Row({"id": Scalar("1", "int", location)}, location),)),
        ...            schema, "orders").collect()  # doctest: +SKIP
        [Row(id=1, name=None)]
    """
    fields = [field for field in schema.fields if columns is None or field.name in columns]
    if rows.sql is not None:
        return _of_query(session, rows, fields, schema, owner)
    texts = _Texts(session, owner)
    table = [texts.row(row, fields, schema) for row in rows.rows]
    if texts.errors:
        raise all_at_once(texts.errors)
    names = ", ".join(quoted(field.name) for field in fields)
    lines = ", ".join(f"({', '.join(cell.sql for cell in cells)})" for cells in table)
    nulls = ", ".join(f"CAST(NULL AS {texts.type_sql(field.dataType)})" for field in fields)
    values = f"VALUES {lines} AS given({names})" if table else f"VALUES ({nulls}) AS given({names})"
    query = f"SELECT * FROM {values}" if table else f"SELECT * FROM {values} WHERE false"
    with session_settings(session, _ANSI):
        try:
            return _local(session.sql(query))
        except PySparkException as error:
            raise _refused_values(session, table, owner, error) from error


def columns_of(rows: Rows, schema: StructType, session: SparkSession) -> list[str]:
    """The columns that rows name, as the schema spells them, in its order; those of a query are its own.

    Raises:
        DefinitionError: `UNIT_TEST_QUERY_FAILED`.
    """
    named = rows.columns if rows.sql is None else _queried(session, rows).columns
    lowered = {name.lower() for name in named}
    return [name for name in schema.names if name.lower() in lowered]


def microseconds(session: SparkSession, value: Scalar) -> int:
    """A timestamp as microseconds since 1970-01-01 UTC.

    Raises:
        DefinitionError: `UNIT_TEST_VALUE_INVALID`.
    """
    text = _text_sql(value.text or "")
    with session_settings(session, _ANSI):
        try:
            row = session.sql(f"SELECT unix_micros(CAST({text} AS TIMESTAMP)) AS micros").first()
        except PySparkException as error:
            raise _invalid_error(value, f"{value.text} is no timestamp") from error
    if row is None or row["micros"] is None:
        raise _invalid_error(value, "the time of a unit test is NULL")
    return int(row["micros"])


def _local(frame: DataFrame) -> DataFrame:
    return dataframe_of_plan(frame.sparkSession, local_relation(frame)[0])


def _text_sql(text: str) -> str:
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


@dataclass(frozen=True, slots=True)
class _Cell:
    """One value as SQL, with the column that it is for."""

    sql: str
    column: str
    kind: str
    value: Value | None


class _Texts:
    """Makes SQL of values; collects what is wrong with them."""

    def __init__(self, session: SparkSession, owner: str) -> None:
        self._session, self._owner = session, owner
        self._types: dict[str, str] = {}
        self.errors: list[DefinitionError] = []

    def type_sql(self, kind: DataType) -> str:
        """A type as Spark's parser takes it."""
        text = kind.json()
        if text not in self._types:
            jvm = self._session._jvm  # noqa: SLF001
            assert jvm is not None
            self._types[text] = str(jvm.org.apache.spark.sql.types.DataType.fromJson(text).sql())
        return self._types[text]

    def row(self, row: Row, fields: Sequence[StructField], schema: StructType) -> list[_Cell]:
        by_name = {name.lower(): value for name, value in row.values.items()}
        for name in row.values:
            if name.lower() not in (known.lower() for known in schema.names):
                self.errors.append(_column_error(name, schema, self._owner, str(row.location)))
        return [self._cell(field, by_name.get(field.name.lower()), row) for field in fields]

    def _cell(self, field: StructField, value: Value | None, row: Row) -> _Cell:
        kind = field.dataType
        if value is None or (isinstance(value, Scalar) and value.text is None):
            if not field.nullable:
                self.errors.append(_missing_error(field.name, self._owner, value or row))
            return _Cell(f"CAST(NULL AS {self.type_sql(kind)})", field.name, kind.simpleString(), value)
        try:
            sql = self._value(value, kind)
        except RefusedError as refused:
            self.errors.append(
                _invalid_error(refused.value, f"column {field.name} of {self._owner} {refused.sentence}")
            )
            sql = "NULL"
        return _Cell(sql, field.name, kind.simpleString(), value)

    def _value(self, value: Value, kind: DataType) -> str:
        if isinstance(kind, VariantType):
            # A text is JSON itself; texts in a list or a mapping are texts.
            is_json = isinstance(value, Scalar) and value.tag == "str" and value.text is not None
            text = value.text if is_json and isinstance(value, Scalar) else json_of(value)
            return f"parse_json({_text_sql(text or '')})"
        if isinstance(kind, StructType | ArrayType | MapType):
            return self._nested(value, kind)
        if not isinstance(value, Scalar):
            raise RefusedError(value, f"has the type {kind.simpleString()}, and the value has several parts")
        if value.text is None:
            return f"CAST(NULL AS {self.type_sql(kind)})"
        if value.tag == "binary":
            content = f"X'{value.text}'"
            return content if isinstance(kind, BinaryType) else f"CAST({content} AS {self.type_sql(kind)})"
        if isinstance(kind, DecimalType):
            _check_digits(value, kind)
        text = value.text if isinstance(kind, StringType) else value.spelled or ""
        return f"CAST({_text_sql(text)} AS {self.type_sql(kind)})"

    def _nested(self, value: Value, kind: StructType | ArrayType | MapType) -> str:
        whole = self.type_sql(kind)
        if isinstance(value, Scalar):
            if value.text is None:
                return f"CAST(NULL AS {whole})"
            try:
                value = parsed_value(value.text, value.location)
            except ValueError:
                raise RefusedError(
                    value, f"has the type {kind.simpleString()}, and the text is no JSON"
                ) from None
        if isinstance(kind, ArrayType) and isinstance(value, Items):
            parts = [self._value(item, kind.elementType) for item in value.values]
            return f"CAST(array({', '.join(parts)}) AS {whole})"
        if isinstance(kind, MapType) and isinstance(value, Fields):
            parts = []
            for key, item in value.values.items():
                parts.append(self._value(Scalar(key, "str", value.location), kind.keyType))
                parts.append(self._value(item, kind.valueType))
            return f"CAST(map({', '.join(parts)}) AS {whole})"
        if isinstance(kind, StructType) and isinstance(value, Fields):
            return self._struct(value, kind)
        raise RefusedError(value, f"has the type {kind.simpleString()}, and the value has another form")

    def _struct(self, value: Fields, kind: StructType) -> str:
        by_name = {name.lower(): item for name, item in value.values.items()}
        known = {field.name.lower() for field in kind.fields}
        for name in value.values:
            if name.lower() not in known:
                raise RefusedError(value, f"has no field {name}; its fields are {', '.join(kind.names)}")
        parts = []
        for field in kind.fields:
            item = by_name.get(field.name.lower())
            text = f"CAST(NULL AS {self.type_sql(field.dataType)})"
            parts.append(text if item is None else self._value(item, field.dataType))
        # Names of fields come with the cast.
        named = ", ".join(f"'c{number}', {part}" for number, part in enumerate(parts))
        return f"CAST(named_struct({named}) AS {self.type_sql(kind)})"


class RefusedError(Exception):
    """A value that does not fit its type; `sentence` follows the name of the column."""

    def __init__(self, value: Value, sentence: str) -> None:
        super().__init__(sentence)
        self.value, self.sentence = value, sentence


def _check_digits(value: Scalar, kind: DecimalType) -> None:
    """Refuse a decimal number that `CAST` would round."""
    try:
        exponent = Decimal((value.spelled or "").strip()).normalize().as_tuple().exponent
    except InvalidOperation:
        # The cast refuses it.
        return
    if isinstance(exponent, int) and -exponent > kind.scale:
        raise RefusedError(
            value, f"has the type {kind.simpleString()}, and {value.text} has more decimal places"
        )


def json_of(value: Value) -> str:
    """A value as JSON. Numbers keep all digits that they are written with.

    Raises:
        RefusedError: a number that JSON does not have, such as NaN.

    Example:
        >>> json_of(parsed_value("{a: yes, b: [.50, 'x']}", location))  # doctest: +SKIP
        '{"a": true, "b": [0.50, "x"]}'
    """
    if isinstance(value, Fields):
        fields = (f"{json.dumps(name)}: {json_of(item)}" for name, item in value.values.items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, Items):
        return f"[{', '.join(map(json_of, value.values))}]"
    if value.text is None:
        return "null"
    if value.tag in ("bool", "int", "float"):
        return _json_scalar(value)
    return json.dumps(value.text)


_JSON_SWITCHES = {"true": "true", "yes": "true", "false": "false", "no": "false"}


def _json_scalar(value: Scalar) -> str:
    """A number or a Boolean value as JSON spells it: without a plus, with a digit before the point."""
    spelled = value.spelled or ""
    if value.tag == "bool" and spelled.lower() in _JSON_SWITCHES:
        return _JSON_SWITCHES[spelled.lower()]
    try:
        number = Decimal(spelled)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise RefusedError(value, f"has the type variant, and {value.text} is no value of JSON")
    return str(number)


def _queried(session: SparkSession, rows: Rows) -> DataFrame:
    # In parentheses only a query is valid, no command.
    text = f"SELECT * FROM (\n{(rows.sql or '').strip().rstrip(';')}\n)"
    try:
        frame = session.sql(text)
    except PySparkException as error:
        problem = problem_of(error)
        raise _query_error(rows, f"fails: [{problem.error_class}] {problem.message}") from error
    if tables := tables_of(frame):
        raise _query_error(rows, f"reads {', '.join(tables)}, and a unit test has no tables")
    return frame


def _of_query(
    session: SparkSession, rows: Rows, fields: Sequence[StructField], schema: StructType, owner: str
) -> DataFrame:
    frame = _queried(session, rows)
    lowered = [name.lower() for name in schema.names]
    unknown = [name for name in frame.columns if name.lower() not in lowered]
    if unknown:
        raise all_at_once([_column_error(name, schema, owner, str(rows.location)) for name in unknown])
    given = {name.lower(): name for name in frame.columns}
    texts = _Texts(session, owner)
    columns: list[str] = []
    losses: list[str] = []
    lost: dict[str, StructField] = {}
    for field in fields:
        name = given.get(field.name.lower())
        if name is None and not field.nullable:
            raise _missing_error(field.name, owner, rows)
        value, kind = "NULL" if name is None else quoted(name), texts.type_sql(field.dataType)
        columns.append(f"CAST({value} AS {kind}) AS {quoted(field.name)}")
        source = frame.schema[name].dataType if name is not None else field.dataType
        if loss := loss_sql(value, source, field.dataType, texts.type_sql):
            flag = f"__taut_lost_{len(lost)}"
            lost[flag] = field
            losses.append(f"CASE WHEN {loss} THEN CAST({value} AS STRING) END AS {flag}")
    with session_settings(session, _ANSI):
        try:
            local = _local(frame.selectExpr(*columns, *losses))
        except PySparkException as error:
            problem = problem_of(error)
            raise _query_error(rows, f"fails: [{problem.error_class}] {problem.message}") from error
    if not lost:
        return local
    _check_lost(local, lost, rows, owner)
    return _local(local.drop(*lost))


def _check_lost(local: DataFrame, lost: Mapping[str, StructField], rows: Rows, owner: str) -> None:
    """Refuse values of a query that a cast changed.

    Args:
        lost: columns of `local` with the texts of such values, for the columns of the schema.
    """
    errors = []
    for row in local.select(*lost).collect():
        for name, field in lost.items():
            if row[name] is not None:
                column = f"column {field.name} of {owner} has the type {field.dataType.simpleString()}"
                errors.append(_invalid_error(rows, f"{column}, and {row[name]} is another value in it"))
    if errors:
        raise all_at_once(errors)


def _refused_values(
    session: SparkSession, table: Sequence[Sequence[_Cell]], owner: str, error: PySparkException
) -> DefinitionError:
    """The errors of all values that do not cast, each asked for alone."""
    errors = []
    for cell in (cell for cells in table for cell in cells if cell.value is not None):
        try:
            session.sql(f"SELECT {cell.sql} AS v").collect()
        except PySparkException:
            text = cell.value.text if isinstance(cell.value, Scalar) else "the value"
            sentence = (
                f"column {cell.column} of {owner} has the type {cell.kind}, and {text} is no such value"
            )
            assert cell.value is not None
            errors.append(_invalid_error(cell.value, sentence))
    if errors:
        return all_at_once(errors)
    problem = problem_of(error)
    return DefinitionError(problem.error_class, f"The rows of {owner} cannot be made: {problem.message}")


def _query_error(rows: Rows, what: str) -> DefinitionError:
    return DefinitionError(
        "UNIT_TEST_QUERY_FAILED",
        f"The query of the rows {what}",
        location=str(rows.location),
        hint="A query of rows reads no tables: write SELECT 1 AS id UNION ALL SELECT 2.",
    )


def _invalid_error(value: Value | Rows, sentence: str) -> DefinitionError:
    return DefinitionError(
        "UNIT_TEST_VALUE_INVALID",
        f"A value does not fit: {sentence}",
        sqlstate="22018",
        location=str(value.location),
        hint="Write a value that Spark's CAST to this type takes and does not round, or NULL.",
    )


def _missing_error(column: str, owner: str, where: Value | Row | Rows) -> DefinitionError:
    return DefinitionError(
        "UNIT_TEST_VALUE_MISSING",
        f"The column {column} of {owner} is NOT NULL, and a row has no value for it",
        sqlstate="23502",
        location=str(where.location),
        hint="Give it a value: the table cannot hold such a row.",
    )


def _column_error(name: str, schema: StructType, owner: str, location: str) -> DefinitionError:
    near = difflib.get_close_matches(name, schema.names, n=1)
    return DefinitionError(
        "UNIT_TEST_COLUMN_NOT_FOUND",
        f"{owner} has no column {name}",
        sqlstate="42703",
        location=location,
        hint=f"did you mean {near[0]}?" if near else f"its columns are {', '.join(schema.names)}",
    )
