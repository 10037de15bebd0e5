"""Choosing a port, and proving whose a listening port is.

A chosen port is a guess: between the choice and the server's own bind anybody can take it (vllm#51275). So the listener
is checked afterwards, from the kernel's tables: an impostor that answers 200 is not ready
(docs/concepts.md, "A generation").
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from supervisor import budgets, identity
from supervisor.errors import EngineStartError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

LOOPBACK = "127.0.0.1"

FALLBACK_RANGE = range(20000, 30000)
"""Where nothing else is known. Few services have their home here, and Linux's own range starts at 32768."""

LEAST_ROOM = 1000
"""Fewer ports than this below the ephemeral range are not worth a search there."""


class Owner(StrEnum):
    """Who listens on a port, seen from a set of processes."""

    NOBODY = "nobody"
    OURS = "ours"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


class Ownership(NamedTuple):
    """The verdict of `owned_by`; `pid` is the listening process, only where the port is OURS."""

    owner: Owner
    pid: int | None = None


def choose(preferred: int | None = None, avoid: Collection[int] = ()) -> int:
    """A TCP port of 127.0.0.1 that nobody listens on: `preferred` if it is free, else a random one.

    It lies below the ephemeral range, so that no outgoing connection takes it meanwhile, and is never in `avoid`.
    Raises EngineStartError when there is none.
    """
    if preferred is not None and preferred not in avoid and _is_free(preferred):
        return preferred
    candidates = candidate_range()
    start = int.from_bytes(os.urandom(4), "little") % len(candidates)
    for offset in range(len(candidates)):
        port = candidates[(start + offset) % len(candidates)]
        if port not in avoid and _is_free(port):
            return port
    raise EngineStartError(
        f"no free TCP port on {LOOPBACK} from {candidates[0]} to {candidates[-1]}",
        "look with `ss -ltn` for what holds them",
    )


