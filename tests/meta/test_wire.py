"""What crosses between a job and a service comes out as it went in, whatever the store's methods ask for."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tautochrone import errors
from tautochrone.errors import FencedError, MetaError, TautochroneError
from tautochrone.meta.wire import (
    UnreadableError,
    decode,
    decode_error,
    encode,
    encode_error,
    remote_calls,
)
from tautochrone.model.checkpoint import CheckpointState
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode, unclassified

st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))  # what the store keeps
st.register_type_strategy(
    Reason,
    st.builds(unclassified, st.text())
    | st.builds(lambda name: Reason.of(ReasonCode.NEW_INPUT, input=name), st.text()),
)
PARTS = st.text(min_size=1).filter(lambda text: "." not in text)
st.register_type_strategy(
    TableName,
    st.builds(TableName, PARTS, st.lists(PARTS, min_size=1, max_size=3).map(tuple), PARTS),
)
HINTS = {
    repr(hint): (where, hint)
    for call in remote_calls().values()
    for where, hint in [
        *((f"{call.wire}({name})", hint) for name, hint in call.hints.items()),
        (f"{call.wire} ->", call.answer),
    ]
}.values()
"""Each type that crosses, with one of the places where it does."""


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Hypothesis asks for concrete collections where a signature only promises abstract ones."""
    inner = get_args(hint)
    if get_origin(hint) in (Iterable, Collection, Sequence):
        return st.lists(values(inner[0]), max_size=3).map(tuple)
    if get_origin(hint) is Mapping:
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=3)
    return st.from_type(hint)


@pytest.mark.parametrize("hint", [hint for _, hint in HINTS], ids=[where for where, _ in HINTS])
@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_all_arguments_and_results_cross_the_wire(hint: Any, data: st.DataObject) -> None:
    crosses(hint, data)


@pytest.mark.slow
@pytest.mark.parametrize("hint", [hint for _, hint in HINTS], ids=[where for where, _ in HINTS])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_many_arguments_and_results_cross_the_wire(hint: Any, data: st.DataObject) -> None:
    crosses(hint, data)


def crosses(hint: Any, data: st.DataObject) -> None:
    alternatives = [kind for kind in get_args(hint) if get_origin(hint) is not Mapping]
    optional = type(None) in alternatives
    value = data.draw(
        st.one_of(*(values(kind) for kind in alternatives)) if optional else values(hint), label="value"
    )
    crossed = decode(json.loads(json.dumps(encode(value, hint))), hint)
    assert crossed == value
    assert type(crossed) is type(value)


def test_the_surface_is_the_whole_surface() -> None:
    assert {
        "jobs.start_run",
        "jobs.take_over",
        "reads.resolve",
        "recovery.rebuild",
        "incarnation",
    } <= remote_calls().keys()
    assert not {"open", "close"} & remote_calls().keys()
    # Only what has a name can cross by name.
    kinds = {p.kind for call in remote_calls().values() for p in call.signature.parameters.values()}
    assert not {
        kind for kind in kinds if kind in (kind.VAR_POSITIONAL, kind.VAR_KEYWORD, kind.POSITIONAL_ONLY)
    }


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ("7", int),
        (2**63, int),
        (-(2**63) - 1, int),
        ({"１": 1}, Mapping[CheckpointNumber, int]),
        ({" 1": 1}, Mapping[CheckpointNumber, int]),
        (True, int),
        (7, str),
        (None, str),
        ("x", type(None)),
        (7, Version),
        ("lukewarm", CheckpointState),
        ("no.name", TableName),
        ({"x": "1"}, Mapping[TableName, Version]),
        ({"x": 1}, Mapping[CheckpointNumber, int]),
        ("ab", tuple[TableName, ...]),
        ([], Mapping[str, str]),
        ({}, errors.Excerpt),
    ],
)
def test_what_is_not_of_its_type_is_refused(data: Any, hint: Any) -> None:
    with pytest.raises(UnreadableError):
        decode(data, hint)


def test_number_keys_cross_and_dotted_names_do_not() -> None:
    hint = dict[CheckpointNumber, frozenset[TableName]]
    value = {CheckpointNumber(7): frozenset({TableName("a", ("b",), "c")})}
    assert decode(json.loads(json.dumps(encode(value, hint))), hint) == value
    with pytest.raises(ValueError, match="holds a dot"):
        encode(TableName("a", ("b",), "c.d"), TableName)


def test_unknown_fields_of_newer_versions_are_ignored() -> None:
    hint = remote_calls()["checkpoints.get"].answer
    data = {"number": 1, "state": "open", "cut_at_ms": 2, "published_at_ms": None, "roots": {}}
    assert decode({**data, "of_the_future": 1}, hint) == decode(data, hint)


ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, TautochroneError) and kind is not TautochroneError
]


@pytest.mark.parametrize("kind", ALL)
def test_errors_cross_whole(kind: type[TautochroneError]) -> None:
    error = kind(
        "SOME_CLASS.SUB",
        "It broke",
        hint="mend it",
        location="a.sql:4",
        sqlstate="42000",
        retryable=True,
        parameters={"a": "b"},
    )
    crossed = decode_error(json.loads(json.dumps(encode_error(error))))
    assert type(crossed) is kind
    assert vars(crossed) == vars(error)
    assert str(crossed) == str(error)


def test_unknown_error_type_of_a_newer_service() -> None:
    data = encode_error(FencedError("JOB_FENCED", "x")) | {"type": "TomorrowError"}
    assert type(decode_error(data)) is MetaError
    assert type(decode_error(data | {"type": "Mapping"})) is MetaError
    with pytest.raises(KeyError):
        decode_error({"message": "not ours"})
