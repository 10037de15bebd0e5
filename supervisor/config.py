"""The configuration: one TOML file, found, read, checked, and given as frozen data.

    config = load(find())

Quick commands that only need the slot call `config_find.locate_slot` instead, which costs a third of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.config_find import FILE_NAME, find, locate_slot, read, slot_of_environment, slot_of_user, toml_tree
from supervisor.config_shape import BUILT_IN, Config, EngineConfig, GatewayConfig, GroupConfig, LaunchConfig

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "BUILT_IN",
    "FILE_NAME",
    "Config",
    "EngineConfig",
    "GatewayConfig",
    "GroupConfig",
    "LaunchConfig",
    "default_slot",
    "find",
    "load",
    "locate_slot",
    "parse",
]


def load(path: Path) -> Config:
    """The configuration in the file `path`.

    Raises:
        ConfigError: the file cannot be read or used; its text has every problem of the file, one a line.
    """
    return parse(read(path), path)


def parse(text: str, path: Path) -> Config:
    """The configuration that `text` says; `path` is where it came from: for messages, and for relative paths in it.

    Raises:
        ConfigError: as `load`.
    """
    path = path.absolute()
    tree = toml_tree(text, path)
    from supervisor.config_check import structure  # brings cattrs, which a command that only looks never needs

    return structure(tree, path)


def default_slot(config: Config | None) -> Path:
    """The slot of a command that has its configuration at hand: QUEENRIGHT_SLOT, else the file's `slot`, else the
    user's state directory. Absolute; not created, not checked.

    Raises:
        ConfigError: QUEENRIGHT_SLOT is not a path.
    """
    if (slot := slot_of_environment()) is not None:
        return slot
    if config is not None and config.engine.slot is not None:
        return config.engine.slot
    return slot_of_user()
