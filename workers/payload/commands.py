"""The sub-command `queenright payload`, found by the entry point `queenright.commands`. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse

    from workers.payload.manifest import Manifest
    from workers.payload.pointing import Pointer
    from workers.payload.trash import Aside
    from workers.payload.verifying import Finding

EXAMPLES: Final = """\
examples:
  queenright payload list
  queenright payload verify --full --json
  queenright payload fetch overlay.hgn
  queenright payload purge halogen
  queenright payload retire models/old.gguf --to models/new.gguf
  queenright payload restore models/old.gguf

The files are those of queenright.payload.toml, here or in a directory above: docs/reference/payload.md.
"""


class PayloadCommand:
    """`queenright payload list | verify | fetch | purge | retire | restore`"""

    help: Final = "check the files that engines read, fetch them, put them aside and bring them back"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the sub-command's arguments."""
        parser.epilog = EXAMPLES
        actions = parser.add_subparsers(dest="payload_action", required=True, metavar="ACTION")
        listing = actions.add_parser("list", help="the files of the manifest, and what was put aside")
        verify = actions.add_parser("verify", help="is what lies there what the manifest says?")
        fetch = actions.add_parser("fetch", help="bring what is missing or wrong; goes on where it ended")
        purge = actions.add_parser("purge", help="bring everything anew, and only then replace what is there")
        for action in (verify, fetch, purge):
            action.add_argument(
                "names", nargs="*", metavar="NAME", help="a file, or a model with its sidecars (default: all)"
            )
        verify.add_argument("--full", action="store_true", help="hash every byte, not only size and time of change")
        retire = actions.add_parser("retire", help="put a file aside, with a way back")
        retire.add_argument("path", metavar="PATH", help="a file or directory, or a name of `queenright model list`")
        retire.add_argument(
            "--to", metavar="NEW", help="what is used instead; needed where something still points at it"
        )
        restore = actions.add_parser("restore", help="bring back what was put aside")
        restore.add_argument("path", metavar="PATH", help="where it was")
        for action in (listing, verify, fetch, purge, retire):
            action.add_argument("--manifest", type=Path, metavar="PATH", help="instead of looking for one")
        retire.add_argument(
            "--also", type=Path, action="append", default=[], metavar="PATH", help="another configuration to look into"
        )
        for action in (listing, verify, fetch, purge, retire, restore):
            action.add_argument("--json", action="store_true", help="the result as JSON on stdout")

    def run(self, args: argparse.Namespace) -> int:
        """Carry it out. Raises QueenrightError, which the command line prints."""
        return int(_ACTIONS[args.payload_action](args))


PAYLOAD: Final = PayloadCommand()


def _manifest(args: argparse.Namespace) -> Manifest:
    from workers.payload import manifest

    return manifest.read(manifest.find(args.manifest))


def _list(args: argparse.Namespace) -> int:
    from workers.payload import trash, verifying
    from workers.progress import Silent

    found = _manifest(args)
    looks = {item.path: verifying.look(item, full=False, progress=Silent()) for item in found.items}
    folders = dict.fromkeys(item.path.parent for item in found.items)
    aside = [each for folder in folders for each in trash.listed(folder)]
    if args.json:
        rows = [
            {
                **_row(looks[item.path]),
                "size": item.size,
                "sha256": item.sha256,
                "of": item.of,
                "source": str(item.source) if item.source else None,
            }
            for item in found.items
        ]
        _print_json({"manifest": str(found.path), "files": rows, "retired": [_aside_row(each) for each in aside]})
        return 0
    for item in found.items:
        print(
            f"{looks[item.path].status:14} {item.size:>16,}  {item.path}  from {item.source or 'nowhere: it has no source'}"
        )
    for each in aside:
        print(f"put aside: {each.was}, in {each.folder}" + (f"; instead of it {each.to}" if each.to else ""))
    return 0


def _verify(args: argparse.Namespace) -> int:
    from supervisor.errors import ExitCode
    from workers.payload import verifying
    from workers.progress import Silent, for_stream

    found = _manifest(args)
    progress = for_stream() if args.full else Silent()
    rows = verifying.verify(found, found.chosen(args.names), full=args.full, progress=progress)
    if args.json:
        good = all(row.is_good for row in rows)
        _print_json({"manifest": str(found.path), "good": good, "files": [_row(row) for row in rows]})
    else:
        for row in rows:
            print(f"{row.status:14} {row.path}: {row.detail}")
        if bad := [row for row in rows if not row.is_good]:
            print(f"{len(bad)} of {len(rows)} are not as they should be: `queenright payload fetch` brings them")
    return ExitCode.OK if all(row.is_good for row in rows) else ExitCode.ERROR


def _fetch(args: argparse.Namespace) -> int:
    from workers.payload import directories, fetching
    from workers.progress import for_stream

    found = _manifest(args)
    directories.make(found.directories)
    items = found.chosen(args.names)
    progress = for_stream()
    return _told(args, [(item.path, fetching.fetch(item, progress=progress)) for item in items])


