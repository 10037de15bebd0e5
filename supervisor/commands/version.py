"""`queenright version`, where more than the bare number is asked for."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Final

from supervisor._version import __version__

if TYPE_CHECKING:
    import argparse


class Version:
    """The command."""

    help = "print the version"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        parser.add_argument(
            "--json", action="store_true", help="versions of queenright, Python and the system, as data"
        )
        parser.epilog = "example:\n  queenright version"

    def run(self, args: argparse.Namespace) -> int:
        """Print it."""
        if args.json:
            import json

            facts = {"queenright": __version__, "python": platform.python_version(), "system": platform.platform()}
            print(json.dumps(facts))
        else:
            print(f"queenright {__version__}")
        return 0


COMMAND: Final = Version()
