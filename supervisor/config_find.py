"""Where the configuration and the slot are. Standard library alone, so that commands that only look stay quick.

The file is looked for from the working directory upwards, then in the user's configuration directory. Finding and
reading are here; what the file may say is `config_shape`, and whether it says it right `config_check`.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any, Final

from supervisor.errors import ConfigError

FILE_NAME: Final = "queenright.toml"
CONFIG_VARIABLE: Final = "QUEENRIGHT_CONFIG"
SLOT_VARIABLE: Final = "QUEENRIGHT_SLOT"

SIZE_LIMIT: Final = 1024 * 1024
"""Bytes. A configuration is a few hundred bytes; a larger file is some other file by mistake."""

EXPLAIN: Final = "`queenright init --print` shows a file with every key explained."
_AT: Final = re.compile(
    r"^(?P<message>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$", re.S
)


def find(start: Path | None = None, explicit: Path | None = None) -> Path:
    """The configuration file to use, absolute.

    `explicit` (the command line's `--config`) wins over QUEENRIGHT_CONFIG, and both over looking: from `start` (the
    working directory) up to the root, then the user's configuration directory. Only a regular file counts.

    Raises:
        ConfigError: there is none, the one that was named is not there, or the one found belongs to another user.
    """
    found, looked = _look(start, explicit)
    if found is None:
        raise ConfigError(
            f"there is no configuration: no {FILE_NAME} {' and none '.join(looked)}",
            "`queenright init` writes one into the working directory; `--config PATH` names one elsewhere.",
        )
    return found


def locate_slot(start: Path | None = None, explicit: Path | None = None) -> Path:
    """The slot that a command works on, without the cost of a whole configuration: QUEENRIGHT_SLOT, else `slot` of the
    file that `find` would give, else the user's state directory.

    It reads nothing else of the file on purpose: a misspelt key must not keep anybody from `queenright stop`.

    Raises:
        ConfigError: the file named cannot be used, is not TOML, or its `slot` is not a path.
    """
    if (slot := slot_of_environment()) is not None:
        return slot
    path, _ = _look(start, explicit)
    if path is None:
        return slot_of_user()
    engine = toml_tree(read(path), path).get("engine")
    slot_text = engine.get("slot") if isinstance(engine, dict) else None
    if slot_text is None:
        return slot_of_user()
    try:
        return absolute(slot_text, path.parent)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: engine.slot: {error}", f"Correct it, or name the slot in {SLOT_VARIABLE}. {EXPLAIN}"
        ) from None


def slot_of_environment() -> Path | None:
    """The slot that QUEENRIGHT_SLOT names, absolute; None where it is unset or empty.

    Raises:
        ConfigError: it is not a path.
    """
    return _path_of_environment(SLOT_VARIABLE)


def slot_of_user() -> Path:
    """The machine slot: `queenright/slot` in the user's state directory (XDG base directory specification, 0.8)."""
    from platformdirs import user_state_path

    return user_state_path("queenright") / "slot"


def absolute(text: Any, base: Path) -> Path:
    """A path as written in a file of the directory `base`: `~` expanded, relative to `base`, `..` taken by its letters.

    Raises:
        TypeError: it is not a string; the text says what was expected.
        ValueError: it is empty, holds a NUL, or names the home of a user whom nobody knows.
    """
    if not isinstance(text, str):
        raise TypeError("expected a path in quotes")
    if not text.strip() or "\0" in text:
        raise ValueError("expected a path that is not empty and holds no NUL")
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise ValueError(f"expected a path; nobody knows the home directory {text.split('/')[0]}")
    return Path(os.path.normpath(base / expanded))


def read(path: Path) -> str:
    """The text of a configuration file.

    Raises:
        ConfigError: it is missing, unreadable, not a regular file, larger than SIZE_LIMIT, or not UTF-8.
    """
    try:
        # Not to hang on a FIFO that somebody named: without O_NONBLOCK, open(2) waits for a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError(f"{path}: expected a file, found {_kind(mode)}", EXPLAIN)
            data = file.read(SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"{path}: the configuration cannot be read: {reason}", EXPLAIN) from None
    if len(data) > SIZE_LIMIT:
        raise ConfigError(f"{path}: larger than {SIZE_LIMIT} bytes, so this is not a configuration of ours", EXPLAIN)
    try:
        return data.decode("utf-8-sig")  # some editors put a byte-order mark in front; TOML's grammar has none
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: not UTF-8 (byte 0x{data[error.start]:02x})", EXPLAIN) from None


def toml_tree(text: str, path: Path) -> dict[str, Any]:
    """The text as TOML 1.0; `path` is for the message.

    Raises:
        ConfigError: it is not TOML; with line and column where the parser knows them.
    """
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply to be a configuration", EXPLAIN) from None
    except ValueError as error:  # TOMLDecodeError is one; so is an integer of thousands of digits
        found = _AT.match(str(error))
        if found is None:
            raise ConfigError(f"{path}: not valid TOML: {error}", EXPLAIN) from None
        where = f"line {found['line']}, column {found['column']}" if found["line"] else "end of file"
        raise ConfigError(f"{path}: {where}: not valid TOML: {found['message']}", EXPLAIN) from None


def _look(start: Path | None, explicit: Path | None) -> tuple[Path | None, list[str]]:
    """The file, or None and where was looked, in words."""
    named = _path_of_environment(CONFIG_VARIABLE) if explicit is None else _absolute_here(explicit)
    if named is not None:
        by = "--config" if explicit is not None else CONFIG_VARIABLE
        step = "`queenright init PATH` writes one."
        try:
            mode = named.stat().st_mode
        except OSError as error:
            raise ConfigError(f"{named}: the configuration that {by} names: {error.strerror}", step) from None
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{named}: {by} names {_kind(mode)}; expected a file", step)
        return named, []
    looked = []
    here = _working_directory() if start is None else _absolute_here(start)
    if here is not None:
        for directory in (here, *here.parents):
            candidate = directory / FILE_NAME
            if os.path.isfile(candidate):
                _refuse_foreign(candidate)
                return candidate, []
        looked.append(f"in {here} or above it")
    from platformdirs import user_config_path

    candidate = user_config_path("queenright") / FILE_NAME
    if os.path.isfile(candidate):
        return candidate, []
    return None, [*looked, f"in {candidate.parent}"]


def _refuse_foreign(path: Path) -> None:
    """A file met on the way up names programs that we start: one that another user put into /tmp must not be ours by
    accident (as git, since CVE-2022-24765). Whoever means it names it."""
    owner = path.stat().st_uid
    if owner not in (0, os.geteuid()):
        raise ConfigError(
            f"{path}: belongs to another user (uid {owner}), so it is not used unasked",
            f"If you trust it: `--config {path}`. Else work in another directory.",
        )


def _working_directory() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # removed under us: there is no "upwards" then
        return None


def _absolute_here(path: Path) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))


def _path_of_environment(variable: str) -> Path | None:
    text = os.environ.get(variable, "")
    if not text:
        return None
    try:
        return absolute(text, _working_directory() or Path("/"))
    except ValueError as error:
        raise ConfigError(f"{variable}: {error}", f"Set {variable} to a path, or unset it.") from None


def _kind(mode: int) -> str:
    for test, name in ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket")):
        if test(mode):
            return name
    return "a device"
