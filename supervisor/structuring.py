"""Frozen attrs classes from plain JSON data, and back: every field there, no other, and no value converted.

For scalars, enums, optional values, lists, tuples of one type, mappings by name, and such classes in one another: what
records are made of. A library that does more (cattrs) had to be told in as many lines not to make "5" an int, 1 a bool
and a string a tuple of letters, and took a tenth of a keeper's start to import (measured).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from attrs import NOTHING, fields, has

Take = Callable[[Any, str, list[str]], Any]
"""The value of a type, out of plain data. What is wrong with it is added to the list, with the path of the field."""

SCALARS: Mapping[type, tuple[type, ...]] = {str: (), bool: (), int: (), float: (int,)}
"""And what else may stand for each. By exact type: True is an int to isinstance."""


def structure(data: object, kind: type, problems: list[str]) -> Any:
    """The instance that plain JSON data stands for; not to be used where there are `problems`, one text for each, such as
    `expected int, got str '5' @ EngineSpec.groups[0].queue_limit`. A whole number may stand for a float."""
    return _take(kind)(data, kind.__name__, problems)


def unstructure(value: Any) -> Any:
    """Plain JSON data: classes and mappings as objects, sequences as lists, enums as their values."""
    kind: Any = type(value)
    if kind in SCALARS or value is None:
        return value
    if (names := _names(kind)) is not None:
        return {name: unstructure(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: unstructure(each) for name, each in value.items()}
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (str, bytes)):
        return [unstructure(each) for each in value]
    return value


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """Of a class's fields; None for what is no attrs class."""
    return tuple(one.name for one in fields(kind)) if has(kind) else None


@cache
def _take(kind: Any) -> Take:
    """Raises TypeError for a type that no record may hold."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType) and len(inner) == 2 and NoneType in inner:
        return _optional(_take(next(each for each in inner if each is not NoneType)))
    if origin in SCALARS:
        return _scalar(origin)
    if isinstance(origin, type):
        if has(origin):
            return _class(origin)
        if issubclass(origin, Enum):
            return _enum(origin)
        if issubclass(origin, Mapping) and inner[:1] == (str,):
            return _mapping(_take(inner[1]))
        if origin is list or (origin is tuple and inner[1:] == (...,)):
            return _sequence(origin, _take(inner[0]))
    raise TypeError(f"no record may hold a {kind}")


def _scalar(kind: type) -> Take:
    accepted = (kind, *SCALARS[kind])

    def take(value: Any, path: str, problems: list[str]) -> Any:
        if type(value) not in accepted:
            return _wrong(f"expected {kind.__name__}, got {_show(value)} @ {path}", problems)
        return kind(value)

    return take


def _optional(given: Take) -> Take:
    return lambda value, path, problems: None if value is None else given(value, path, problems)


def _enum(kind: type[Enum]) -> Take:
    allowed = {(type(member.value), member.value): member for member in kind}

    def take(value: Any, path: str, problems: list[str]) -> Any:
        if type(value) in SCALARS and (found := allowed.get((type(value), value))) is not None:
            return found
        words = ", ".join(repr(member.value) for member in kind)
        return _wrong(f"expected one of {words}, got {_show(value)} @ {path}", problems)

    return take


def _mapping(given: Take) -> Take:
    def take(value: Any, path: str, problems: list[str]) -> Any:
        if type(value) is not dict:
            return _wrong(f"expected an object, got {_show(value)} @ {path}", problems)
        return {name: given(each, f"{path}[{name!r}]", problems) for name, each in value.items()}

    return take


def _sequence(kind: type, given: Take) -> Take:
    def take(value: Any, path: str, problems: list[str]) -> Any:
        if type(value) is not list:
            return _wrong(f"expected a list, got {_show(value)} @ {path}", problems)
        return kind([given(each, f"{path}[{number}]", problems) for number, each in enumerate(value)])

    return take


def _class(kind: type) -> Take:
    hints = get_type_hints(kind)
    known = {one.name: (_take(hints[one.name]), one.default is NOTHING) for one in fields(kind)}

    def take(value: Any, path: str, problems: list[str]) -> Any:
        if type(value) is not dict:
            return _wrong(f"expected an object, got {_show(value)} @ {path}", problems)
        before, given = len(problems), {}
        for name, (each, needed) in known.items():
            if name in value:
                given[name] = each(value[name], f"{path}.{name}", problems)
            elif needed:
                problems.append(f"this field is missing @ {path}.{name}")
        if unknown := sorted(map(str, value.keys() - known.keys())):
            problems.append(f"unknown field: {', '.join(unknown)} @ {path}")
        if len(problems) > before:
            return None
        try:
            return kind(**given)
        except (TypeError, ValueError) as error:  # the class's own checks
            return _wrong(f"{error} @ {path}", problems)

    return take


def _wrong(text: str, problems: list[str]) -> Any:
    """Note it; the value that nobody is to use."""
    problems.append(text)
    return None


def _show(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
