"""Whether a configuration is right: every problem of a file at once, each with its key, what was expected and found.

cattrs walks the classes and collects; the rules are ours (`config_rules`). llama-swap ignores unknown keys in silence;
we refuse them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

from attrs import fields
from cattrs import Converter
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationNote,
)
from cattrs.gen import make_dict_structure_fn, override

from supervisor.config_find import EXPLAIN
from supervisor.config_rules import NAME, OWNED, Rule, Unfit, rules_of, show, written
from supervisor.config_shape import DEFAULT_KIND, Config, EngineConfig, GatewayConfig, GroupConfig, LaunchConfig
from supervisor.errors import ConfigError
from supervisor.loopback import is_loopback_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

Key = tuple[str | int, ...]
T = TypeVar("T")

_GIVEN: Final[Mapping[type, tuple[str, ...]]] = {
    Config: ("path",),
    GroupConfig: ("name", "folder"),
    GatewayConfig: ("is_named",),
}
"""Fields that we fill in: no keys of the file."""

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def structure(tree: Mapping[str, Any], path: Path) -> Config:
    """The checked configuration out of parsed TOML. `path` is the file: for messages, and for relative paths in it.

    Raises:
        ConfigError: one line for each problem.
    """
    converter = Converter(detailed_validation=True)

    def engine(value: Any) -> EngineConfig:
        return converter.structure(_table(value, "[engine]"), EngineConfig)

    def gateway(value: Any) -> GatewayConfig:
        table = _table(value, "[gateway]")
        return converter.structure({**table, "is_named": "listen" in table}, GatewayConfig)

    def groups(value: Any) -> Mapping[str, GroupConfig]:
        if not _table(value, "[groups.NAME]"):
            raise Unfit("at least one [groups.NAME] table (there is nothing to run)", value)
        return dict(zip(value, _each(group, value.items()), strict=True))

    def group(name: str, value: Any) -> GroupConfig:
        given = {"name": name, "folder": path.parent}
        return converter.structure({**_table(value, "[groups.NAME]"), **given}, GroupConfig)

    def launches(value: Any) -> tuple[LaunchConfig, ...]:
        if not isinstance(value, list) or not value:
            raise Unfit("at least one [[groups.NAME.launches]] table", value)
        return tuple(_each(launch, enumerate(value)))

    def launch(_: int, value: Any) -> LaunchConfig:
        return converter.structure(_table(value, "[[groups.NAME.launches]]"), LaunchConfig)

    rules = rules_of(path.parent, _each)
    rules[Config] |= {
        "engine": Rule("an [engine] table", engine),
        "gateway": Rule("a [gateway] table", gateway),
        "groups": Rule("at least one [groups.NAME] table", groups),
    }
    rules[GroupConfig]["launches"] = Rule("at least one [[groups.NAME.launches]] table", launches)
    for cls, of_keys in rules.items():
        hooks: Any = {key: override(struct_hook=rule) for key, rule in of_keys.items()}
        fill: Any = make_dict_structure_fn(cls, converter, _cattrs_forbid_extra_keys=True, **hooks)
        converter.register_structure_hook(cls, fill)

    config = None
    problems: list[tuple[Key, str]] = []
    try:
        config = converter.structure({"engine": {}, **tree, "path": path}, Config)
    except ClassValidationError as error:
        problems += _problems(error, (), rules)
    problems += _across(tree)
    if config is None or problems:
        lines = [f"{path}: {written_key(key)}: {text}" for key, text in problems]
        raise ConfigError("\n".join(lines), EXPLAIN)
    return config


def written_key(key: Key) -> str:
    """A key as one would write it: `groups.chat.launches[0].model`; parts that TOML wants quoted are quoted."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += "." * bool(text) + (part if _BARE.fullmatch(part) else written(part))
    return text


