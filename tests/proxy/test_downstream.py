"""A client's connection, by itself."""

from __future__ import annotations

import socket

import pytest
import trio

from workers.proxy.downstream import Downstream


@pytest.mark.trio
async def test_a_connection_that_was_aborted_after_its_answer_has_no_next_request() -> None:
    """An unload may end an exchange whose last byte was just sent; the answer is whole, and nobody else is harmed."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        accepted.setblocking(False)
        client = Downstream(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)))
        client.abort()
        assert await client.next_request() is None
