"""Where the gateway listens: on the socket that the warden holds over keepers, or on one of our own."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final

from supervisor import ports
from supervisor.errors import GatewayError

if TYPE_CHECKING:
    from supervisor.contract import GatewaySpec

GATEWAY_FD: Final = 5
"""Where the warden puts its listener for the gateway in a keeper."""

BACKLOG: Final = 512
"""Connections that wait while one keeper follows another."""


def inherited() -> socket.socket | None:
    """The warden's listener, where it gave one. To be asked before the keeper opens anything: a number alone proves
    nothing, so it must be a TCP socket that listens."""
    try:
        found = socket.socket(fileno=os.dup(GATEWAY_FD))
    except OSError:
        return None
    try:
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            os.close(GATEWAY_FD)
            found.setblocking(False)
            return found
    except OSError:
        pass
    found.close()
    return None


def listener(spec: GatewaySpec, given: socket.socket | None, last_port: int) -> socket.socket:
    """The socket to serve. `given` is the warden's; `last_port` the one an earlier keeper of the slot had, 0 for none.

    An address that the configuration names is taken or refused; the default's port may be another where it is taken.
    Raises GatewayError.
    """
    if given is not None:
        return given.dup()
    wanted = [spec.port] if spec.is_named else [last_port or spec.port, spec.port]
    for port in dict.fromkeys(wanted):
        try:
            return _bound(spec.host, port)
        except OSError as error:
            refused = error
    if refused.errno == errno.EADDRINUSE and not spec.is_named:
        return _bound(spec.host, ports.choose(avoid=wanted))
    where = f"{spec.host}:{spec.port}"
    if refused.errno == errno.EADDRINUSE:
        raise GatewayError(
            f"{where} is taken by another program", f"`ss -ltnp 'sport = :{spec.port}'` shows it; or set gateway.listen"
        )
    raise GatewayError(f"cannot listen on {where}: {refused.strerror or refused}", "set gateway.listen")


def _bound(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)
        found.setblocking(False)
    except OSError:
        found.close()
        raise
    return found


def url_of(found: socket.socket) -> str:
    """As a client on this machine would write it."""
    host, port = found.getsockname()[:2]
    host = {"0.0.0.0": ports.LOOPBACK, "::": "::1"}.get(host, host)  # noqa: S104 - it is read here, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