def _table(value: Any, which: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unfit(f"a table, {which}", value)
    return value


def _each(take: Callable[[Any, Any], T], pairs: Any) -> list[T]:
    """What `take` makes of every (key or index, value). The failures of all come together, each noting its place."""
    taken = []
    failures: list[Exception] = []
    for place, value in pairs:
        try:
            taken.append(take(place, value))
        except (Unfit, ExceptionGroup) as error:
            error.add_note(IterableValidationNote(f"at {place}", place, None))
            failures.append(error)
    if failures:
        raise ExceptionGroup("unfit", failures)
    return taken


def _problems(
    group: ExceptionGroup[Exception], key: Key, rules: Mapping[type, Mapping[str, Rule]]
) -> Iterator[tuple[Key, str]]:
    """The leaves of what cattrs and `_each` collected, with their keys."""
    for error in group.exceptions:
        place = _place(error, key)
        match error:
            case ExceptionGroup():
                yield from _problems(error, place, rules)
            case ForbiddenExtraKeysError(cl=cls, extra_fields=extra):
                yield from (((*key, name), _unknown(name, cls)) for name in sorted(extra))
            case Unfit():
                yield place, str(error)
            case KeyError() if isinstance(group, ClassValidationError):
                yield place, f"missing; expected {rules[group.cl][str(place[-1])].expected}"
            case _:
                raise error  # a bug of ours, not the file's fault: it must not be dressed up as one


def _place(error: Exception, key: Key) -> Key:
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return (*key, note.name)
        if isinstance(note, IterableValidationNote):
            return (*key, note.index)
    return key


def _unknown(name: str, cls: type) -> str:
    keys = [attribute.name for attribute in fields(cls) if attribute.name not in _GIVEN.get(cls, ())]
    import difflib

    near = difflib.get_close_matches(name, keys, n=1)
    return f"unknown key; expected {'`' + near[0] + '`?' if near else 'one of ' + ', '.join(keys)}"


def _across(tree: Mapping[str, Any]) -> Iterator[tuple[Key, str]]:
    """What no single value tells. It reads the raw tree, skipping what is not well-formed, so that these problems show
    beside the others and not after them."""
    if "path" in tree:
        yield ("path",), _unknown("path", Config)
    if isinstance(gateway := tree.get("gateway"), dict) and "is_named" in gateway:
        yield ("gateway", "is_named"), _unknown("is_named", GatewayConfig)
    yield from _doorless(tree.get("gateway"))
    owners: dict[str, Key] = {}
    groups = tree.get("groups")
    yield from _aliases(groups)
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if not NAME.matches(name):
            yield ("groups", name), f"expected {NAME.expected}, found {show(name)}"
        if not isinstance(group, dict):
            continue
        if "name" in group:
            yield ("groups", name, "name"), "unknown key; the group's name is the one in its heading"
        if "folder" in group:
            yield ("groups", name, "folder"), _unknown("folder", GroupConfig)
        launches = group.get("launches")
        for index, launch in enumerate(launches if isinstance(launches, list) else ()):
            if not isinstance(launch, dict):
                continue
            key: Key = ("groups", name, "launches", index)
            if isinstance(role := launch.get("role"), str) and owners.setdefault(role, key) != key:
                where = written_key(owners[role])
                yield (*key, "role"), f"expected a role of its own, found {show(role)}, which {where} has already"
            least, context = launch.get("least_context", 0), launch.get("context", fields(LaunchConfig).context.default)
            if type(least) is type(context) is int and least > context:
                yield (*key, "least_context"), f"expected at most `context`, which is {context}, found {show(least)}"
            if type(pool := launch.get("pool")) is type(context) is int and 0 < pool < context:
                yield (*key, "pool"), f"expected 0 or at least `context`, which is {context}, found {show(pool)}"
            if group.get("plan") is False:
                for word in ("context", "sequences"):
                    if launch.get(word) == "auto":
                        yield (*key, word), 'expected a number: "auto" is what a plan finds, and `plan` is false'
            if launch.get("pool") and "auto" in (context, launch.get("sequences")):
                yield (
                    (*key, "pool"),
                    'expected 0 where `context` or `sequences` is "auto": a pool is shared by what is known',
                )
            if group.get("kind", DEFAULT_KIND) == DEFAULT_KIND:
                yield from _owned(launch.get("arguments"), (*key, "arguments"))


def _doorless(gateway: object) -> Iterator[tuple[Key, str]]:
    """Whoever can reach the gateway can use the models: other machines only with a key."""
    listen = gateway.get("listen") if isinstance(gateway, dict) and gateway.get("enabled", True) is True else None
    if isinstance(gateway, dict) and isinstance(listen, str) and "api_key_file" not in gateway:
        host = listen.rpartition(":")[0].strip("[]")
        if host and not is_loopback_host(host):
            text = f"expected an address of loopback, found {show(listen)}: for another one set `api_key_file` as well"
            yield ("gateway", "listen"), f"{text}, since other machines reach it (`openssl rand -hex 32` makes a key)"


def _launches(groups: object) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Every launch that is a table, wherever it stands."""
    for name, group in groups.items() if isinstance(groups, dict) else ():
        launches = group.get("launches") if isinstance(group, dict) else None
        for index, launch in enumerate(launches if isinstance(launches, list) else ()):
            if isinstance(launch, dict):
                yield ("groups", name, "launches", index), launch


def _aliases(groups: object) -> Iterator[tuple[Key, str]]:
    """A name means one model: an alias is no role, and no other model's alias."""
    owners = {launch["role"]: key for key, launch in _launches(groups) if isinstance(launch.get("role"), str)}
    for key, launch in _launches(groups):
        aliases = launch.get("aliases")
        for index, alias in enumerate(aliases if isinstance(aliases, list) else ()):
            if isinstance(alias, str) and owners.setdefault(alias, key) != key:
                where = written_key(owners[alias])
                yield (
                    (*key, "aliases", index),
                    f"expected a name of its own, found {show(alias)}, which {where} has already",
                )


def _owned(arguments: object, key: Key) -> Iterator[tuple[Key, str]]:
    """llama-server takes `_` for `-` in long flags (its common/arg.cpp), so `--ctx_size` is ours as well."""
    for index, argument in enumerate(arguments if isinstance(arguments, list) else ()):
        if isinstance(argument, str):
            flag = argument.partition("=")[0]
            flag = flag.replace("_", "-") if flag.startswith("--") else flag
            if flag in OWNED:
                yield (*key, index), f"expected an argument that is not ours to give, found {flag}: {OWNED[flag]}"
