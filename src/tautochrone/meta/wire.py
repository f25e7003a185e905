"""Calls of the store as JSON: arguments, answers and errors, each by its type hint.

cattrs does the work; what is added here is strictness (a text is never taken for a number), table names
as text, and keys that are numbers. Whatever a method of a store's protocol may say in its
signature must pass through; a test goes over all of them. Knows no method and no transport.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from functools import cache
from types import GenericAlias, NoneType
from typing import Any, get_args, get_origin, get_type_hints

from cattrs import Converter
from cattrs.errors import StructureHandlerNotFoundError
from cattrs.preconf.json import make_converter

from tautochrone import errors
from tautochrone.errors import MetaError, TautochroneError
from tautochrone.meta.protocols.marks import MethodEffect, effect_of
from tautochrone.meta.protocols.store import Store, parts
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason

__all__ = [
    "Call",
    "UnreadableError",
    "calls_of",
    "decode",
    "decode_error",
    "encode",
    "encode_error",
    "remote_calls",
]

_LOCAL_METHODS = frozenset({"close"})
"""What a process does with its own end of the store."""
_SET_BY_SERVICE = frozenset({"principal"})
"""Arguments that a service sets by who asks: nobody says them."""
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1


class UnreadableError(ValueError):
    """What came in is not what its type hint says."""


class Call:
    """One method (or property) of a store as it crosses: its mark, names and hints of what goes in and out.

    Attributes:
        wire: its name in `POST /rpc/{wire}`, `part.method`.
        part: the attribute of the store whose method it is; None: the store itself.
        method: its name there.
        effect: what it does to the store.
    """

    def __init__(self, part: str | None, method: str, member: Any) -> None:
        function: Any = member.fget if isinstance(member, property) else member
        effect = effect_of(function)
        if effect is None:
            raise TypeError(f"{function.__qualname__} is marked neither @reads nor @writes")
        self.part, self.method, self.effect = part, method, effect
        self.wire = method if part is None else f"{part}.{method}"
        self._is_property = isinstance(member, property)
        signature = inspect.signature(function)
        crossing = [p for name, p in signature.parameters.items() if name not in _SET_BY_SERVICE]
        self.signature = signature.replace(parameters=crossing)
        hints = get_type_hints(function)
        self.answer = hints["return"]
        self.hints = {name: hints[name] for name in list(self.signature.parameters)[1:]}

    @property
    def for_readers(self) -> bool:
        """Whether a caller with the role `read` may make it."""
        return self.effect is not MethodEffect.WRITES

    def of(self, store: Store, arguments: Mapping[str, Any]) -> Any:
        """Make the call at a store."""
        member = getattr(store if self.part is None else getattr(store, self.part), self.method)
        return member if self._is_property else member(**arguments)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name."""
        _, *given = self.signature.bind(None, *args, **kwargs).arguments.items()
        return dict(given)

    def encode_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What goes in, by name."""
        return {name: encode(value, self.hints[name]) for name, value in arguments.items()}

    def decode_arguments(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The other way.

        Raises:
            UnreadableError: an unknown name, one that is missing, a value of another type.
        """
        unknown = sorted(data.keys() - self.hints.keys())
        if unknown:
            raise UnreadableError(f"{self.wire} has no argument {unknown[0]}")
        arguments = {name: decode(value, self.hints[name]) for name, value in data.items()}
        try:
            self.signature.bind(None, **arguments)
        except TypeError as error:
            raise UnreadableError(f"{self.wire}: {error}") from None
        return arguments


def calls_of(part: str | None, protocol: type) -> tuple[Call, ...]:
    """The calls of one protocol: of a part of the store, or of the store itself (None).

    Raises:
        TypeError: a method has no mark.
    """
    return tuple(
        Call(part, name, member)
        for name, member in vars(protocol).items()
        if not name.startswith("_") and name not in _LOCAL_METHODS
        if isinstance(member, property) or inspect.isfunction(member)
    )


@cache
def remote_calls() -> Mapping[str, Call]:
    """All calls of a store by their names on the wire: whatever its protocols have."""
    protocols: list[tuple[str | None, type]] = [(None, Store), *parts().items()]
    return {call.wire: call for part, protocol in protocols for call in calls_of(part, protocol)}


def encode(value: Any, hint: Any) -> Any:
    """A value as what JSON can hold."""
    return _converter().unstructure(value, unstructure_as=hint)


def decode(data: Any, hint: Any) -> Any:
    """The other way.

    Raises:
        UnreadableError: the data is not of that type.
    """
    try:
        return _converter().structure(data, hint)
    except StructureHandlerNotFoundError:
        raise
    except Exception as error:
        raise UnreadableError(f"{_type_name(hint)} expected: {error!r}") from None


