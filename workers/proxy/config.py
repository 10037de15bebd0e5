"""The configuration file: JSON, in llama-swap's vocabulary, read strictly.

JSON is YAML, so a file written for us also serves a real llama-swap; the reverse holds only for the keys listed here.
Unlike llama-swap, which ignores what it does not know, an unknown key is refused by name: a typo must not pass.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from supervisor.errors import ConfigError
from workers.proxy import limits
from workers.proxy.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_GROUP = "(default)"

# Accepted, checked for nothing, without effect here: they tune parts of llama-swap that this proxy does not have.
WITHOUT_EFFECT = frozenset({"captureBuffer", "metricsMaxInMemory", "performance"})


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model: how it is started, found and kept. Times are seconds."""

    id: str
    cmd: str
    argv: tuple[str, ...]
    host: str
    port: int
    path_prefix: str
    proxy: str
    check_path: str | None
    ttl: float
    unload_timeout: float
    env: tuple[tuple[str, str], ...]
    aliases: tuple[str, ...]
    concurrency_limit: int
    use_model_name: str
    unlisted: bool
    name: str
    description: str
    response_header_timeout: float


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Which models may be in memory together; the three switches mean what they mean to llama-swap."""

    id: str
    swap: bool
    exclusive: bool
    persistent: bool
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """The whole file, checked. `groups` covers every model: those in no group are in `(default)`."""

    health_check_timeout: float
    log_level: str
    log_to_stdout: str
    api_keys: tuple[str, ...]
    models: Mapping[str, ModelSpec]
    groups: Mapping[str, GroupSpec]

    def resolve(self, name: str) -> str | None:
        """The id of the model called `name` by id or alias, or None."""
        if name in self.models:
            return name
        return next((m.id for m in self.models.values() if name in m.aliases), None)


def load_config(path: Path) -> ProxyConfig:
    """Read and check the file.

    Raises:
        ConfigError: unreadable, not JSON, an unknown key, a wrong type, or names that do not fit together.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the proxy configuration: {error}") from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{path}: not JSON: {error}", "The built-in proxy reads JSON only; other YAML needs a real llama-swap."
        ) from error
    return parse_config(data, str(path))


def parse_config(data: object, source: str) -> ProxyConfig:
    """Check parsed JSON. `source` names the file in errors.

    Raises:
        ConfigError: as `load_config`.
    """
    top = Fields(data, source)
    _refuse_macros(data, source)
    unload_timeout = top.number("unloadTimeout", 0) or limits.DEFAULT_UNLOAD_TIMEOUT
    global_ttl = top.number("globalTTL", 0)
    models = {name: _model(name, fields, global_ttl, unload_timeout) for name, fields in top.mapping("models").items()}
    groups = _groups(top, models)
    health_check_timeout = top.number("healthCheckTimeout", limits.DEFAULT_HEALTH_CHECK_TIMEOUT)
    config = ProxyConfig(
        health_check_timeout=max(limits.LEAST_HEALTH_CHECK_TIMEOUT, health_check_timeout),
        log_level=top.choice("logLevel", "info", ("debug", "info", "warn", "error")),
        log_to_stdout=top.choice("logToStdout", "proxy", ("proxy", "upstream", "both", "none")),
        api_keys=tuple(top.strings("apiKeys")),
        models=models,
        groups=groups,
    )
    top.finish(ignored=WITHOUT_EFFECT)
    if "" in config.api_keys:
        raise ConfigError(f"{source}: apiKeys: an empty key would let everybody in")
    _check_names(config, source)
    return config


