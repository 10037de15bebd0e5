"""From a configuration to what can be run: kinds found, binaries and models checked, every path absolute."""

from __future__ import annotations

import os
from pathlib import Path

from supervisor import config as configuration
from supervisor import kinds
from supervisor.config_shape import Config
from supervisor.contract import EngineSpec, Lifetime
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
    groups = tuple(kinds.find(group.kind).resolve(group, config.engine) for group in config.groups.values())
    return EngineSpec(groups, lifetime=lifetime, keep_warm=config.engine.keep_warm)


def slot_of(config: Config) -> Slot:
    """The slot that a configuration uses."""
    return Slot(Path(os.path.abspath(configuration.default_slot(config))))
