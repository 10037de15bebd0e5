"""`queenright`: finds the sub-command, runs it, and turns what goes wrong into one message and an exit status.

Commands of the core stand in a table, so that the quick ones import nothing they do not need; all others are found by
entry point (`queenright.commands`), so the core never imports who adds them. `queenright bench` measures what the
quick ones take; what they import is most of it.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False  # type checkers know the name; importing `typing` for it takes longer than all of `version`
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from typing import Any, Protocol

    from supervisor.errors import QueenrightError

    class Command(Protocol):
        """A sub-command."""

        help: str

        def configure(self, parser: argparse.ArgumentParser) -> None:
            """Add its arguments."""

        def run(self, args: argparse.Namespace) -> int:
            """Do it; the exit status. QueenrightError is printed by the caller."""


ENTRY_POINTS = "queenright.commands"
TRACEBACK_VARIABLE = "QUEENRIGHT_TRACEBACK"
INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""

CORE = {
    "run": "keep the engine up in the foreground, until Ctrl-C (for tmux and systemd)",
    "status": "what runs, since when, who uses it, and what is wrong",
    "ps": "who uses the engine: pid, age, last use, terminal and program of each member",
    "stop": "stop the engine, whoever uses it",
    "exec": "run a program that uses the engine: OPENAI_BASE_URL and OPENAI_API_KEY are set for it",
    "logs": "the logs of a group, also of a dead one",
    "events": "what happened, with reasons: starts, deaths and their causes, stops, who came",
    "doctor": "check slot, binaries, models and configuration; or pack a bundle for a bug report",
    "plan": "what the configuration takes of this machine's memory, line by line, and whether it fits",
    "apply": "make the running engine what the configuration says now; restarts only what changed",
    "retry": "try a group again that was given up",
    "hold": "stop the engine, or a group of it, and keep it down until `queenright release`",
    "release": "end a hold: the engine may run again",
    "restart-keeper": "replace the keeper, as after an upgrade; the engine goes on serving",
    "unit": "print a systemd unit for this engine, for a user or the system",
    "init": "write a commented queenright.toml",
    "version": "print the version",
}


def main(argv: list[str] | None = None, known: dict[str, Command] | None = None) -> int:
    """The console script. Returns the exit status; docs/reference/exit-codes.md has the table.

    `known` are commands by name that need not be looked for, for a module that is one and is run by itself.
    """
    words = sys.argv[1:] if argv is None else argv
    _make_output_safe()
    try:
        status = _run(words, known or {})
        print(end="", flush=True)  # meets a reader that left; the interpreter's last flush would exit with 120
        return status
    except KeyboardInterrupt:
        print("queenright: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever read us left; the interpreter's last flush must not fail
        return 0
    except Exception as error:
        from supervisor.errors import QueenrightError

        if isinstance(error, QueenrightError):
            mine = words[: words.index("--")] if "--" in words else words  # the others are of the program of `exec`
            _tell(error, as_json="--json" in mine)
            return int(error.exit_code)
        if isinstance(error, OSError) and (why := _nobody_takes_it()):
            print(f"queenright: what it prints cannot be written: {why}", file=sys.stderr)
            return 1
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        if isinstance(error, FileNotFoundError) and not _is_somewhere():
            print("queenright: the working directory is not there any more\n  change to one that is", file=sys.stderr)
            return 1
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = error.filename or "a file"
            print(f"queenright: {what} cannot be written: {error.strerror}\n  make room on its disk", file=sys.stderr)
            return 1
        print(
            f"queenright: this is a bug of ours: {type(error).__name__}: {error}\n"
            f"  {TRACEBACK_VARIABLE}=1 shows where; please report it with that",
            file=sys.stderr,
        )
        return 1


def _is_somewhere() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _make_output_safe() -> None:
    """Whatever is printed can be: names of files are any bytes, and a locale may know only ASCII. Where standard output is
    closed nobody reads it; what takes its number stays over exec, as a standard stream does: the warden that `run` becomes
    would else give that number to a lock."""
    out: Any = sys.stdout
    if out is None:
        sys.stdout = open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
        os.set_inheritable(sys.stdout.fileno(), sys.stdout.fileno() <= 2)
    elif getattr(out, "errors", "") == "strict" and hasattr(out, "reconfigure"):
        out.reconfigure(errors="backslashreplace")


def _nobody_takes_it() -> str:
    """Why standard output does not take what we print, as on a full disk; "" where it does. What it did not take is then
    given up: the interpreter's last flush would complain of it once more."""
    try:
        print(end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return error.strerror or str(error)
    return ""


def _run(words: list[str], known: dict[str, Command]) -> int:
    if words[:1] in (["version"], ["--version"], ["-V"]) and len(words) == 1:
        from supervisor._version import __version__

        print(f"queenright {__version__}")
        return 0
    import argparse

    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    command = known.get(words[0]) or _find(words[0])
    parser = argparse.ArgumentParser(
        prog=f"queenright {words[0]}",
        description=command.help[0].upper() + command.help[1:] + ".",
        formatter_class=_formatter,
    )
    command.configure(parser)
    return command.run(parser.parse_args(words[1:]))


def _formatter(prog: str) -> argparse.HelpFormatter:
    """Paragraphs as wide as the terminal; what is indented (an example, a list) as it is written. With a width, since argparse
    imports shutil (and that bz2, lzma, zlib) to find it out itself, and does so for every argument that is added, not only
    for a help that is shown."""
    import argparse

    class Formatter(argparse.RawDescriptionHelpFormatter):
        def _fill_text(self, text: str, width: int, indent: str) -> str:
            return "\n".join(f"{indent}{line}" for line in _filled(text, width))

    return Formatter(prog, width=_columns() - 2)


def _filled(text: str, width: int) -> Iterator[str]:
    import textwrap

    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line and not line.startswith(" "):
            paragraph.append(line)
            continue
        yield from textwrap.wrap(" ".join(paragraph), width, break_long_words=False, break_on_hyphens=False)
        paragraph.clear()
        yield line


def _columns() -> int:
    """Of the terminal, as shutil.get_terminal_size finds it: COLUMNS, else standard output, else 80."""
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):  # there is none, it is closed, or it is no terminal
        return 80


