"""The gateway in bytes: clients and servers that do what HTTP allows, or what it does not, and nobody expects."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import AsyncExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import trio
from attrs import define

from supervisor import budgets
from supervisor.contract import EngineSpec, GatewaySpec, GroupSpec, LaunchSpec
from supervisor.gateway import forwarding
from supervisor.gateway.access import Rules
from supervisor.gateway.server import Server
from supervisor.gateway.tally import Ending, Tally
from tests.client.asking import ANSWER
from tests.client.scripted import PATIENCE, FakeDirectory, ScriptedServer, Talk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from supervisor.contract import Endpoint
    from tests.client.scripted import Step

T = TypeVar("T")

HOST = b"Host: 127.0.0.1\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST
THINGS = b"GET /v1/things HTTP/1.1\r\n" + HOST
"""A route that passes through once."""
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST
ASKED = json.dumps({"messages": [], "max_tokens": 4, "n_cmpl": 1}).encode()
"""As it is sent on: what is put together out of a stream is another matter."""


class Found(FakeDirectory):
    """A directory as the gateway asks one."""

    def reason(self, group: str) -> str:
        return ""

    def has_proxy(self, group: str) -> bool:
        return False

    def wait(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        assert self.endpoint is not None
        return self.endpoint


async def until(condition: Callable[[], bool]) -> None:
    """The scene has a limit of its own."""
    while not condition():  # noqa: ASYNC110 - threads make it so
        await trio.sleep(0.01)


@define
class Wire:
    """A gateway that serves, the server behind it, and connections to it."""

    server: Server
    upstream: ScriptedServer
    address: tuple[str, int]
    tally: Tally
    clients: AsyncExitStack

    async def connect(self) -> Client:
        return Client(await self.clients.enter_async_context(await trio.open_tcp_stream(*self.address)))

    async def settled(self) -> None:
        """No connection is left."""
        await until(lambda: not self.server._streams)


@define
class Client:
    """One connection."""

    stream: trio.SocketStream
    rest: bytes = b""

    async def say(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def hear(self, mark: bytes) -> bytes:
        """Up to this mark, which must come, and with it."""
        while mark not in self.rest:
            data = await self.stream.receive_some(65536)
            assert data, f"it ended with {self.rest[-200:]!r}"
            self.rest += bytes(data)
        found, _, self.rest = self.rest.partition(mark)
        return found + mark

    async def answer(self) -> tuple[int, bytes, bytes]:
        """Status, head and body of an answer whose length is said."""
        head = (await self.hear(b"\r\n\r\n")).lower()
        (length,) = [int(line[15:]) for line in head.splitlines() if line.startswith(b"content-length:")]
        while len(self.rest) < length:
            data = await self.stream.receive_some(65536)
            assert data, "it ended in the middle"
            self.rest += bytes(data)
        body, self.rest = self.rest[:length], self.rest[length:]
        return int(head[9:12]), head, body

    async def to_the_end(self) -> bytes:
        """All that comes. Raises trio.BrokenResourceError where the connection is reset."""
        while data := await self.stream.receive_some(65536):
            self.rest += bytes(data)
        return self.rest


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Plays a scene on a gateway whose server follows the script."""

    def played(scene: Callable[[Wire], Awaitable[T]], *script: Step, limit_s: float = 30.0) -> T:
        chat = LaunchSpec("chat", "smol", "/smol.gguf", 4096, 1)
        spec = EngineSpec((GroupSpec("chat", "command", (chat,), "p"),), gateway=GatewaySpec())
        tally = Tally()
        gateway = SimpleNamespace(tally=tally, rules=Rules)
        keeper: Any = SimpleNamespace(spec=spec, tree=None, gateway=gateway, stopping="")

        async def main(upstream: ScriptedServer, listener: socket.socket) -> T:
            server = Server(keeper, listener)
            async with trio.open_nursery() as nursery:
                await nursery.start(server.run)
                async with AsyncExitStack() as clients:
                    with trio.fail_after(limit_s):
                        result = await scene(Wire(server, upstream, listener.getsockname(), tally, clients))
                nursery.cancel_scope.cancel()
            await server._forwarding._carrier.pool.aclose()
            return result

        with ScriptedServer(*script) as upstream:
            monkeypatch.setattr(forwarding, "Whereabouts", lambda _: Found(upstream.endpoint()))
            return trio.run(main, upstream, socket.create_server(("127.0.0.1", 0)))

    return played


def fine(talk: Talk) -> None:
    talk.reply(200, ANSWER)


