"""From a configuration to what can be run: kinds found, binaries and models checked, every path absolute."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor import config as configuration
from supervisor import kinds
from supervisor.config_shape import Config, GroupConfig
from supervisor.contract import EngineSpec, GatewayIds, GatewaySpec, GroupSpec, Lifetime
from supervisor.errors import ConfigError
from supervisor.slot import Slot


def load(config: Config | Path | None) -> Config:
    """A configuration as it is, from a file, or the one found. Raises ConfigError."""
    if isinstance(config, Config):
        return config
    return configuration.load(configuration.find(explicit=config))


def resolve(config: Config, lifetime: Lifetime = Lifetime.MEMBERS) -> EngineSpec:
    """The engine that a configuration asks for. Everything that can be wrong is found here, before anything starts.

    Raises ConfigError, ModelError or EngineBinaryError.
    """
    groups = tuple(resolve_group(config, group) for group in config.groups.values())
    root = str(config.path.parent if config.path else Path.cwd())
    return EngineSpec(
        groups, lifetime=lifetime, keep_warm=config.engine.keep_warm, root=root, gateway=gateway_of(config)
    )


def gateway_of(config: Config) -> GatewaySpec:
    """The gateway that a configuration asks for."""
    wanted = config.gateway
    host, _, port = wanted.listen.rpartition(":")
    launches = (launch for group in config.groups.values() for launch in group.launches)
    return GatewaySpec(
        enabled=wanted.enabled,
        host=host.strip("[]"),
        port=int(port),
        is_named=wanted.is_named,
        ids=GatewayIds(wanted.ids),
        aliases={launch.role: launch.aliases for launch in launches if launch.aliases},
        key_file=str(wanted.api_key_file or ""),
        hosts=tuple(host.lower() for host in wanted.hosts),
        origins=tuple(origin.lower() for origin in wanted.origins),
        body_most_bytes=wanted.body_limit_mb << 20,
        deadline_s=wanted.deadline_s,
        comment_after_s=wanted.comment_after_s,
        resume=wanted.resume,
    )


def resolve_group(config: Config, group: GroupConfig) -> GroupSpec:
    """What a kind has against its part of the file is said with file and key, like all that is wrong with a file."""
    place = f"{config.path or 'configuration'}: groups.{group.name}"
    try:
        kind = kinds.find(group.kind)
    except ConfigError as error:
        raise ConfigError(f"{place}.kind: {error.what}", error.next_step) from error
    if group.payload and not isinstance(kind, kinds.Preparing):
        raise ConfigError(f"{place}.payload: expected none: the kind {group.kind} fetches nothing", "remove the key")
    try:
        return kind.resolve(group, config.engine)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error.what}", error.next_step) from error


def slot_of(config: Config) -> Slot:
    """The slot that a configuration uses."""
    return Slot(Path(os.path.abspath(configuration.default_slot(config))))
