"""The gateway's API keys: a file of ours that nobody else can read, one key a line. Their text goes nowhere else."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Final

from supervisor.errors import GatewayError

LEAST: Final = 16
"""Characters of a key. One that can be guessed over the network in a year of trying is none; 16 letters cannot."""
MOST_BYTES: Final = 65536
_KEY: Final = re.compile(rb"[!-~]{%d,}" % LEAST)
"""What fits into a header (RFC 9110, 5.5) and has no blank: a blank at its end is a mistake that nobody sees."""


def read(path: str) -> tuple[bytes, ...]:
    """The keys in the file. Several, so that one can be replaced without a moment in which a client has none. Raises
    GatewayError, which never shows what stands in the file."""
    make = f"make one: (umask 077; openssl rand -hex 32 > {path})"
    try:
        # Not following a link, nor waiting for whoever may write to a fifo.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise GatewayError(f"api_key_file {path} is a symbolic link", "name the file itself") from error
        raise GatewayError(f"api_key_file {path} cannot be read: {error.strerror}", make) from error
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise GatewayError(f"api_key_file {path} is not a regular file", make)
        if facts.st_uid != os.geteuid():
            raise GatewayError(
                f"api_key_file {path} belongs to user id {facts.st_uid}, and the engine runs as {os.geteuid()}",
                "whoever can write it can let himself in: copy it to a file of your own",
            )
        if facts.st_mode & 0o077:
            raise GatewayError(
                f"api_key_file {path} is open to others (mode {facts.st_mode & 0o777:04o})", f"chmod 600 {path}"
            )
        content = os.read(descriptor, MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    keys = [line.strip() for line in content.split(b"\n") if line.strip()]
    if not keys:
        raise GatewayError(f"api_key_file {path} is empty", make)
    if len(content) > MOST_BYTES or not all(_KEY.fullmatch(key) for key in keys):
        raise GatewayError(
            f"api_key_file {path} holds something that is no key: one a line, {LEAST} characters or more, no blanks",
            make,
        )
    return tuple(keys)