def _model(name: str, fields: Fields, global_ttl: float, unload_timeout: float) -> ModelSpec:
    cmd = fields.text("cmd", required=True)
    try:
        argv = tuple(shlex.split(_command_text(cmd)))
    except ValueError as error:
        raise ConfigError(f"{fields.where}.cmd: cannot be split into words: {error}") from error
    if not argv:
        raise ConfigError(f"{fields.where}.cmd: is empty")
    proxy = fields.text("proxy", required=True)
    host, port, prefix = _origin(proxy, f"{fields.where}.proxy")
    check = fields.text("checkEndpoint", default="/health")
    ttl = fields.number("ttl", -1, least=-1)
    timeouts = fields.section("timeouts")
    spec = ModelSpec(
        id=name,
        cmd=cmd,
        argv=argv,
        host=host,
        port=port,
        path_prefix=prefix,
        proxy=proxy,
        check_path=None if check == "none" else "/" + check.lstrip("/"),
        ttl=global_ttl if ttl < 0 else ttl,
        unload_timeout=fields.number("unloadTimeout", 0) or unload_timeout,
        env=tuple(_environment(fields)),
        aliases=tuple(fields.strings("aliases")),
        concurrency_limit=int(fields.number("concurrencyLimit", 0)) or limits.DEFAULT_CONCURRENCY,
        use_model_name=fields.text("useModelName"),
        unlisted=fields.flag("unlisted", default=False),
        name=fields.text("name"),
        description=fields.text("description"),
        response_header_timeout=timeouts.number("responseHeader", 0),
    )
    timeouts.finish()
    fields.finish()
    return spec


def _groups(top: Fields, models: Mapping[str, ModelSpec]) -> dict[str, GroupSpec]:
    groups: dict[str, GroupSpec] = {}
    home: dict[str, str] = {}
    for name, fields in top.mapping("groups").items():
        members = tuple(fields.strings("members"))
        groups[name] = GroupSpec(
            name,
            swap=fields.flag("swap", default=True),
            exclusive=fields.flag("exclusive", default=True),
            persistent=fields.flag("persistent", default=False),
            members=members,
        )
        fields.finish()
        for member in members:
            if member not in models:
                raise ConfigError(f"{fields.where}.members: there is no model {member!r}")
            if member in home:
                raise ConfigError(f"{fields.where}.members: {member!r} is already in group {home[member]!r}")
            home[member] = name
    stray = tuple(sorted(set(models) - set(home)))
    if stray and DEFAULT_GROUP not in groups:
        groups[DEFAULT_GROUP] = GroupSpec(DEFAULT_GROUP, swap=True, exclusive=True, persistent=False, members=stray)
    return groups


def _command_text(cmd: str) -> str:
    """Lines that begin with `#` are comments; a backslash at a line's end joins it with the next (llama-swap)."""
    lines = [line for line in cmd.splitlines() if not line.lstrip().startswith("#")]
    return "\n".join(lines).replace("\\\n", " ")


def _origin(url: str, where: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or not port or parts.query or parts.fragment:
        raise ConfigError(f"{where}: expected http://HOST:PORT, got {url!r}")
    return parts.hostname, port, parts.path.rstrip("/")


def _environment(fields: Fields) -> list[tuple[str, str]]:
    pairs = []
    for entry in fields.strings("env"):
        key, equals, value = entry.partition("=")
        if not key or not equals:
            raise ConfigError(f"{fields.where}.env: expected NAME=VALUE, got {entry!r}")
        pairs.append((key, value))
    return pairs


def _refuse_macros(data: object, where: str) -> None:
    if isinstance(data, str) and "${" in data:
        raise ConfigError(f"{where}: {data!r} uses a macro", "The built-in proxy has no macros; write the value out.")
    if isinstance(data, dict):
        for key, value in data.items():
            _refuse_macros(key, where)
            _refuse_macros(value, f"{where}: {key}")
    if isinstance(data, list):
        for value in data:
            _refuse_macros(value, where)


def _check_names(config: ProxyConfig, source: str) -> None:
    seen: dict[str, str] = dict.fromkeys(config.models, "a model")
    ports: dict[tuple[str, int], str] = {}
    for model in config.models.values():
        for alias in model.aliases:
            if alias in seen:
                raise ConfigError(f"{source}: models.{model.id}.aliases: {alias!r} is already {seen[alias]}")
            seen[alias] = f"an alias of {model.id!r}"
        other = ports.setdefault((model.host, model.port), model.id)
        if other != model.id:
            raise ConfigError(f"{source}: models.{model.id}.proxy: port {model.port} is already that of {other!r}")
