"""Taking secrets out of what a user sends to strangers. Pure.

Three ways, one behind the other: by the name of a key or an option, by value wherever it occurs (the groups' own keys
are known), and whole environment tables, since nobody can tell what is secret in them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REMOVED: Final = "(removed)"

SECRET_NAME: Final = re.compile(
    r"api[_-]?keys?|(?:^|[_.-])(?:key|keys|token|secret|secrets|password|passwd|credential|credentials|auth"
    r"|authorization|bearer)(?:$|[_.-])",
    re.IGNORECASE,
)
"""Names of keys, options and variables whose values are taken out, whatever they are."""

ENVIRONMENT: Final = ("environment", "env")
"""Tables (or lists of NAME=VALUE) that are emptied of their values."""

_OPTION: Final = re.compile(r"(--?[\w-]*(?:key|token|secret|password)(?!s?-file)\b)(=|\s+)(?!-)(\S+)", re.IGNORECASE)
_BEARER: Final = re.compile(r"(Bearer\s+)\S+", re.IGNORECASE)

SHORTEST: Final = 6
"""Letters of a value that is looked for everywhere: shorter ones would take half of every log with them."""


def values_in(tree: Any) -> Iterator[str]:
    """What `scrub` would take out of the tree, to be looked for elsewhere."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key in ENVIRONMENT and isinstance(value, dict):
                yield from (text for name, text in value.items() if isinstance(text, str) and _is_telling(name, text))
            elif isinstance(value, str) and SECRET_NAME.search(key):
                yield value
            else:
                yield from values_in(value)
    elif isinstance(tree, list | tuple):
        words = [word if isinstance(word, str) else "" for word in tree]
        for word, following in zip(words, [*words, ""][1:], strict=True):
            name, equals, value = word.partition("=")
            if name.startswith("-") and SECRET_NAME.search(name.lstrip("-")):
                yield value if equals else following
        for each in tree:
            yield from values_in(each)


def _is_telling(name: str, text: str) -> bool:
    """Whether a variable's value is worth looking for elsewhere: a path or a number is no secret, and is everywhere."""
    return bool(SECRET_NAME.search(name)) or (len(text) >= 16 and "/" not in text and " " not in text)


def scrub(tree: Any) -> Any:
    """The tree without the values of what looks like a secret, and without those of environment tables."""
    if isinstance(tree, dict):
        return {key: _scrubbed(key, value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [scrub(value) for value in _without_arguments(list(tree))]
    return tree


def _scrubbed(key: str, value: Any) -> Any:
    if key in ENVIRONMENT and isinstance(value, dict):
        return dict.fromkeys(value, REMOVED)
    if key in ENVIRONMENT and isinstance(value, list):
        return [f"{str(entry).partition('=')[0]}={REMOVED}" for entry in value]
    if SECRET_NAME.search(key) and value:
        return REMOVED
    return scrub(value)


def _without_arguments(words: list[Any]) -> list[Any]:
    out: list[Any] = []
    secret = False
    for word in words:
        name, equals, _ = word.partition("=") if isinstance(word, str) else ("", "", "")
        if secret and not str(word).startswith("-"):
            out.append(REMOVED)
            secret = False
            continue
        secret = name.startswith("-") and bool(SECRET_NAME.search(name.lstrip("-")))
        out.append(f"{name}={REMOVED}" if secret and equals else word)
        secret = secret and not equals
    return out


def text_without(text: str, values: Iterable[str]) -> str:
    """The text without these values, and without what stands behind an option or header that looks like a secret's."""
    for value in sorted({value for value in values if len(value) >= SHORTEST}, key=len, reverse=True):
        text = text.replace(value, REMOVED)
    text = _BEARER.sub(rf"\1{REMOVED}", text)
    return _OPTION.sub(rf"\1\2{REMOVED}", text)