# --- bodies that nobody takes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", [True, False], ids=["client leaves", "client goes on"])
@pytest.mark.parametrize("head", [HEALTH, b"POST /health HTTP/1.1\r\n" + HOST], ids=["a page", "a refusal"])
def test_a_body_that_nobody_takes_holds_no_connection(
    play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, head: bytes, leaves: bool
) -> None:
    """A page answers without a look at it. What is still to come of it filled a queue, and the connection stood for ever."""
    monkeypatch.setattr(budgets, "GATEWAY_LINGER", 30.0 if leaves else 0.1)

    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        await client.say(head + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        for _ in range(20):
            await client.say(piece)
        await client.answer()
        if leaves:
            await client.stream.aclose()
        await wire.settled()

    play(scene)


def test_who_sends_a_page_a_body_reads_the_answer_and_goes_on(play: Callable[..., Any]) -> None:
    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        for _ in range(2):
            await client.say(HEALTH + b"Content-Length: 3000000\r\n\r\n" + bytes(3_000_000))
            assert (await client.answer())[0] == 200

    play(scene)


def test_a_body_of_chunks_with_a_trailer_comes_through_and_two_codings_are_refused(play: Callable[..., Any]) -> None:
    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        chunks = b"%x\r\n%b\r\n0\r\nX-Sum: 1\r\n\r\n" % (len(ASKED), ASKED)
        await client.say(CHAT + b"Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n" + chunks)
        assert (await client.answer())[2] == ANSWER
        assert json.loads(wire.upstream.received[0].body) == json.loads(ASKED)
        assert "trailer" not in wire.upstream.received[0].headers
        await client.say(CHAT + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
        status, _, body = await client.answer()
        assert (status, json.loads(body)["error"]["code"]) == (501, "transfer_coding")

    play(scene, fine)


def test_who_waits_for_100_is_told_to_go_on(play: Callable[..., Any]) -> None:
    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        await client.say(CHAT + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(ASKED))
        assert b" 100 " in await client.hear(b"\r\n\r\n")
        await client.say(ASKED)
        assert (await client.answer())[::2] == (200, ANSWER)
        assert "expect" not in wire.upstream.received[0].headers

    play(scene, fine)


def test_requests_that_are_sent_together_are_answered_in_their_order(play: Callable[..., Any]) -> None:
    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        one = CHAT + b"Content-Length: %d\r\n\r\n" % len(ASKED) + ASKED
        await client.say(one + HEALTH + b"\r\n" + one)
        assert [(await client.answer())[2] for _ in range(3)][::2] == [ANSWER, b'"2"']

    play(scene, fine, lambda talk: talk.reply(200, b'"2"'))


# --- ends of connections ----------------------------------------------------------------------------------------------


def things_of_old(path: bytes = b"/v1/things") -> bytes:
    return b"GET " + path + b" HTTP/1.0\r\n" + HOST + b"\r\n"


def test_to_who_speaks_http_1_0_a_cut_answer_does_not_look_whole(play: Callable[..., Any]) -> None:
    """The end of the connection is the end of such an answer: nginx asks like that by default."""

    def begun(talk: Talk) -> None:
        talk.start_chunks("application/octet-stream")
        talk.chunk(b"part")

    def cut(talk: Talk) -> None:
        begun(talk)
        talk.close()

    def whole(talk: Talk) -> None:
        begun(talk)
        talk.end_chunks()

    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        await client.say(things_of_old())
        assert (await client.to_the_end()).endswith(b"\r\n\r\npart")
        client = await wire.connect()
        await client.say(things_of_old())
        with pytest.raises(trio.BrokenResourceError):
            await client.to_the_end()
        await wire.settled()

    play(scene, whole, cut)


def test_who_speaks_http_1_0_and_would_go_on_is_told_that_this_is_the_end(play: Callable[..., Any]) -> None:
    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        await client.say(things_of_old().replace(HOST, HOST + b"Connection: keep-alive\r\n"))
        status, head, body = await client.answer()
        assert (status, body) == (200, ANSWER)
        assert b"connection: close" in head
        assert await client.to_the_end() == b""

    play(scene, fine)


def test_who_closes_its_half_has_left_and_a_page_is_answered_all_the_same(play: Callable[..., Any]) -> None:
    """A client that is gone and one that only sends no more look alike, and the first kind must free its server."""
    hung_up = threading.Event()

    def wait(talk: Talk) -> None:
        talk.wait_for_hangup()
        hung_up.set()

    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        await client.say(HEALTH + b"\r\n")
        await client.stream.send_eof()
        assert (await client.to_the_end()).startswith(b"HTTP/1.1 200")
        client = await wire.connect()
        await client.say(CHAT + b"Content-Length: %d\r\n\r\n" % len(ASKED) + ASKED)
        await until(lambda: bool(wire.upstream.received))
        await client.stream.send_eof()
        assert await client.to_the_end() == b""
        await trio.to_thread.run_sync(hung_up.wait, PATIENCE)
        assert wire.tally.ended == {("chat", Ending.LEFT): 1}
        await wire.settled()

    play(scene, wait)


# --- heads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"null", b"\xff"])
def test_a_question_that_is_no_json_object_is_refused_here(play: Callable[..., Any], body: bytes) -> None:
    """Of llama-server it is a 500, which clients send again."""

    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        await client.say(head + body)
        status, _, answer = await client.answer()
        assert (status, json.loads(answer)["error"]["code"]) == (400, "bad_request")
        assert not wire.upstream.received

    play(scene)


def test_a_target_that_is_no_urls_is_refused(play: Callable[..., Any]) -> None:
    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        await client.say(THINGS.replace(b"things", b"things#part") + b"\r\n")
        status, _, body = await client.answer()
        assert (status, json.loads(body)["error"]["code"]) == (400, "bad_request")
        assert not wire.upstream.received

    play(scene)


def test_no_tunnel_is_made(play: Callable[..., Any]) -> None:
    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        for _ in range(2):
            await client.say(b"CONNECT" + THINGS[3:] + b"\r\n")
            status, _, body = await client.answer()
            assert (status, json.loads(body)["error"]["code"]) == (405, "not_allowed")
        assert not wire.upstream.received

    play(scene)


def test_an_upgrade_is_not_heard_of_and_what_is_of_one_connection_stays_there(play: Callable[..., Any]) -> None:
    def hop(talk: Talk) -> None:
        talk.reply(200, ANSWER, "Connection: X-Hop, keep-alive", "X-Hop: 1", "X-End: 1")

    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        for _ in range(2):
            await client.say(
                THINGS + b"Connection: Upgrade, X-Mine\r\nX-Mine: 1\r\nX-Kept: 1\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            status, head, body = await client.answer()
            assert (status, body) == (200, ANSWER)
            assert b"x-hop" not in head
            assert b"x-end: 1" in head
            seen = wire.upstream.received[-1].headers
            assert seen.keys() & {"upgrade", "x-mine", "x-kept"} == {"x-kept"}

    play(scene, hop, hop)


def test_a_head_alone_is_passed_on_as_one(play: Callable[..., Any]) -> None:
    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        for _ in range(2):
            await client.say(b"HEAD" + THINGS[3:] + b"\r\n")
            head = (await client.hear(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 200")
            assert b"content-length: 70000" in head
        assert client.rest == b""
        assert wire.upstream.connected == 1

    step: Step = lambda talk: talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n")  # noqa: E731
    play(scene, step, step)


# --- servers that count badly -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 204 No\r\n\r\nand yet a body",
        b"HTTP/1.1 304 Not\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{} and more",
    ],
    ids=["204", "304", "longer than its length"],
)
@pytest.mark.parametrize("head", [THINGS, CHAT], ids=["once", "replayable"])
def test_what_a_server_says_beyond_its_answer_is_no_part_of_the_next_one(
    play: Callable[..., Any], head: bytes, answer: bytes
) -> None:
    """It was taken for the beginning of the next answer, and that for a stranger's: the next request was held in vain."""

    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        request = head + b"Content-Length: %d\r\n\r\n" % len(ASKED) + ASKED
        await client.say(request)
        said = await client.hear(b"\r\n\r\n")
        assert said.startswith(answer[:12])
        if said.startswith(b"HTTP/1.1 200"):
            assert await client.hear(b"{}") == b"{}"
        await client.say(request)
        assert (await client.answer())[::2] == (200, ANSWER)
        assert (len(wire.upstream.received), wire.upstream.connected) == (2, 2)

    play(scene, lambda talk: talk.send(answer), fine)


def test_a_length_beside_chunks_is_not_the_length(play: Callable[..., Any]) -> None:
    def both(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")
        talk.chunk(b"hello world")
        talk.end_chunks()

    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        await client.say(THINGS + b"\r\n")
        assert b"content-length" not in (await client.hear(b"\r\n\r\n")).lower()
        assert await client.hear(b"0\r\n\r\n") == b"b\r\nhello world\r\n0\r\n\r\n"

    play(scene, both)


def test_an_answer_shorter_than_its_length_is_never_whole(play: Callable[..., Any]) -> None:
    def short(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n[1,2]")
        talk.close()

    async def scene(wire: Wire) -> None:
        client = await wire.connect()
        await client.say(THINGS + b"\r\n")
        assert (await client.to_the_end()).endswith(b"\r\n\r\n[1,2]")
        client = await wire.connect()
        await client.say(CHAT + b"Content-Length: %d\r\n\r\n" % len(ASKED) + ASKED)
        status, _, body = await client.answer()
        assert status == 503
        assert "sent 2 times" in json.loads(body)["error"]["reason"]
        assert wire.tally.ended == {("chat", Ending.INTERRUPTED): 1, ("chat", Ending.UNAVAILABLE): 1}

    play(scene, short, short, short)


def test_a_server_that_answers_before_it_has_the_body_is_heard(play: Callable[..., Any]) -> None:
    with early_server() as endpoint:

        async def scene(wire: Wire) -> None:
            wire.server._forwarding.whereabouts.endpoint = endpoint  # type: ignore[attr-defined]
            client = await wire.connect()
            await client.say(CHAT + b"Content-Length: 4000000\r\n\r\n{" + b" " * 3_999_998 + b"}")
            status, _, body = await client.answer()
            assert (status, body) == (413, b'{"error":"much"}')

        play(scene)


@contextmanager
def early_server() -> Iterator[Any]:
    """Says 413 after the head, and reads the rest before it closes."""
    from tests.client.scripted import endpoint_at

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b'HTTP/1.1 413 Much\r\nConnection: close\r\nContent-Length: 16\r\n\r\n{"error":"much"}')
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield endpoint_at(listener.getsockname()[1])
        thread.join(PATIENCE)
        assert not thread.is_alive()