def _find(name: str) -> Command:
    """Raises UsageError for a name that nobody knows, with the nearest one that is known."""
    if name in CORE:
        from importlib import import_module

        command: Command = import_module(f"supervisor.commands.{name.replace('-', '_')}").COMMAND
        return command
    added = _added()
    if name in added:
        found: Command = added[name].load()
        return found
    import difflib

    from supervisor.errors import UsageError

    near = difflib.get_close_matches(name, [*CORE, *added], n=1)
    hint = f"did you mean `queenright {near[0]}`?" if near else "`queenright --help` lists what there is"
    raise UsageError(f"there is no command {name!r}", hint)


def _added() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _overview() -> str:
    rows = dict(CORE)
    for name, point in sorted(_added().items()):
        try:
            rows[name] = point.load().help
        except Exception as error:  # noqa: BLE001 - somebody's broken plug-in must not take the help away
            rows[name] = f"(cannot be loaded: {type(error).__name__}: {error})"
    import textwrap

    width = max(map(len, rows))
    columns = max(_columns() - 2, width + 24)
    hanging = " " * (width + 4)
    lines = "\n".join(
        textwrap.fill(text, columns, initial_indent=f"  {name:{width}}  ", subsequent_indent=hanging)
        for name, text in rows.items()
    )
    what = textwrap.fill("One inference engine for every process of this machine, kept alive.", columns)
    return (
        f"usage: queenright COMMAND [--help]\n\n{what}\n\n{lines}\n\n"
        "example:\n"
        "  queenright init\n"
        "  queenright model pull smollm2-135m minilm-l6\n"
        "  queenright run\n"
    )


def _tell(error: QueenrightError, *, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(error.as_dict()))
    from supervisor.wording import printable_lines

    print(printable_lines(f"queenright: {error}"), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