def encode_error(error: TautochroneError) -> dict[str, Any]:
    """An error with all that makes it one; its cause stays where it happened."""
    return {
        "type": type(error).__name__,
        "error_class": error.error_class,
        "message": error.message,
        "hint": error.hint,
        "location": error.location,
        "sqlstate": error.sqlstate,
        "retryable": error.retryable,
        "parameters": dict(error.parameters),
    }


def decode_error(data: Mapping[str, Any]) -> TautochroneError:
    """The same error here, of the same Python type.

    Raises:
        KeyError, TypeError: this is no error of ours.
    """
    fields = dict(data)
    # A type that only a newer service has is still an error of the store.
    kind = getattr(errors, str(fields.pop("type")), MetaError)
    known = isinstance(kind, type) and issubclass(kind, TautochroneError)
    named = {key: fields.pop(key) for key in ("error_class", "message")}
    return (kind if known else MetaError)(named["error_class"], named["message"], **fields)


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


@cache
def _converter() -> Converter:
    converter = make_converter(detailed_validation=False)
    for kind in (str, int, float, bool, NoneType):
        converter.register_structure_hook(kind, _structure_scalar(kind))
    # These are texts too, and would be taken for plain ones.
    converter.register_structure_hook(StrEnum, lambda data, kind: kind(data))
    converter.register_structure_hook(
        TableName, lambda data, _: _structure_table_name(_structure_scalar(str)(data, str))
    )
    converter.register_unstructure_hook(TableName, _unstructure_table_name)
    converter.register_structure_hook(Reason, lambda data, _: Reason.from_json(data))
    converter.register_unstructure_hook(Reason, Reason.to_json)
    converter.register_structure_hook_factory(
        _is_plain_collection, lambda hint: _structure_collection(converter, hint)
    )
    converter.register_unstructure_hook_factory(
        _is_plain_collection, lambda hint: _unstructure_collection(converter, hint)
    )
    converter.register_structure_hook_factory(_is_mapping, lambda hint: _structure_mapping(converter, hint))
    converter.register_unstructure_hook_factory(
        _is_mapping, lambda hint: _unstructure_mapping(converter, hint)
    )
    return converter


def _structure_scalar(kind: Any) -> Callable[[Any, Any], Any]:
    def structure(data: Any, _hint: Any) -> Any:
        whole = kind is float and type(data) is int
        if type(data) is not kind and not whole:
            raise TypeError(f"{data!r:.80} is no {kind.__name__}")
        if kind is int and not _MIN_INTEGER <= data <= _MAX_INTEGER:
            raise ValueError("the store keeps integers of 64 bits")
        return float(data) if whole else data

    return structure


def _structure_table_name(text: str) -> TableName:
    return TableName.parse(text)


def _unstructure_table_name(name: TableName) -> str:
    text = str(name)
    if TableName.parse(text) != name:
        raise ValueError(f"a part of {name!r} holds a dot: the store cannot keep such a name")
    return text


def _is_plain_collection(hint: Any) -> bool:
    return get_origin(hint) in (Iterable, Collection)


def _structure_collection(converter: Converter, hint: Any) -> Callable[[Any, Any], tuple[Any, ...]]:
    as_tuple: Any = GenericAlias(tuple, (*get_args(hint), ...))
    return lambda data, _: converter.structure(data, as_tuple)


def _unstructure_collection(converter: Converter, hint: Any) -> Callable[[Any], list[Any]]:
    (kind,) = get_args(hint)
    return lambda values: [converter.unstructure(value, unstructure_as=kind) for value in values]


def _integer_key(key: str) -> int:
    """Python's own reading takes spaces, underscores and the digits of every script."""
    digits = key.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise ValueError("a key is no integer of 64 bits")
    return int(key)


def _is_mapping(hint: Any) -> bool:
    return get_origin(hint) in (dict, Mapping)


def _unstructure_mapping(converter: Converter, hint: Any) -> Callable[[Mapping[Any, Any]], dict[str, Any]]:
    keys, values = get_args(hint)

    def unstructure(data: Mapping[Any, Any]) -> dict[str, Any]:
        return {
            str(converter.unstructure(key, unstructure_as=keys)): converter.unstructure(
                value, unstructure_as=values
            )
            for key, value in data.items()
        }

    return unstructure


def _structure_mapping(converter: Converter, hint: Any) -> Callable[[Any, Any], dict[Any, Any]]:
    keys, values = get_args(hint)
    base = keys
    while hasattr(base, "__supertype__"):
        base = base.__supertype__

    def structure(data: Any, _hint: Any) -> dict[Any, Any]:
        if not isinstance(data, dict):
            raise TypeError(f"{data!r:.80} is no mapping")
        return {
            # Keys are text in JSON, whatever they were.
            converter.structure(_integer_key(key) if base is int else key, keys): converter.structure(
                value, values
            )
            for key, value in data.items()
        }

    return structure
