"""What each key of the configuration may hold. Nothing is converted: `"4096"` is no integer, and `true` is none either.

A rule says what it expects in the words of the message, so that text and test of it cannot drift apart. Over 300 lines:
they are one list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from supervisor import budgets
from supervisor.config_find import absolute
from supervisor.config_shape import BUILT_IN, Config, EngineConfig, GatewayConfig, GroupConfig, LaunchConfig
from supervisor.slot import GROUP_NAME

if TYPE_CHECKING:
    from pathlib import Path

CONTEXT_MOST: Final = 10_000_000
SEQUENCES_MOST: Final = 64
POOL_MOST: Final = CONTEXT_MOST * SEQUENCES_MOST
QUEUE_MOST: Final = 10_000
"""Requests. Each is a connection and a body in the keeper's memory."""
CACHE_RAM_MOST_MIB: Final = 1 << 24
"""16 TiB. Whoever wants no limit does not want an account either."""
START_LIMIT_MOST: Final = 86_400
"""Seconds. No model loads for more than a day."""
WEDGE_LIMIT_LEAST: Final = 2
"""Seconds. A server is looked at once a second, and one look alone proves nothing."""
LOOP_LEAST: Final = budgets.LOOP_LIMIT
"""Seconds. Who computes is left alone for longer than who computes and does not turn its loop."""
STALL_MOST: Final = 31_536_000
"""Seconds: a year, which is never."""
IDLE_TTL_MOST: Final = 31_536_000
"""Seconds: a year. Whoever means longer means 0, never."""
BODY_LIMIT_MOST: Final = 512
"""MiB: what all requests that are held may take together (`supervisor.gateway.guard`)."""
GRACE_BELOW: Final = budgets.GROUP_STOP - budgets.SWEEP_LIMIT
"""Seconds. The whole stop of a group has GROUP_STOP, and the sweep after the grace needs its part of that."""

OURS: Final = "QUEENRIGHT_"
"""Beginning of the environment variables that are ours alone."""

OWNED: Final[Mapping[str, str]] = {
    "--host": "the proxy chooses it",
    "--port": "the proxy chooses it",
    "--model": "set `model` instead",
    "-m": "set `model` instead",
    "--ctx-size": "set `context` instead",
    "-c": "set `context` instead",
    "--parallel": "set `sequences` instead",
    "-np": "set `sequences` instead",
    "--kv-unified": "set `pool` instead",
    "-kvu": "set `pool` instead",
    "--no-kv-unified": "leave `pool` out instead",
    "-no-kvu": "leave `pool` out instead",
    "--api-key": "every group makes its own keys",
    "--api-key-file": "every group makes its own keys",
    "--alias": "set `role` instead",
    "-a": "set `role` instead",
}
"""Arguments that llama-server gets from us, and what to do instead of giving them."""

_CATALOG_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN: Final = 60
"""Characters of a value that a message shows."""


class Unfit(ValueError):
    """A value that breaks a rule. Its text is `expected …, found …`."""

    def __init__(self, expected: str, value: object) -> None:
        super().__init__(f"expected {expected}, found {show(value)}")


@frozen
class Rule:
    """What one key may hold. `take` gives the value to keep, and raises Unfit, or a group of them."""

    expected: str
    take: Callable[[Any], Any]

    def __call__(self, value: Any, _: object = None) -> Any:
        return self.take(value)

    def matches(self, value: object) -> bool:
        """Whether the value fits."""
        try:
            self.take(value)
        except Unfit:
            return False
        return True


def written(text: str) -> str:
    """Text in quotes, on one line, with nothing in it that a terminal would act upon."""
    short = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    quoted = json.dumps(short, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in quoted)


def show(value: object) -> str:
    """A value of a TOML file in a message: its kind, and itself where that is short."""
    match value:
        case bool():
            return f"the boolean {str(value).lower()}"
        case int():  # str() of an integer of thousands of digits raises, and 0xfff… may be one
            return f"the integer {value}" if value.bit_length() <= 64 else "an integer of more than 64 bits"
        case float():
            return f"the float {value}"
        case str():
            return f"the string {written(value)}"
        case dict() | list():
            return ("an empty " if not value else "a " if isinstance(value, dict) else "an ") + (
                "table" if isinstance(value, dict) else "array"
            )
    return f"the {type(value).__name__} {value}"