def _purge(args: argparse.Namespace) -> int:
    from workers.payload import purging
    from workers.progress import for_stream

    found = _manifest(args)
    return _told(args, list(purging.purge(found.chosen(args.names), progress=for_stream())))


def _told(args: argparse.Namespace, rows: list[tuple[Path, str]]) -> int:
    if args.json:
        _print_json({"files": [{"path": str(path), "done": done} for path, done in rows]})
    else:
        for path, done in rows:
            print(f"{path}: {done}")
    return 0


def _retire(args: argparse.Namespace) -> int:
    from supervisor.errors import ConfigError, PayloadError
    from workers.payload import manifest, pointing, trash

    path = _place(args.path)
    to = _target(args.to, path) if args.to else ""
    documents = [*_documents(), *args.also]
    try:
        documents.append(manifest.find(args.manifest))
    except ConfigError:
        if args.manifest is not None:
            raise
    documents = list(dict.fromkeys(document.absolute() for document in documents))
    found = pointing.pointers(path, documents)
    if found and not to:
        said = "\n  ".join(f"{each.where}: {each.how}" for each in found)
        raise PayloadError(f"{path} is still pointed at:\n  {said}", "say what is to be used instead: --to NEW")
    changes = []
    for document in documents:
        if document.name == "queenright.toml" or document in args.also:
            text = pointing.repointed(path, to, document) if to and document.is_file() else None
            if text is not None:
                changes.append(trash.Change(document, document.read_text(encoding="utf-8"), text))
    aside = trash.retire(path, to, tuple(changes))
    done = {str(change.path) for change in changes}
    left = [each for each in found if each.where not in done]
    if args.json:
        _print_json(
            {"retired": _aside_row(aside), "repointed": sorted(done), "still_pointing": [_pointer(p) for p in left]}
        )
        return 0
    print(f"{path} is put aside, in {aside.folder}; `queenright payload restore {path}` brings it back")
    for each in sorted(done):
        print(f"{each} now names {to}: `queenright apply` has a running engine follow it")
    for pointer in left:
        print(f"still points at it: {pointer.where}: {pointer.how}")
    return 0


def _restore(args: argparse.Namespace) -> int:
    from supervisor.errors import PayloadError
    from workers.payload import trash

    path = _absolute(args.path)
    aside = trash.find(path)
    if aside is None:
        raise PayloadError(f"nothing was put aside from {path}", "`queenright payload list` shows what was")
    changed = trash.restore(aside)
    if args.json:
        _print_json({"restored": str(path), "changed_since": [str(each) for each in changed]})
        return 0
    print(f"{path} is back")
    for each in changed:
        print(f"{each} was changed since, and still names {aside.to}")
    return 0


_ACTIONS: Final = {
    "list": _list,
    "verify": _verify,
    "fetch": _fetch,
    "purge": _purge,
    "retire": _retire,
    "restore": _restore,
}


def _place(text: str) -> Path:
    """Raises PayloadError for what is not there, ModelError for a catalog name that is not in the cache."""
    from supervisor.errors import PayloadError
    from workers import models

    if any(known.name == text for known in models.catalog()):
        return models.resolve(text)
    path = _absolute(text)
    if not path.exists():
        raise PayloadError(f"there is no {path}", "give the path of the file to put aside")
    return path


def _target(text: str, path: Path) -> str:
    """A catalog name as it is, else an absolute path."""
    from supervisor.errors import UsageError
    from workers import models

    place = _place(text)
    if place == path:
        raise UsageError(f"--to names {path} itself", "name what is to be used instead of it")
    return text if any(known.name == text for known in models.catalog()) else str(place)


def _documents() -> list[Path]:
    """The configuration of here, what the engine of its slot was started as, and the configuration that asked for it."""
    from contextlib import suppress

    from supervisor import config_find
    from supervisor.errors import ConfigError
    from workers.payload import pointing

    found: list[Path] = []
    with suppress(ConfigError):  # none: then nothing of it points anywhere
        found.append(config_find.find())
    try:
        slot = config_find.locate_slot()
        records = [slot / "contract.json", *(slot / "groups").glob("*.json")]
    except (ConfigError, OSError):
        return found
    return [*found, *records, *pointing.roots(slot / "contract.json", config_find.FILE_NAME)]


def _absolute(text: str) -> Path:
    import os

    return Path(os.path.abspath(os.path.expanduser(text)))


def _row(finding: Finding) -> dict[str, Any]:
    return {"path": str(finding.path), "status": str(finding.status), "good": finding.is_good, "detail": finding.detail}


def _aside_row(aside: Aside) -> dict[str, Any]:
    return {"was": str(aside.was), "in": str(aside.folder), "to": aside.to}


def _pointer(pointer: Pointer) -> dict[str, str]:
    return {"where": pointer.where, "how": pointer.how}


def _print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2))
