"""`queenright plan`: what the configuration takes of this machine's memory, before anything is started. It only looks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from supervisor.commands._common import patience

if TYPE_CHECKING:
    import argparse

    from supervisor.config_shape import GroupConfig


class PlanCommand:
    """The command."""

    help = "what the configuration takes of this machine's memory, line by line, and whether it fits"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        parser.add_argument(
            "--config", type=Path, metavar="FILE", help="configuration (default: queenright.toml, upwards)"
        )
        parser.add_argument("--json", action="store_true", help="the same as data")
        parser.epilog = (
            "example:\n  queenright plan\n  queenright plan --json\n\n"
            "Against what is free now: an engine that runs already has taken its part. Exit status 6 when something does\n"
            "not fit. Never starts an engine."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Show it. Raises ConfigError or ModelError."""
        from supervisor import kinds, resolving
        from supervisor.devices.survey import survey
        from supervisor.errors import ExitCode

        config = resolving.load(args.config)
        by_kind: dict[str, list[GroupConfig]] = {}
        for group in config.groups.values():
            by_kind.setdefault(group.kind, []).append(group)
        forecasts: list[kinds.Forecast] = []
        silent: list[str] = []
        with patience("the devices and models to be looked at"):
            here = survey()
            for name, groups in by_kind.items():
                kind = kinds.find(name)
                if isinstance(kind, kinds.Foreseeing):
                    forecasts += kind.foresee(groups, here, config.engine)
                else:
                    silent += [group.name for group in groups]
        fits = all(forecast.fits for forecast in forecasts)
        if args.json:
            import json

            launches = [dict(forecast.data) for forecast in forecasts]
            print(json.dumps({"fits": fits, "launches": launches, "unknown_groups": silent}, indent=2))
        else:
            for forecast in forecasts:
                print("\n".join(forecast.lines))
            for name in silent:
                print(f"{name}: its kind does not say what it takes")
        return int(ExitCode.OK if fits else ExitCode.DOES_NOT_FIT)


COMMAND: Final = PlanCommand()
