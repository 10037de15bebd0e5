"""The sub-command `queenright model`, found by the entry point `queenright.commands`. Imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse

    from workers.models import CatalogModel

EXAMPLES: Final = """\
examples:
  queenright model list
  queenright model pull smollm2-135m
  queenright model pull minilm-l6 --verify --json

Models go to the user's cache, or to $QUEENRIGHT_CACHE.
"""


class ModelCommand:
    """`queenright model list | pull NAME...`"""

    help: Final = "fetch the models that queenright knows, and list them"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the sub-command's arguments."""
        parser.epilog = EXAMPLES
        actions = parser.add_subparsers(dest="model_action", required=True, metavar="ACTION")
        listing = actions.add_parser("list", help="known models, and whether they are here")
        pulling = actions.add_parser("pull", help="bring a model into the cache")
        pulling.add_argument("names", nargs="+", metavar="NAME", help="a name out of `queenright model list`")
        pulling.add_argument("--verify", action="store_true", help="hash a model that is here already")
        for action in (listing, pulling):
            action.add_argument("--json", action="store_true", help="the result as JSON on stdout")

    def run(self, args: argparse.Namespace) -> int:
        """Carry it out. Raises QueenrightError, which the command line prints."""
        return _pull(args) if args.model_action == "pull" else _list(args)


MODEL: Final = ModelCommand()


def _list(args: argparse.Namespace) -> int:
    from workers.models import catalog

    rows = [_row(model) for model in catalog()]
    if args.json:
        _print_json({"models": rows})
        return 0
    for row in rows:
        where = row["path"] or f"not here: queenright model pull {row['name']}"
        print(f"{row['name']:14} {row['role']:6} {row['bytes'] / 1e6:6.1f} MB  {row['licence']:11} {where}")
    return 0


def _pull(args: argparse.Namespace) -> int:
    import time

    from workers.models import find, locate, pull
    from workers.progress import for_stream

    progress = for_stream()
    rows = []
    for model in [find(name) for name in dict.fromkeys(args.names)]:  # a wrong name is refused before any download
        here = locate(model.name) is not None
        began = time.monotonic()
        path = pull(model.name, progress=progress, verify=args.verify)
        seconds = round(time.monotonic() - began, 3)
        rows.append({**_row(model), "path": str(path), "already_here": here, "seconds": seconds})
    if args.json:
        _print_json({"models": rows})
    else:
        for row in rows:
            print(row["path"])
    return 0


def _row(model: CatalogModel) -> dict[str, Any]:
    from workers.models import locate

    path = locate(model.name)
    return {
        "name": model.name,
        "role": model.role,
        "licence": model.licence,
        "context": model.context,
        "bytes": model.size,
        "sha256": model.sha256,
        "path": str(path) if path else None,
    }


def _print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2))
