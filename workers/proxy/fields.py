"""Typed reading of one JSON object that remembers which keys were asked for, so that the others can be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection


class Fields:
    """One JSON object. Every reader names the place and what it expected; `finish` refuses keys nobody read.

    Raises:
        ConfigError: from every method, with file and key.
    """

    def __init__(self, data: object, where: str, at: str = "") -> None:
        self.where = f"{where}: {at}" if at else where
        if not isinstance(data, dict):
            raise ConfigError(f"{self.where}: expected an object, got {_kind(data)}")
        self._data: dict[str, object] = data
        self._source = where
        self._at = at
        self._known: set[str] = set()

    def _get(self, key: str) -> object:
        self._known.add(key)
        return self._data.get(key)

    def _wrong(self, key: str, expected: str, got: object) -> ConfigError:
        place = f"{self._at}.{key}" if self._at else key
        return ConfigError(f"{self._source}: {place}: expected {expected}, got {_kind(got)}")

    def _child(self, key: str, value: object) -> Fields:
        return Fields(value, self._source, f"{self._at}.{key}" if self._at else key)

    def text(self, key: str, *, default: str = "", required: bool = False) -> str:
        """A string."""
        value = self._get(key)
        if value is None and not required:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def number(self, key: str, default: float, *, least: float = 0) -> float:
        """A number of at least `least`. (JSON's true is not a number.)"""
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < float("inf"):
            raise self._wrong(key, f"a number of at least {least:g}", value)
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """true or false."""
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def choice(self, key: str, default: str, allowed: Collection[str]) -> str:
        """One of a few words."""
        value = self.text(key, default=default)
        if value not in allowed:
            raise self._wrong(key, f"one of {', '.join(allowed)}", value)
        return value

    def strings(self, key: str) -> list[str]:
        """A list of strings; absent is empty."""
        value = self._get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(key, "a list of strings", value)
        found: list[str] = []
        for item in value:
            if not isinstance(item, str):
                raise self._wrong(key, "a list of strings", item)
            found.append(item)
        return found

    def section(self, key: str) -> Fields:
        """An object; absent is empty."""
        value = self._get(key)
        return self._child(key, {} if value is None else value)

    def mapping(self, key: str) -> dict[str, Fields]:
        """An object whose keys are names and whose values are objects; absent is empty."""
        value = self._get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        parent = self._child(key, value)
        return {name: parent._child(name, inner) for name, inner in value.items()}

    def finish(self, *, ignored: Collection[str] = ()) -> None:
        """Refuse every key that nobody read, naming the nearest one there is."""
        for key in self._data:
            if key not in self._known and key not in ignored:
                from difflib import get_close_matches  # a slow import that a good file never needs

                close = get_close_matches(key, self._known, 1)
                place = f"{self._at}.{key}" if self._at else key
                raise ConfigError(
                    f"{self._source}: {place}: unknown key" + (f"; did you mean {close[0]!r}?" if close else ""),
                    "" if close else "The built-in proxy reads a part of llama-swap's configuration only.",
                )


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
