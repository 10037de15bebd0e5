"""cattrs without its conveniences: by itself it makes "5" an int, 1 a bool, and a string a tuple of letters.

It is imported where the first record is structured: it brings cattrs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import Enum, IntEnum, StrEnum
from typing import Any, Final, get_origin

from attrs import has
from cattrs import Converter

SCALARS: Final[dict[type, tuple[type, ...]]] = {str: (), bool: (), int: (), float: (int,)}
"""And the other types of which a value may be in its place."""


def converter() -> Converter:
    """A new one. What it raises names the type that was expected and the value that was found."""
    made = Converter(forbid_extra_keys=True, detailed_validation=True)
    for scalar, accepted in SCALARS.items():
        made.register_structure_hook(scalar, _scalar(scalar, *accepted))
    made.register_structure_hook(Enum, _enum)
    for base in (Enum, StrEnum, IntEnum):  # the nearest base class decides: str before Enum otherwise
        made.register_unstructure_hook(base, lambda member: member.value)
    # cattrs' own hook is looked up by the hook that checks the container first: it must not find itself then.
    busy: set[Any] = set()

    def checked(kind: Any) -> Any:
        busy.add(kind)
        try:
            inner = made.get_structure_hook(kind, cache_result=False)
        finally:
            busy.discard(kind)
        return _container(_shape_of(kind), inner)

    made.register_structure_hook_factory(lambda kind: kind not in busy and _shape_of(kind) is not None, checked)
    return made


def _scalar(kind: type, *accepted: type) -> Any:
    def hook(value: object, target: type) -> object:
        if target is not kind:  # cattrs looks hooks up by base class, and a StrEnum is a str
            return _enum(value, target)
        # By exact type: True is an int to isinstance.
        if type(value) not in (kind, *accepted):
            raise TypeError(f"expected {kind.__name__}, got {_show(value)}")
        return kind(value)

    return hook


def _enum(value: object, kind: Any) -> object:
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise TypeError(f"no record may hold a {kind.__name__}")
    allowed = [member.value for member in kind]
    if type(value) not in {type(each) for each in allowed} or value not in allowed:
        raise ValueError(f"expected one of {', '.join(map(repr, allowed))}, got {_show(value)}")
    return kind(value)


def _container(shape: type | None, inner: Any) -> Any:
    def hook(value: object, target: Any) -> object:
        if type(value) is not shape:
            expected = "an object" if shape is dict else "a list"
            raise TypeError(f"expected {expected}, got {_show(value)}")
        return inner(value, target)

    return hook


def _shape_of(kind: Any) -> type | None:
    """The JSON container that stands for a type; None for what is no container."""
    if has(kind):
        return dict
    origin = get_origin(kind) or kind
    if not isinstance(origin, type) or issubclass(origin, (str, bytes)):
        return None
    return dict if issubclass(origin, Mapping) else list if issubclass(origin, (Sequence, Set)) else None


def _show(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
