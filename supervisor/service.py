"""What a service manager gives the process that it starts: an address to be told things at, a watchdog, a listener.

From sd_notify(3), sd_watchdog_enabled(3) and sd_listen_fds(3); no systemd is needed to read it. It is for that process
alone, which becomes the warden: nothing below it is given these variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from supervisor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FIRST_LISTENER: Final = 3
"""SD_LISTEN_FDS_START."""

NOTIFIES: Final = "--notify"
"""A keeper's option: `--notify=SECONDS` has it speak to the service manager; the seconds are its watchdog's, 0 for none."""


class Service(NamedTuple):
    """All of it is optional."""

    notify: str = ""
    """Address of the manager's datagram socket; an abstract one begins with a NUL (unix(7))."""
    watchdog_s: float = 0.0
    listener: int | None = None
    """Descriptor of the gateway's socket."""


def given(environment: Mapping[str, str], pid: int) -> Service:
    """What the manager gave process `pid`. Words that are meant for another process, or are none, count as not said.

    Raises UsageError for more than one socket, of which only one can be the gateway's.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    notify = f"\0{address[1:]}" if address.startswith("@") else address if address.startswith("/") else ""
    watchdog = _number(environment, "WATCHDOG_USEC") if _is_for(environment, "WATCHDOG_PID", pid, without=True) else 0
    sockets = _number(environment, "LISTEN_FDS") if _is_for(environment, "LISTEN_PID", pid, without=False) else 0
    if sockets > 1:
        raise UsageError(
            f"the socket unit passes {sockets} sockets, and the gateway has one",
            "give it one ListenStream=; `queenright unit --socket` prints a socket unit that fits",
        )
    return Service(notify, watchdog / 1_000_000 if notify else 0.0, FIRST_LISTENER if sockets else None)


def _is_for(environment: Mapping[str, str], name: str, pid: int, *, without: bool) -> bool:
    return environment.get(name, str(pid) if without else "") == str(pid)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else 0


def watchdog_of(words: Sequence[str]) -> float | None:
    """Of a keeper's command line: None where there is no manager."""
    found = [float(word.partition("=")[2]) for word in words if word.startswith(f"{NOTIFIES}=")]
    return found[-1] if found else None
