"""Ports: choosing one, and whose it is. Real sockets on loopback."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from supervisor import identity, ports
from supervisor.errors import EngineStartError
from supervisor.ports import Owner, Ownership

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


@pytest.fixture
def port() -> int:
    return ports.choose()


@pytest.fixture(params=["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
def listener(request: pytest.FixtureRequest, port: int) -> Iterator[int]:
    """The port, with a listener of ours that is in the way of 127.0.0.1."""
    with listen(request.param, port):
        yield port


def listen(address: str, port: int, *, share: bool = False, only_v6: bool = False) -> AbstractContextManager[object]:
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if ":" in address:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only_v6))
    made.bind((address, port))
    made.listen()
    return made


def test_a_chosen_port_is_below_the_ephemeral_range_and_can_be_listened_on(port: int) -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        assert 1024 <= port < int(file.read().split()[0])
    with listen("127.0.0.1", port):
        pass


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("32768\t60999\n", range(20000, 32768)),
        ("15000 61000", range(10000, 15000)),
        ("9000 61000", range(2048, 9000)),
        ("1024 65535", ports.FALLBACK_RANGE),
        ("rubbish", ports.FALLBACK_RANGE),
        (None, ports.FALLBACK_RANGE),
    ],
)
def test_the_range_follows_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, expected: range
) -> None:
    if content is not None:
        (tmp_path / "sys/net/ipv4").mkdir(parents=True)
        (tmp_path / "sys/net/ipv4/ip_local_port_range").write_text(content)
    monkeypatch.setattr(identity, "PROC", str(tmp_path))
    assert ports.candidate_range() == expected


def test_a_free_preferred_port_is_kept_unless_it_is_to_be_avoided(port: int) -> None:
    assert ports.choose(port) == port
    assert ports.choose(port, avoid={port}) != port


def test_a_taken_port_is_not_chosen(listener: int) -> None:
    assert ports.choose(listener) != listener


@pytest.mark.parametrize("preferred", [-1, 70000])
def test_an_impossible_preference_is_no_error(preferred: int) -> None:
    assert ports.choose(preferred) != preferred


def test_a_client_that_comes_while_a_port_is_chosen_is_refused_and_never_accepted(port: int) -> None:
    """Seen as a request that took a second: it met a listener that lived for microseconds, and its SYN was lost."""
    over = threading.Event()
    met: list[str] = []

    def come() -> None:
        while not over.is_set():
            with socket.socket() as client:
                client.settimeout(10)
                try:
                    client.connect((ports.LOOPBACK, port))
                except ConnectionRefusedError:
                    continue
                except OSError as error:
                    met.append(str(error))
                else:
                    met.append("accepted")

    clients = [threading.Thread(target=come) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        assert {ports.choose(port) for _ in range(2000)} == {port}
    finally:
        over.set()
        for client in clients:
            client.join()
    assert not met


def test_no_free_port_is_one_clear_error(listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "candidate_range", lambda: range(listener, listener + 1))
    with pytest.raises(EngineStartError, match=str(listener)):
        ports.choose()


def test_all_but_one_avoided_leaves_that_one(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "candidate_range", lambda: range(port - 5, port + 5))
    assert ports.choose(None, set(range(port - 5, port + 5)) - {port}) == port


@pytest.fixture(params=["sock_diag", "tables"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test asks the kernel both ways."""
    if request.param == "tables":

        def refuse(_port: int) -> None:
            raise OSError(errno.ENOENT, "no sock_diag here")

        monkeypatch.setattr(ports, "_ask_kernel", refuse)


def test_a_refusing_kernel_is_an_error_not_an_empty_answer() -> None:
    refusal = struct.pack("=IHHIIi", 36, 2, 0, 0, 0, -errno.ENOENT) + bytes(16)
    with pytest.raises(OSError, match="sock_diag refused") as caught:
        ports._take_answer(refusal, 1, 4, [])
    assert caught.value.errno == errno.ENOENT


def test_our_listener_is_ours(listener: int) -> None:
    assert ports.owned_by(listener, [1, os.getpid()]) == Ownership(Owner.OURS, os.getpid())


def test_a_listener_is_foreign_to_others(listener: int) -> None:
    # A pid that nobody has: gone, not unreadable.
    assert ports.owned_by(listener, [2**22 + 5]) == Ownership(Owner.FOREIGN)
    assert ports.owned_by(listener, []) == Ownership(Owner.FOREIGN)


def test_nobody_listens_on_a_free_port(port: int) -> None:
    assert ports.owned_by(port, [os.getpid()]) == Ownership(Owner.NOBODY)


def test_a_connection_is_no_listener(port: int) -> None:
    with listen("127.0.0.1", port) as server, socket.create_connection(("127.0.0.1", port)) as client:
        assert isinstance(server, socket.socket)
        accepted, _ = server.accept()
        server.close()
        with accepted:
            assert ports.owned_by(port, [os.getpid()]) == Ownership(Owner.NOBODY)
            assert ports.owned_by(client.getsockname()[1], [os.getpid()]) == Ownership(Owner.NOBODY)


def test_a_listener_for_ipv6_alone_does_not_answer_for_us(port: int) -> None:
    with listen("127.0.0.1", port), listen("::", port, only_v6=True) as other:
        assert isinstance(other, socket.socket)
        inodes = ports.listening_inodes(port)
        assert inodes is not None
        assert os.fstat(other.fileno()).st_ino not in inodes
        assert len(inodes) == 1


def test_what_cannot_be_read_is_unknown(listener: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_sockets", lambda _pid: None)
    assert ports.owned_by(listener, [os.getpid()]) == Ownership(Owner.UNKNOWN)

    def refuse(_port: int) -> None:
        raise OSError(errno.EPROTONOSUPPORT, "no netlink here")

    monkeypatch.setattr(ports, "_ask_kernel", refuse)
    monkeypatch.setattr(identity, "PROC", str(tmp_path))
    assert ports.owned_by(listener, [os.getpid()]) == Ownership(Owner.UNKNOWN)