def _test(expected: str, fits: Callable[[Any], bool]) -> Rule:
    def take(value: Any) -> Any:
        if not fits(value):
            raise Unfit(expected, value)
        return value

    return Rule(expected, take)


def _integer(low: int, high: int, unit: str) -> Rule:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return _test(f"a whole number from {low} to {high} ({unit})", fits)


def _auto(low: int, high: int, unit: str) -> Rule:
    """As `_integer`, or "auto": what is decided when it is started, which is 0 from here on."""
    number = _integer(low, high, unit)
    expected = f'{number.expected}, or "auto"'

    def take(value: Any) -> int:
        if value == "auto":
            return 0
        try:
            return int(number.take(value))
        except Unfit:
            raise Unfit(expected, value) from None

    return Rule(expected, take)


def _seconds(bound: str, in_bound: Callable[[float], bool]) -> Rule:
    """Above 0, as `bound` says. A NaN is above nothing."""
    expected = f"a number above 0 and {bound} (seconds)"

    def take(value: Any) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and value > 0 and in_bound(value)):
            raise Unfit(expected, value)
        return float(value)

    return Rule(expected, take)


def _is_address(value: object) -> bool:
    """HOST:PORT, an IPv6 host in brackets. A name is for the one who listens to resolve."""
    if not isinstance(value, str):
        return False
    found = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):([0-9]{1,5})", value)
    return found is not None and int(found[1]) < 65536


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _path(base: Path, expected: str) -> Rule:
    """A path, made absolute."""

    def take(value: Any) -> Path:
        try:
            return absolute(value, base)
        except (TypeError, ValueError):
            raise Unfit(expected, value) from None

    return Rule(expected, take)


