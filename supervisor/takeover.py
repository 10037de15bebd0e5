"""Asking another server to end, so that we can serve in its place: a request with its own token, never a signal.

It is sent to this machine alone, past every proxy, and only where a process of the holder listens: the token is not
told to whoever has taken its port.
"""

from __future__ import annotations

import os
import stat
import threading
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from supervisor import budgets, holders, identity, ports
from supervisor.loopback import is_loopback_url
from supervisor.ports import Owner
from supervisor.shutdown_route import PATH

if TYPE_CHECKING:
    from supervisor.holders import Holder

TOKEN_LIMIT: Final = 4096
"""Bytes of a token file; ours have 43."""
BODY_LIMIT: Final = 4096
"""Bytes of an answer that are read."""
SHOWN: Final = 200
"""Characters of a refusal's body that are shown."""


class Answer(NamedTuple):
    """What came of asking. `agreed`: it said that it ends. `said` is for people. `sent`: nothing comes of asking again."""

    agreed: bool
    said: str
    sent: bool = True


def ask(holder: Holder, limit_s: float = budgets.SHUTDOWN_ANSWER) -> Answer:
    """Ask a holder that has a URL to shut down; at most `limit_s` seconds. Never raises: a refusal is an answer."""
    if refusal := _refusal(holder):
        return Answer(False, refusal, sent=False)
    try:
        if os.path.basename(holder.token_file) != holders.TOKEN_NAME:
            raise ValueError(f"its token file {holder.token_file} is none")
        token = read_token(holder.token_file)
    except ValueError as error:
        return Answer(False, str(error), sent=False)
    found: list[Answer] = []
    # In a thread: timeouts of sockets bound each read, and who sends a byte a second would keep us for ever.
    thread = threading.Thread(target=lambda: found.append(_post(holder, token, limit_s)), daemon=True, name="take-over")
    thread.start()
    thread.join(limit_s)
    return (
        found[0] if found else Answer(False, f"{holder.url} did not answer the request to shut down in {limit_s:g} s")
    )


def _refusal(holder: Holder) -> str:
    """Why the token must not be sent where the holder says it listens; empty if it may."""
    url = holder.url or ""
    if not is_loopback_url(url) or not url.startswith("http://"):
        return f"it names {url or 'no URL'}, which is not plain HTTP on this machine, so it was not asked to shut down"
    parts = urlsplit(url)
    if parts.hostname not in ("127.0.0.1", "localhost") or not holders.is_local(holder):
        return ""  # whose port that is cannot be seen from here
    pids = [holder.pid, *(below.pid for below in identity.descendants(holder.pid))]
    owner = ports.owned_by(parts.port or 80, pids).owner
    if owner in (Owner.FOREIGN, Owner.NOBODY):
        who = "another process" if owner is Owner.FOREIGN else "nobody"
        return f"{who} listens on {url}, so it was not asked to shut down"
    return ""


def read_token(path: str) -> str:
    """A token from its file. Raises ValueError, saying why, unless the file is ours and nobody else's to read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                raise ValueError(f"its token file {path} is not a file of ours with mode 0600")
            token = os.read(descriptor, TOKEN_LIMIT).decode("ascii").strip()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ValueError(f"its token file {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"its token file {path} holds no token") from error
    if not token or not token.isprintable():
        raise ValueError(f"its token file {path} holds no token")
    return token


def _post(holder: Holder, token: str, limit_s: float) -> Answer:
    # Not httpx: importing it takes as long as the whole answer may, and this way knows of no proxy and no redirect.
    from http.client import HTTPConnection, HTTPException

    parts = urlsplit(holder.url or "")
    connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=limit_s)
    try:
        path = parts.path.rstrip("/") + PATH
        connection.request("POST", path, headers={"Authorization": f"Bearer {token}", "Content-Length": "0"})
        answer = connection.getresponse()
        body = answer.read(BODY_LIMIT)
    except (OSError, HTTPException, ValueError) as error:
        return Answer(False, f"{holder.url}{PATH}: {str(error) or type(error).__name__}")
    finally:
        connection.close()
    if 200 <= answer.status < 300:
        return Answer(True, f"it was asked to shut down and answered {answer.status}")
    words = " ".join(body.decode("utf-8", "replace").split())[:SHOWN]
    return Answer(False, f"it refused to shut down: {answer.status} {words}".rstrip())
