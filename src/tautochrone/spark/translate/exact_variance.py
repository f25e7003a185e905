"""Variances of integers and decimals from exact sums, from which the values of deleted rows are subtracted.

Let S = Σx, Q = Σx², and n the number of values. The sum of squared deviations from the mean is Q - S²/n, a
difference in which nearly all digits may cancel. Let q be the integer nearest to the mean and S = qn + r.
Then the same sum is Q - q²n - 2qr - r²/n. All terms but the last are exact, and the last is at most half of
the others. All numbers are in units of the values' last decimal place.

`regr_sxx` and `regr_syy` are this sum itself, over the rows in which neither argument is NULL.
"""

from __future__ import annotations

from py4j.java_gateway import JavaObject

from tautochrone.algebra.nodes import AggregateCall
from tautochrone.spark.jvm.catalyst import Catalyst, decimal_digits, kind

__all__ = [
    "argument_type",
    "call_text",
    "exact_digits",
    "sum_terms",
    "sum_types",
    "variance_argument",
    "variance_sql",
]

_SUM_OF_SQUARES = "RegrReplacement"
"""Catalyst's function for `regr_sxx` and `regr_syy`."""
_FUNCTIONS = frozenset({"VariancePop", "VarianceSamp", "StddevPop", "StddevSamp", _SUM_OF_SQUARES})
_INTEGER_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10}
_MAX_DIGITS = 13
"""The sum of 10¹⁰ squares of numbers with this many digits, and the terms above, fit into DECIMAL(38)."""


def variance_argument(function: JavaObject, catalyst: Catalyst) -> JavaObject | None:
    """The argument of a variance or standard deviation, without Spark's cast to double. None: it is another
    function, or the squares of its values are not exact."""
    if kind(function) not in _FUNCTIONS:
        return None
    argument = function.child()
    pair = _null_condition_and_value(argument)
    value = argument if pair is None else pair[1]
    if kind(value) != "Cast" or exact_digits(str(value.child().dataType().catalogString())) is None:
        return None
    if pair is None:
        return value.child()
    null = catalyst.null(value.child().dataType())
    return catalyst.expression("If")(pair[0], null, value.child())


def _null_condition_and_value(argument: JavaObject) -> tuple[JavaObject, JavaObject] | None:
    """The condition and the value of `if(a IS NULL OR b IS NULL, NULL, value)`, as which Catalyst writes that
    a regression needs both arguments; None for other expressions."""
    if kind(argument) != "If" or kind(argument.trueValue()) != "Literal" or argument.trueValue().value():
        return None
    return argument.predicate(), argument.falseValue()


def call_text(call: JavaObject) -> str:
    """An aggregate call as its query names it. Catalyst has one function for `regr_sxx` and `regr_syy`."""
    function = call.aggregateFunction()
    if kind(function) != _SUM_OF_SQUARES:
        return str(call.toString())
    pair = _null_condition_and_value(function.child())
    if pair is None or kind(pair[0]) != "Or":
        return f"regr_sxx or regr_syy({_uncast(function.child() if pair is None else pair[1])})"
    y, x = (condition.child() for condition in (pair[0].left(), pair[0].right()))
    name = "regr_sxx" if pair[1].semanticEquals(x) else "regr_syy"
    return f"{name}({_uncast(y)}, {_uncast(x)})"


def _uncast(expression: JavaObject) -> str:
    return str((expression.child() if kind(expression) == "Cast" else expression).toString())


def exact_digits(type_name: str) -> tuple[int, int] | None:
    """Precision and scale of a type; None: it has too many digits, or it is not exact."""
    precision, scale = decimal_digits(type_name) or (_INTEGER_DIGITS.get(type_name, _MAX_DIGITS + 1), 0)
    return (precision, scale) if precision <= _MAX_DIGITS and scale >= 0 else None


def argument_type(call: AggregateCall) -> str:
    """The type of the argument of a call, as its catalog string."""
    assert call.argument is not None
    return str(call.argument.handle.dataType().catalogString())


def sum_types(type_name: str) -> tuple[str, str]:
    """The types of S and Q in the state. S has the scale of the values, so that another scale means another
    state."""
    precision, scale = _precision_and_scale(type_name)
    return f"decimal({precision + 10},{scale})", f"decimal({2 * precision + 11},0)"


def sum_terms(value: str, type_name: str) -> tuple[str, str]:
    """The summands of S and Q for one value, as SQL."""
    precision, scale = _precision_and_scale(type_name)
    units = _in_units(value, precision, scale)
    return f"CAST({value} AS DECIMAL({precision},{scale}))", f"{units} * {units}"


def variance_sql(function: JavaObject, type_name: str, total: str, squares: str, count: str) -> str:
    """The function's result as SQL over the columns with S, Q and n."""
    precision, scale = _precision_and_scale(type_name)
    total = _in_units(total, precision + 10, scale)
    n = f"CAST({count} AS DECIMAL(20,0))"
    half = f"CASE WHEN {total} < 0 THEN -{n} ELSE {n} END"
    q = f"CAST((2BD * {total} + {half}) div (2BD * {n}) AS DECIMAL({precision + 1},0))"
    r = f"({total} - {q} * {n})"
    exact_terms = f"({squares} - {q} * {q} * {n} - 2BD * {q} * {r})"
    last_term = f"CAST({r} AS DOUBLE) * CAST({r} AS DOUBLE) / {count}"
    unit = f"1e{2 * scale}D"
    # Rounding may give a small negative number.
    deviations = f"abs(CAST({exact_terms} AS DOUBLE) - {last_term}) / {unit}"
    name = kind(function)
    sample = name.endswith("Samp")
    result = f"{deviations} / ({count} - 1)" if sample else f"{deviations} / {count}"
    if name == _SUM_OF_SQUARES:
        result = deviations
    if name.startswith("Stddev"):
        result = f"sqrt({result})"
    single = "" if not sample else f"WHEN {count} = 1 THEN {_sample_of_one(function)} "
    return f"CASE {single}WHEN {count} > 0 THEN {result} END"


def _sample_of_one(function: JavaObject) -> str:
    """The sample variance of a single value."""
    return "NULL" if function.nullOnDivideByZero() else "CAST('NaN' AS DOUBLE)"


def _in_units(value: str, precision: int, scale: int) -> str:
    return f"CAST({value} * 1{'0' * scale}BD AS DECIMAL({precision},0))"


def _precision_and_scale(type_name: str) -> tuple[int, int]:
    digits = exact_digits(type_name)
    assert digits is not None
    return digits
