"""`queenright release`: see `hold`."""

from supervisor.commands.hold import RELEASE as COMMAND

__all__ = ["COMMAND"]