def candidate_range() -> range:
    """The ports to choose from: those below the ephemeral range (ip(7), ip_local_port_range)."""
    try:
        with open(f"{identity.PROC}/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return FALLBACK_RANGE
    for first in (20000, 10000, 2048):
        if low - first >= LEAST_ROOM:
            return range(first, low)
    return FALLBACK_RANGE


def _is_free(port: int) -> bool:
    """Bind it as servers do, with SO_REUSEADDR: then a listener anywhere on this port is in the way, and connections
    that are still closing are not. Never listen: a client of the group that comes in that moment would be accepted by nobody, and
    reset, or lose its SYN and wait a second for the next one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise EngineStartError(
                f"cannot bind a port of {LOOPBACK}: {os.strerror(error.errno or 0)}", "is the loopback interface up?"
            ) from error
        except OverflowError:
            return False
    return True


def listening_inodes(port: int) -> frozenset[int] | None:
    """Socket inodes that take connections to 127.0.0.1:port; None when the kernel does not tell.

    As the kernel does: sockets bound to the address itself come before those bound to all addresses.
    """
    found: list[tuple[bytes, int]] | None
    try:
        found = _ask_kernel(port)
    except OSError:
        found = _read_tables(port)
    if found is None:
        return None
    exact = frozenset(inode for address, inode in found if address in _EXACT)
    return exact or frozenset(inode for address, inode in found if address in _ANYWHERE)


_V4_LOOPBACK = bytes([127, 0, 0, 1])
_V4_IN_V6 = bytes(10) + b"\xff\xff"
_EXACT = (_V4_LOOPBACK, _V4_IN_V6 + _V4_LOOPBACK)
_ANYWHERE = (bytes(4), bytes(16), _V4_IN_V6 + bytes(4))


def _ask_kernel(port: int) -> list[tuple[bytes, int]]:
    """(address, inode) of every listener on the port, by sock_diag(7). Raises OSError when the kernel has it not.

    The tables in /proc/net say the same, but to print them the kernel walks all connections there could be: 10 ms on a
    machine with 24 GiB, which is too long for the trio thread; this takes 0.1 ms (measured).
    """
    found: list[tuple[bytes, int]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(budgets.KERNEL_ANSWER)
        for family, length in ((socket.AF_INET, 4), (socket.AF_INET6, 16)):
            # struct inet_diag_req_v2: family, protocol, and of the socket's id the source port alone.
            query = struct.pack("=BBBxIH46x", family, socket.IPPROTO_TCP, 0, 1 << _TCP_LISTEN, socket.htons(port))
            header = struct.pack("=IHHII", 16 + len(query), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, family, 0)
            link.send(header + query)
            answered = False
            while not answered:
                answered = _take_answer(link.recv(65536), port, length, found)
    return found


# linux/netlink.h, linux/sock_diag.h, net/tcp_states.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x1 | 0x300
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_TCP_LISTEN = 10


def _take_answer(data: bytes, port: int, length: int, found: list[tuple[bytes, int]]) -> bool:
    """Add what one datagram of the answer says; True when it was the last. Raises OSError for an error in it."""
    at = 0
    while at + 16 <= len(data):
        size, kind = struct.unpack_from("=IH", data, at)
        if kind == _NLMSG_DONE:
            return True
        if kind == _NLMSG_ERROR or size < 16:
            code = -struct.unpack_from("=i", data, at + 16)[0] if len(data) >= at + 20 else errno.EPROTO
            raise OSError(code, "sock_diag refused")
        # struct inet_diag_msg: 4 bytes, then the socket's id (ports, then addresses), then five numbers.
        message = at + 16
        if struct.unpack_from("!H", data, message + 4)[0] == port:
            address = data[message + 8 : message + 8 + length]
            found.append((address, struct.unpack_from("=I", data, message + 68)[0]))
        at += (size + 3) & ~3
    return False


def _read_tables(port: int) -> list[tuple[bytes, int]] | None:
    """The same from /proc/net, for kernels without sock_diag; None when it cannot be read."""
    found: list[tuple[bytes, int]] = []
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        try:
            with open(f"{identity.PROC}/self/net/{table}", encoding="ascii") as file:
                lines = file.readlines()[1:]
        except FileNotFoundError:
            if table == "tcp6":  # a kernel without IPv6
                continue
            return None
        except (OSError, ValueError):
            return None
        for line in lines:
            fields = line.split()
            if len(fields) >= 10 and fields[3] == f"{_TCP_LISTEN:02X}" and fields[1].endswith(wanted):
                found.append((_address(fields[1].partition(":")[0]), int(fields[9])))
    return found


def _address(text: str) -> bytes:
    """/proc/net/tcp prints addresses as 32-bit numbers of the machine's byte order."""
    words = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    return b"".join(word.to_bytes(4, sys.byteorder) for word in words)


def owned_by(port: int, pids: Iterable[int]) -> Ownership:
    """Whether it is one of these processes that answers on 127.0.0.1:port. Reads only their descriptors. Never raises.

    With several listeners (SO_REUSEPORT) all must be ours: connections are spread over them.
    """
    inodes = listening_inodes(port)
    if inodes is None:
        return Ownership(Owner.UNKNOWN)
    if not inodes:
        return Ownership(Owner.NOBODY)
    missing = set(inodes)
    first: int | None = None
    unreadable = False
    for pid in pids:
        held = _sockets(pid)
        if held is None:
            unreadable = True
        elif held & inodes:
            first = pid if first is None else first
            missing -= held
            if not missing:
                return Ownership(Owner.OURS, first)
    return Ownership(Owner.UNKNOWN if unreadable else Owner.FOREIGN)


def _sockets(pid: int) -> set[int] | None:
    """Inodes of the sockets a process has open; empty when it is gone, None when it may not be read."""
    found: set[int] = set()
    folder = f"{identity.PROC}/{pid}/fd"
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return found
    except OSError:
        return None
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            return None
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found
