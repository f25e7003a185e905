"""Variances of whole numbers and decimals by sums, out of which a row can be taken again.

With S = Σx, Q = Σx² and n values the squared distances from the mean add up to Q - S²/n, where nearly all
digits of two large numbers may cancel. So the values are moved close to their mean first: with S = qn + r it
is Q - q²n - 2qr - r²/n. All but the last part is exact, and with q the whole number next to the mean that
part is at most half of the rest. All of it counts in units of the values' last place.
"""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import AggregateCall
from tautochrone.spark.jvm.catalyst import decimal_digits, kind

__all__ = ["argument_type", "exact_digits", "sum_terms", "sum_types", "variance_argument", "variance_sql"]

_FUNCTIONS = frozenset({"VariancePop", "VarianceSamp", "StddevPop", "StddevSamp"})
_WHOLE = {"tinyint": 3, "smallint": 5, "int": 10}
_MOST_DIGITS = 13
"""Squares of that many digits, added up 10¹⁰ times, and what is made of them, are still a DECIMAL(38)."""


def variance_argument(function: JavaObject) -> JavaObject | None:
    """What a variance or standard deviation is taken of, before Spark makes a double of it; None: it is
    another function, or its values have no exact squares."""
    if kind(function) not in _FUNCTIONS or kind(function.child()) != "Cast":
        return None
    values = function.child().child()
    return None if exact_digits(str(values.dataType().catalogString())) is None else values


def exact_digits(type_name: str) -> tuple[int, int] | None:
    """Digits of a number, in all and behind the point; None: too many, or not exact."""
    precision, scale = decimal_digits(type_name) or (_WHOLE.get(type_name, _MOST_DIGITS + 1), 0)
    return (precision, scale) if precision <= _MOST_DIGITS and scale >= 0 else None


def argument_type(call: AggregateCall) -> str:
    """Of which type the values are that a call takes the variance of."""
    assert call.argument is not None
    return str(call.argument.handle.dataType().catalogString())


def sum_types(type_name: str) -> tuple[str, str]:
    """The types in which S and Q are kept. S has the values' scale: sums of another one are another state."""
    precision, scale = _known(type_name)
    return f"decimal({precision + 10},{scale})", f"decimal({2 * precision + 11},0)"


def sum_terms(value: str, type_name: str) -> tuple[str, str]:
    """What S and Q are the sums of, as SQL."""
    precision, scale = _known(type_name)
    units = _in_units(value, precision, scale)
    return f"CAST({value} AS DECIMAL({precision},{scale}))", f"{units} * {units}"


def variance_sql(function: JavaObject, type_name: str, total: str, squares: str, number: str) -> str:
    """The function's value, as SQL, from columns with S, Q and n."""
    precision, scale = _known(type_name)
    total = _in_units(total, precision + 10, scale)
    n = f"CAST({number} AS DECIMAL(20,0))"
    half = f"CASE WHEN {total} < 0 THEN -{n} ELSE {n} END"
    q = f"CAST((2BD * {total} + {half}) div (2BD * {n}) AS DECIMAL({precision + 1},0))"
    r = f"({total} - {q} * {n})"
    exact = f"({squares} - {q} * {q} * {n} - 2BD * {q} * {r})"
    small = f"CAST({r} AS DOUBLE) * CAST({r} AS DOUBLE) / {number}"
    unit = f"1e{2 * scale}D"
    # Rounding may leave a little less than 0.
    distances = f"abs(CAST({exact} AS DOUBLE) - {small}) / {unit}"
    name = kind(function)
    sample = name.endswith("Samp")
    result = f"{distances} / ({number} - 1)" if sample else f"{distances} / {number}"
    if name.startswith("Stddev"):
        result = f"sqrt({result})"
    one = "" if not sample else f"WHEN {number} = 1 THEN {_of_one_value(function)} "
    return f"CASE {one}WHEN {number} > 0 THEN {result} END"


def _of_one_value(function: JavaObject) -> str:
    return "NULL" if function.nullOnDivideByZero() else "CAST('NaN' AS DOUBLE)"


def _in_units(value: str, precision: int, scale: int) -> str:
    return f"CAST({value} * 1{'0' * scale}BD AS DECIMAL({precision},0))"


def _known(type_name: str) -> tuple[int, int]:
    found = exact_digits(type_name)
    assert found is not None
    return found
