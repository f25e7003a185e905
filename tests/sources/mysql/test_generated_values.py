"""Random values of all types: the copy, the log and the server's own text are the same."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from .conftest import Schema

_ROWS = 60


def _integer(bits: int, *, unsigned: bool = False) -> Callable[[random.Random], str]:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return lambda chance: str(chance.choice([low, high, 0, chance.randint(low, high)]))


def _decimal(precision: int, scale: int) -> Callable[[random.Random], str]:
    def value(chance: random.Random) -> str:
        digits = chance.choice(["9" * precision, "0", str(chance.randrange(10**precision))]).zfill(precision)
        whole, fraction = digits[: precision - scale], digits[precision - scale :]
        return f"{chance.choice(['-', ''])}{whole or '0'}{'.' if scale else ''}{fraction}"

    return value


def _double(chance: random.Random) -> str:
    bits = struct.unpack("<d", chance.randbytes(8))[0]
    digits = chance.randrange(10 ** chance.randint(1, 17)) * 10.0 ** chance.randint(-35, 20)
    numbers = [0.0, 1e300, -2.5e-300, 1 / 3, 123456789.125, chance.uniform(-1e9, 1e9), digits, -digits]
    # At these powers of ten an exponent begins and ends.
    numbers += [10.0**power for power in (-16, -15, -14, -5, 14, 15, 16)]
    return repr(chance.choice([*numbers, bits if math.isfinite(bits) else 1.0]))


def _float(chance: random.Random) -> str:
    digits = chance.randrange(10 ** chance.randint(1, 8)) * 10.0 ** chance.randint(-20, 18)
    return repr(chance.choice([0.0, 3.4e38, 1e-38, 0.1, 16777216.0, chance.uniform(-1e6, 1e6), digits]))


def _short_float(chance: random.Random) -> str:
    return repr(chance.uniform(-9e4, 9e4))


def _date(chance: random.Random) -> str:
    year, month, day = chance.choice(
        [(0, 0, 0), (2020, 0, 1), (2020, 2, 0), (9999, 12, 31), (1000, 1, 1), (0, 1, 1),
         (chance.randint(1, 9999), chance.randint(1, 12), chance.randint(1, 28))]
    )  # fmt: skip
    return f"{year:04}-{month:02}-{day:02}"


def _clock(chance: random.Random, digits: int) -> str:
    fraction = f".{chance.randrange(10**digits):0{digits}}" if digits else ""
    return f"{chance.randrange(24):02}:{chance.randrange(60):02}:{chance.randrange(60):02}{fraction}"


def _datetime(digits: int) -> Callable[[random.Random], str]:
    def value(chance: random.Random) -> str:
        day = _date(chance)
        return f"'{day} {'00:00:00' if day == '0000-00-00' else _clock(chance, digits)}'"

    return value


def _timestamp(digits: int) -> Callable[[random.Random], str]:
    def value(chance: random.Random) -> str:
        day = f"{chance.randint(1971, 2037)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"
        return chance.choice(["'0000-00-00 00:00:00'", f"'{day} {_clock(chance, digits)}'"])

    return value


def _time(digits: int) -> Callable[[random.Random], str]:
    def value(chance: random.Random) -> str:
        hours = chance.choice([0, 838, chance.randint(0, 837)])
        return f"'{chance.choice(['', '-'])}{hours:02}{_clock(chance, 0 if hours == 838 else digits)[2:]}'"

    return value


def _binary(longest: int) -> Callable[[random.Random], str]:
    def value(chance: random.Random) -> str:
        data = chance.randbytes(chance.choice([0, 1, longest, chance.randint(0, longest)]))
        return f"X'{(data + bytes(chance.randint(0, 2)))[:longest].hex()}'"

    return value


def _text(longest: int) -> Callable[[random.Random], str]:
    letters = 'aB \u00e9\u20ac\U0001f600\\\\%_"`\t\0'

    def value(chance: random.Random) -> str:
        size = chance.choice([0, 1, longest, chance.randint(0, longest)])
        text = "".join(chance.choice(letters) for _ in range(size))
        return f"CONVERT(X'{text[:longest].encode().hex()}' USING utf8mb4)"

    return value


def _geometry(chance: random.Random) -> str:
    return f"ST_GeomFromText('POINT({chance.randint(-9, 9)} {chance.random()})', {chance.choice([0, 4326])})"


def _quoted(value: Callable[[random.Random], str]) -> Callable[[random.Random], str]:
    return lambda chance: f"'{value(chance)}'"


TYPES: Mapping[str, Callable[[random.Random], str]] = {
    "TINYINT": _integer(8), "TINYINT UNSIGNED": _integer(8, unsigned=True), "SMALLINT": _integer(16),
    "MEDIUMINT": _integer(24), "MEDIUMINT UNSIGNED": _integer(24, unsigned=True), "INT": _integer(32),
    "INT UNSIGNED": _integer(32, unsigned=True), "BIGINT": _integer(64),
    "BIGINT UNSIGNED": _integer(64, unsigned=True), "INT(9) ZEROFILL": _integer(24, unsigned=True),
    **{f"DECIMAL({p}, {s})": _decimal(p, s)
       for p, s in ((1, 0), (1, 1), (9, 0), (9, 9), (10, 5), (18, 9), (38, 10), (65, 30), (65, 0), (30, 30))},
    "FLOAT": _float, "DOUBLE": _double, "FLOAT(7, 2)": _short_float, "DOUBLE(9, 3)": _short_float,
    "BIT(1)": _integer(1, unsigned=True),
    "BIT(8)": _integer(8, unsigned=True), "BIT(13)": _integer(13, unsigned=True),
    "BIT(64)": _integer(64, unsigned=True),
    "YEAR": lambda chance: str(chance.choice([0, 1901, 2155, chance.randint(1901, 2155)])),
    "DATE": _quoted(_date), "JSON": lambda chance: f"'[{chance.randint(-9, 9)}, \"\u00e9\"]'",
    **{f"TIME({n})": _time(n) for n in range(7)},
    **{f"DATETIME({n})": _datetime(n) for n in range(7)},
    **{f"TIMESTAMP({n}) NULL": _timestamp(n) for n in range(7)},
    "BINARY(7)": _binary(7), "BINARY(255)": _binary(255), "VARBINARY(9)": _binary(9),
    "VARBINARY(300)": _binary(300), "TINYBLOB": _binary(255), "BLOB": _binary(600),
    "LONGBLOB": _binary(70_000),
    "CHAR(1)": _text(1), "CHAR(9)": _text(9), "CHAR(255)": _text(255), "VARCHAR(9)": _text(9),
    "VARCHAR(300)": _text(300), "TINYTEXT": _text(60), "TEXT": _text(600), "LONGTEXT": _text(9_000),
    "ENUM('a', '', 'c''d', 'x,y', '\u00e9')": lambda chance: str(chance.randint(0, 5)),
    "SET('a', 'c''d', 'x', '\u00e9')": lambda chance: str(chance.randrange(16)),
    "GEOMETRY": _geometry,
}  # fmt: skip


def own_text(name: str, data_type: str) -> str:
    """How the server prints a value, in the project's form."""
    kind = data_type.partition("(")[0].split()[0]
    if kind in ("BINARY", "VARBINARY", "TINYBLOB", "BLOB", "LONGBLOB", "GEOMETRY"):
        return f"HEX({name})"
    if kind in ("BIT", "YEAR") or "ZEROFILL" in data_type:
        return f"CAST({name} + 0 AS CHAR)"
    if kind in ("FLOAT", "DOUBLE"):
        return f"CAST(CAST({name} AS DOUBLE) AS CHAR)"
    return f"CONCAT({name}, '+00:00')" if kind == "TIMESTAMP" else f"CAST({name} AS CHAR)"


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 9))])
def test_random_values_of_all_types(schema: Schema, seed: int) -> None:
    chance = random.Random(seed)
    names = {f"c{number}": data_type for number, data_type in enumerate(TYPES)}
    # Rows in pages are too short for all of these columns.
    parts = [dict(list(names.items())[start : start + 20]) for start in range(0, len(names), 20)]
    schema.run("SET SESSION sql_mode = '', time_zone = '+00:00'")
    for number, part in enumerate(parts):
        columns = ", ".join(f"{name} {data_type}" for name, data_type in part.items())
        schema.run(f"CREATE TABLE v{number} (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    log = schema.change_log()
    position = log.begin("reader")
    for number, part in enumerate(parts):
        for row in range(_ROWS):
            values = [
                "NULL" if chance.random() < 0.1 else TYPES[data_type](chance) for data_type in part.values()
            ]
            schema.run(f"INSERT INTO v{number} VALUES ({row}, {', '.join(values)})")
    logged: dict[str, dict[str, Any]] = {}
    for event in log.read(position, 100_000).rows.to_pylist():
        columns = dict(event["columns"])
        logged.setdefault(event["relation"], {})[columns["id"]] = columns
    for number, part in enumerate(parts):
        relation = f"{schema.name}.v{number}"
        rows = [dict(columns) for columns in log.read_chunk(relation, "{}")[0]["columns"].to_pylist()]
        copied = {row["id"]: row for row in rows}
        texts = ", ".join(own_text(name, data_type) for name, data_type in part.items())
        for row_id, *own in schema.rows(f"SELECT id, {texts} FROM v{number}"):
            for (name, data_type), text in zip(part.items(), own, strict=True):
                answers = (text, copied[str(row_id)][name], logged[relation][str(row_id)][name])
                if data_type.startswith(("FLOAT", "DOUBLE")) and schema.is_mysql:
                    # MySQL's CAST has less room than a result: it writes fewer digits, and more exponents.
                    answers = answers[1:]
                assert len({*answers}) == 1, (data_type, answers)
    log.close()
