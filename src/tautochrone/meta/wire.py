"""Calls of the store as JSON: arguments, answers and errors, each by its type hint.

cattrs does the work; what is added here is strictness (a text is never taken for a number), table names
as text, and keys that are numbers. Whatever a public method of `MetaStore` may say in its signature must
pass through; a test goes over all of them. Knows no method and no transport.
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
from tautochrone.meta import MetaStore
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason

__all__ = [
    "Call",
    "UnreadableError",
    "decode",
    "decode_error",
    "encode",
    "encode_error",
    "remote_calls",
]

_LOCAL = frozenset({"open", "close"})
"""What a process does with its own end of the store."""
_NOT_SAID = frozenset({"holder"})
"""Arguments that a service sets by who asks: nobody says them."""
_SMALLEST, _BIGGEST = -(2**63), 2**63 - 1


class UnreadableError(ValueError):
    """What came in is not what its type hint says."""


class Call:
    """One public method (or property) of the store as it crosses: names and hints of what goes in and out."""

    def __init__(self, name: str, member: Any) -> None:
        self.name = name
        self.is_property = isinstance(member, property)
        function: Any = member.fget if isinstance(member, property) else member
        signature = inspect.signature(function)
        crossing = [p for name, p in signature.parameters.items() if name not in _NOT_SAID]
        self.signature = signature.replace(parameters=crossing)
        hints = get_type_hints(function)
        self.answer = hints["return"]
        self.hints = {name: hints[name] for name in list(self.signature.parameters)[1:]}

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
            raise UnreadableError(f"{self.name} has no argument {unknown[0]}")
        arguments = {name: decode(value, self.hints[name]) for name, value in data.items()}
        try:
            self.signature.bind(None, **arguments)
        except TypeError as error:
            raise UnreadableError(f"{self.name}: {error}") from None
        return arguments


@cache
def remote_calls() -> Mapping[str, Call]:
    """The public surface of `MetaStore`, by name: methods that are added there are here by themselves."""
    return {
        name: Call(name, member)
        for name in dir(MetaStore)
        if not name.startswith("_") and name not in _LOCAL
        for member in [inspect.getattr_static(MetaStore, name)]
        if isinstance(member, property) or inspect.isfunction(member)
    }


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
        raise UnreadableError(f"{_spoken(hint)} expected: {error!r}") from None


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


def _spoken(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)


@cache
def _converter() -> Converter:
    converter = make_converter(detailed_validation=False)
    for kind in (str, int, float, bool, NoneType):
        converter.register_structure_hook(kind, _exactly(kind))
    # These are texts too, and would be taken for plain ones.
    converter.register_structure_hook(StrEnum, lambda data, kind: kind(data))
    converter.register_structure_hook(TableName, lambda data, _: _name(_exactly(str)(data, str)))
    converter.register_unstructure_hook(TableName, _text)
    converter.register_structure_hook(Reason, lambda data, _: Reason.from_json(data))
    converter.register_unstructure_hook(Reason, Reason.to_json)
    converter.register_structure_hook_factory(_is_plain_collection, lambda hint: _many(converter, hint))
    converter.register_unstructure_hook_factory(_is_plain_collection, lambda hint: _listed(converter, hint))
    converter.register_structure_hook_factory(_is_mapping, lambda hint: _mapping_in(converter, hint))
    converter.register_unstructure_hook_factory(_is_mapping, lambda hint: _mapping_out(converter, hint))
    return converter


def _exactly(kind: Any) -> Callable[[Any, Any], Any]:
    def structure(data: Any, _hint: Any) -> Any:
        whole = kind is float and type(data) is int
        if type(data) is not kind and not whole:
            raise TypeError(f"{data!r:.80} is no {kind.__name__}")
        if kind is int and not _SMALLEST <= data <= _BIGGEST:
            raise ValueError("the store keeps integers of 64 bits")
        return float(data) if whole else data

    return structure


def _name(text: str) -> TableName:
    return TableName.parse(text)


def _text(name: TableName) -> str:
    text = str(name)
    if TableName.parse(text) != name:
        raise ValueError(f"a part of {name!r} holds a dot: the store cannot keep such a name")
    return text


def _is_plain_collection(hint: Any) -> bool:
    return get_origin(hint) in (Iterable, Collection)


def _many(converter: Converter, hint: Any) -> Callable[[Any, Any], tuple[Any, ...]]:
    as_tuple: Any = GenericAlias(tuple, (*get_args(hint), ...))
    return lambda data, _: converter.structure(data, as_tuple)


def _listed(converter: Converter, hint: Any) -> Callable[[Any], list[Any]]:
    (kind,) = get_args(hint)
    return lambda values: [converter.unstructure(value, unstructure_as=kind) for value in values]


def _whole(key: str) -> int:
    """Python's own reading takes spaces, underscores and the digits of every script."""
    digits = key.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise ValueError("a key is no integer of 64 bits")
    return int(key)


def _is_mapping(hint: Any) -> bool:
    return get_origin(hint) in (dict, Mapping)


def _mapping_out(converter: Converter, hint: Any) -> Callable[[Mapping[Any, Any]], dict[str, Any]]:
    keys, values = get_args(hint)

    def unstructure(data: Mapping[Any, Any]) -> dict[str, Any]:
        return {
            str(converter.unstructure(key, unstructure_as=keys)): converter.unstructure(
                value, unstructure_as=values
            )
            for key, value in data.items()
        }

    return unstructure


def _mapping_in(converter: Converter, hint: Any) -> Callable[[Any, Any], dict[Any, Any]]:
    keys, values = get_args(hint)
    base = keys
    while hasattr(base, "__supertype__"):
        base = base.__supertype__

    def structure(data: Any, _hint: Any) -> dict[Any, Any]:
        if not isinstance(data, dict):
            raise TypeError(f"{data!r:.80} is no mapping")
        return {
            # Keys are text in JSON, whatever they were.
            converter.structure(_whole(key) if base is int else key, keys): converter.structure(value, values)
            for key, value in data.items()
        }

    return structure