NAME: Final = _test(
    "a name of 1 to 32 characters a-z, 0-9 and -, the first not -",
    lambda value: isinstance(value, str) and GROUP_NAME.fullmatch(value) is not None,
)
_BOOLEAN: Final = _test("true or false", lambda value: isinstance(value, bool))
_ALIAS: Final = _test(
    "a name of 1 to 200 characters without blanks",
    lambda value: isinstance(value, str) and re.fullmatch(r"[!-~]{1,200}", value) is not None,
)
_HOST: Final = _test(
    "a host's name or address, without a port",
    lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,253}", value) is not None,
)
_ORIGIN: Final = _test(
    "SCHEME://HOST or SCHEME://HOST:PORT, such as http://localhost:3000",
    lambda value: (
        isinstance(value, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[!-.0-~]{1,253}", value) is not None
    ),
)
_FILE: Final = _test("the name of a file in the manifest", lambda value: _is_text(value) and value.strip() != "")
_ARGUMENT: Final = _test("a string without NUL", _is_text)


_AS_GIVEN: Final = Rule("what we give ourselves", lambda value: value)


def rules_of(base: Path, each: Callable[[Callable[[Any, Any], Any], Any], list[Any]]) -> dict[type, dict[str, Rule]]:
    """The rule of every key, by class; without the tables within tables, which `config_check` puts in.

    `base` is what relative paths are relative to; `each` applies a function to pairs and collects what it raises.
    """
    binary = "a path with a / in it (`./NAME` for one beside this file)"
    a_model = "the name of a catalog model, or a path (with a /, or ending in .gguf)"

    def program(value: Any) -> Path:
        # A bare name would leave it open whether PATH is meant or the file's directory; and "builtin" is a typing slip.
        if not isinstance(value, str) or "/" not in value:
            raise Unfit(binary, value)
        taken: Path = _path(base, binary).take(value)
        return taken

    def swap(value: Any) -> str:
        if value == BUILT_IN:
            return BUILT_IN
        try:
            return str(program(value))
        except Unfit:
            raise Unfit(f'"{BUILT_IN}" or {binary}', value) from None

    def model(value: Any) -> str:
        if isinstance(value, str) and ("/" in value or value.startswith("~") or value.lower().endswith(".gguf")):
            return str(_path(base, a_model).take(value))
        if isinstance(value, str) and _CATALOG_NAME.fullmatch(value) is not None:
            return value
        raise Unfit(a_model, value)

    def arguments(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise Unfit("an array of strings", value)
        return tuple(each(lambda _, argument: _ARGUMENT.take(argument), enumerate(value)))

    def names(rule: Rule) -> Callable[[Any], tuple[str, ...]]:
        def take(value: Any) -> tuple[str, ...]:
            if not isinstance(value, list):
                raise Unfit("an array of names", value)
            return tuple(each(lambda _, name: rule.take(name), enumerate(value)))

        return take

    def variable(name: str, value: Any) -> str:
        if _VARIABLE.fullmatch(name) is None:
            raise Unfit("a variable's name (letters, digits and _, no digit first)", name)
        if name.startswith(OURS):
            raise Unfit(f"no variable that begins with {OURS}, which are ours", name)
        if not _is_text(value):
            raise Unfit("a string without NUL", value)
        return str(value)

    def environment(value: Any) -> Mapping[str, str]:
        if not isinstance(value, dict):
            raise Unfit("a table of strings", value)
        return dict(zip(value, each(variable, value.items()), strict=True))

    return {
        Config: {"path": _AS_GIVEN},
        EngineConfig: {
            "slot": _path(base, "a path, not empty"),
            "keep_warm": _BOOLEAN,
            "llama_server": Rule(binary, program),
            "llama_swap": Rule(f'"{BUILT_IN}" or {binary}', swap),
        },
        GatewayConfig: {
            "enabled": _BOOLEAN,
            "listen": _test("HOST:PORT, such as 127.0.0.1:11411", _is_address),
            "ids": _test('"role" or "model"', lambda value: value in ("role", "model")),
            "deadline_s": _seconds(f"at most {START_LIMIT_MOST}", lambda s: s <= START_LIMIT_MOST),
            "comment_after_s": _seconds(f"at most {START_LIMIT_MOST}", lambda s: s <= START_LIMIT_MOST),
            "resume": _BOOLEAN,
            "api_key_file": _path(base, "a path, not empty"),
            "hosts": Rule("an array of names", names(_HOST)),
            "origins": Rule("an array of origins", names(_ORIGIN)),
            "body_limit_mb": _integer(1, BODY_LIMIT_MOST, "MiB"),
            "is_named": _AS_GIVEN,
        },
        GroupConfig: {
            "name": _AS_GIVEN,
            "folder": _AS_GIVEN,
            "kind": NAME,
            "options": _test("a table", lambda value: isinstance(value, dict)),
            "environment": Rule("a table of strings", environment),
            "grace_s": _seconds(f"below {GRACE_BELOW:g}", lambda s: s < GRACE_BELOW),
            "start_limit_s": _seconds(f"at most {START_LIMIT_MOST}", lambda s: s <= START_LIMIT_MOST),
            "wedge_limit_s": _seconds(
                f"at least {WEDGE_LIMIT_LEAST} and at most {START_LIMIT_MOST}",
                lambda s: WEDGE_LIMIT_LEAST <= s <= START_LIMIT_MOST,
            ),
            "start_period_s": _test(
                f"a number from 0 to {START_LIMIT_MOST} (seconds)",
                lambda s: isinstance(s, int | float) and not isinstance(s, bool) and 0 <= s <= START_LIMIT_MOST,
            ),
            "stall_limit_s": _seconds(
                f"at least {LOOP_LEAST:g} and at most {STALL_MOST}", lambda s: LOOP_LEAST <= s <= STALL_MOST
            ),
            "queue_limit": _integer(0, QUEUE_MOST, "requests that wait"),
            "plan": _BOOLEAN,
            "payload": Rule("an array of names", names(_FILE)),
        },
        LaunchConfig: {
            "role": NAME,
            "model": Rule(a_model, model),
            "context": _auto(1, CONTEXT_MOST, "tokens per sequence"),
            "sequences": _auto(1, SEQUENCES_MOST, "sequences at once"),
            "idle_ttl_s": _integer(0, IDLE_TTL_MOST, "seconds; 0 = never"),
            "arguments": Rule("an array of strings", arguments),
            "aliases": Rule("an array of names", names(_ALIAS)),
            "pool": _integer(0, POOL_MOST, "tokens; 0 = each sequence has its own `context`"),
            "least_context": _integer(0, CONTEXT_MOST, "tokens per sequence; 0 = whatever there is"),
            "cache_ram_mib": _integer(0, CACHE_RAM_MOST_MIB, "MiB of system memory; 0 = none"),
        },
    }
