"""Whose a port is, between real processes."""

from __future__ import annotations

import os
import socket

import pytest

from supervisor import ports
from supervisor.ports import Owner, Ownership
from tests.process.children import Child

pytestmark = pytest.mark.process

IMPOSTOR = """
import socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
print("listening")
sys.stdin.readline()
"""


def test_an_impostor_on_our_port_is_foreign__vllm_51275() -> None:
    port = ports.choose()
    with Child(IMPOSTOR, port) as impostor:
        impostor.hear()
        assert ports.choose(port) != port
        assert ports.owned_by(port, [os.getpid()]) == Ownership(Owner.FOREIGN)
        assert ports.owned_by(port, [impostor.pid]) == Ownership(Owner.OURS, impostor.pid)


def test_a_port_that_is_shared_with_a_stranger_is_not_ours__lemonade_2255() -> None:
    port = ports.choose()
    with Child(IMPOSTOR, port) as impostor, socket.socket() as ours:
        impostor.hear()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("127.0.0.1", port))
        ours.listen()
        assert ports.owned_by(port, [os.getpid()]) == Ownership(Owner.FOREIGN)
        assert ports.owned_by(port, [os.getpid(), impostor.pid]).owner is Owner.OURS
        impostor.kill()
        assert ports.owned_by(port, [os.getpid()]) == Ownership(Owner.OURS, os.getpid())
