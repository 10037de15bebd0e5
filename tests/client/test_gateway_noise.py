"""Requests and answers made at random, broken, cut and sent together: none of them hurts anybody but its own connection.

What was found by it, and is told by a test of its own since, stands in test_gateway_wire.py.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio

from supervisor import budgets, logfiles
from tests.client.test_gateway_wire import HEALTH, Client, Wire, play

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.client.scripted import Step, Talk

__all__ = ["play"]  # a fixture

pytestmark = [
    pytest.mark.long,
    # A request that is cancelled in the middle of an answer leaves httpx's or httpcore's generator of it to the collector; the
    # stream that it is of is closed by us.
    pytest.mark.filterwarnings(r"ignore:Exception ignored in. <async_generator object \w*ByteStream"),
]

CONNECTIONS: Final = 600
AT_ONCE: Final = 20

METHODS: Final = (*(b"POST",) * 6, b"GET", b"GET", b"HEAD", b"OPTIONS", b"PUT", b"CONNECT", b"TRACE", b"PRI", b"get")
TARGETS: Final = (
    b"/health", b"/v1/models", b"/v1/models/%00", b"/v1/chat/completions", b"/v1/chat/completions", b"/v1/completions",
    b"/v1/embeddings", b"/tokenize", b"/v1/things", b"/v1/x?model=%ff&a", b"/v1/x#y", b"/v1/%2e%2e/x", b"/v1/{x}\"",
    b"//v1/x", b"*", b"127.0.0.1:80", b"http://127.0.0.1/v1/models",
)  # fmt: skip
HEADERS: Final = (
    b"Connection: close", b"Connection: upgrade, x", b"Upgrade: websocket", b"Upgrade: h2c", b"Expect: 100-continue",
    b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Content-Length: 5", b"Content-Length: -1",
    b"Content-Length: 99999999999999999999", b"Origin: http://x", b"X: \xff\xfe", b"Authorization: Bearer \xff",
)  # fmt: skip
BODIES: Final = (
    b"", b"hello", b"{}", b"[1,2]", b"\x00\x01", b"zz\r\n", b"5\r\nhello\r\n0\r\n\r\n",
    b'{"messages":[],"stream":true}', b'{"messages":[{"role":"user","content":"x"}],"max_tokens":4}',
    b'{"messages":5,"n":"x","max_tokens":-3}', b'{"prompt":[1,2,[3]],"stream":true,"n":3}', b'{"input":{"a":[null]}}',
    b'{"model":{"a":1}}', b'{"model":null,"max_tokens":1e999}',
    b'{"messages":[null,{"content":[{"type":"image_url"},5]}],"tools":7}',
    b'{"max_tokens":true,"stop":{},"stream_options":3,"messages":[{}]}',
)  # fmt: skip
STREAMS: Final = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    b'data: {"choices":null}\n\n', b'data: {"choices":[7,null]}\n\ndata: [DONE]\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[3]},"index":null}],"usage":5}\n\ndata: [DONE]\n\n',
    b'data: {"choices":[{"delta":null}]}\n\ndata: {"error":"x"}\n\n', b": only a comment\n\n",
)  # fmt: skip
ANSWERS: Final = (
    b"HTTP/1.1 204 No\r\n\r\nxx", b"garbage\r\n\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\r\n\r\n",
    b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
)  # fmt: skip


def request(chance: random.Random) -> bytes:
    """One, more or less."""
    body = chance.choice(BODIES)
    lines = [b"Host: 127.0.0.1", *chance.sample(HEADERS, chance.randrange(3))]
    if not any(line.startswith((b"Content-Length", b"Transfer")) for line in lines):
        lines.append(b"Content-Length: %d" % len(body))
    version = chance.choice((*(b"HTTP/1.1",) * 9, b"HTTP/1.0", b"HTTP/2.0"))
    head = b" ".join((chance.choice(METHODS), chance.choice(TARGETS), version))
    data = bytearray(b"\r\n".join((head, *lines)) + b"\r\n\r\n" + body)
    if chance.random() < 0.1:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.1 else data)


def answers(chance: random.Random) -> Step:
    def answer(talk: Talk) -> None:
        match chance.randrange(4):
            case 0:
                talk.start_chunks()
                talk.chunk(chance.choice(STREAMS))
                talk.end_chunks()
            case 1:
                talk.send(chance.choice(ANSWERS))
            case 2:
                talk.reply(200, b'{"choices":[]}')
            case 3:
                chance.choice((talk.close, talk.reset))()

    return answer


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_is_said_ends_with_its_own_connection(
    play: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    complaints: list[str] = []
    monkeypatch.setattr(logfiles, "complain", complaints.append)
    monkeypatch.setattr(budgets, "GATEWAY_LINGER", 0.2)
    chance = random.Random(seed)

    async def talk(wire: Wire) -> None:
        data = b"".join(request(chance) for _ in range(chance.choice((1, 1, 1, 2, 3))))
        cut = chance.randrange(len(data) + 1)
        with suppress(trio.BrokenResourceError), trio.move_on_after(chance.choice((0.05, 0.5))):
            async with await trio.open_tcp_stream(*wire.address) as stream:
                await stream.send_all(data[:cut])
                await trio.lowlevel.checkpoint()
                await stream.send_all(data[cut:])
                if chance.random() < 0.3:
                    await stream.send_eof()
                await Client(stream).to_the_end()

    async def scene(wire: Wire) -> None:
        async with trio.open_nursery() as clients:
            limit = trio.CapacityLimiter(AT_ONCE)

            async def one() -> None:
                async with limit:
                    await talk(wire)

            for _ in range(CONNECTIONS):
                clients.start_soon(one)
        await wire.settled()
        assert not any([*wire.tally.running.values(), *wire.tally.waiting.values()])
        client = await wire.connect()
        await client.say(HEALTH + b"\r\n")
        assert (await client.answer())[0] == 200

    play(scene, *[answers(chance)] * 10 * CONNECTIONS, limit_s=120.0)
    assert complaints == []
