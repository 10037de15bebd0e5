"""What only trio's client has: cancellation, and nothing of ours blocking its loop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import httpx
import pytest
import trio

from supervisor.stepping import step
from supervisor.transport import AnswerInterrupted, AsyncHoldingTransport
from tests.client.asking import ANSWER, CHAT, DELTA
from tests.client.scripted import PATIENCE, FakeDirectory, ScriptedServer, Talk, closed_port, endpoint_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.contract import Endpoint

pytestmark = pytest.mark.trio


def client(directory: FakeDirectory) -> httpx.AsyncClient:
    assert directory.endpoint is not None
    transport = AsyncHoldingTransport(directory, [directory.endpoint])
    return httpx.AsyncClient(transport=transport, base_url=directory.endpoint.url, timeout=PATIENCE)


def silent(talk: Talk) -> None:
    pass


def head_alone(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")


def stream_without_an_event(talk: Talk) -> None:
    talk.start_chunks()
    talk.chunk(b": ping\n\n")


@pytest.mark.parametrize("so_far", [silent, head_alone, stream_without_an_event])
async def test_a_cancelled_request_hangs_up_at_once(so_far: Callable[[Talk], None]) -> None:
    sent, hung_up = threading.Event(), threading.Event()

    def script(talk: Talk) -> None:
        so_far(talk)
        sent.set()
        talk.wait_for_hangup()
        hung_up.set()

    def whole(talk: Talk) -> None:
        talk.reply(200, ANSWER)

    with ScriptedServer(script, whole) as server:
        async with client(FakeDirectory(server.endpoint())) as http:
            with trio.move_on_after(PATIENCE) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(http.post, CHAT)
                    assert await trio.to_thread.run_sync(sent.wait, PATIENCE)
                    nursery.cancel_scope.cancel()
            assert not scope.cancelled_caught
            assert await trio.to_thread.run_sync(hung_up.wait, PATIENCE), "the server was never told"
            assert (await http.post(CHAT)).content == ANSWER


async def test_a_cancelled_stream_hangs_up_at_once() -> None:
    hung_up = threading.Event()

    def endless(talk: Talk) -> None:
        talk.start_chunks()
        talk.chunk(DELTA)
        talk.wait_for_hangup()
        hung_up.set()

    with ScriptedServer(endless) as server:
        async with client(FakeDirectory(server.endpoint())) as http:
            with trio.CancelScope() as scope:
                async with http.stream("POST", CHAT) as answer:
                    async for _ in answer.aiter_raw():
                        scope.cancel()
            assert scope.cancelled_caught
            assert await trio.to_thread.run_sync(hung_up.wait, PATIENCE), "the server was never told"


async def test_a_held_request_is_cancelled_and_others_go_on_meanwhile() -> None:
    asked = trio.Event()

    class Patient(FakeDirectory):
        async def wait_async(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
            asked.set()
            await trio.sleep_forever()
            raise AssertionError

    directory = Patient(endpoint_at(closed_port()))
    async with client(directory) as http, trio.open_nursery() as nursery:
        nursery.start_soon(http.post, CHAT)
        with trio.fail_after(PATIENCE):
            await asked.wait()
        nursery.cancel_scope.cancel()


async def test_closing_the_client_ends_what_it_holds() -> None:
    def loading(talk: Talk) -> None:
        talk.reply(503, b'{"error":{"message":"Loading model"}}')

    with ScriptedServer(*[loading] * 99) as server:
        asked = trio.Event()
        directory = FakeDirectory(server.endpoint(), then=[server.endpoint()] * 99, before_wait=asked.set)
        transport = AsyncHoldingTransport(directory, [server.endpoint()])
        request = httpx.Request("POST", server.url + CHAT, content=b"{}")
        answers: list[int] = []

        async def ask() -> None:
            answers.append((await transport.handle_async_request(request)).status_code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            with trio.fail_after(PATIENCE):
                await asked.wait()
            await transport.aclose()
        assert answers == [503]


@pytest.mark.parametrize("pieces", [1, 20])
async def test_a_stream_whose_client_is_closed_meanwhile_is_interrupted(pieces: int) -> None:
    """Also a long one, which is read by hand by then."""

    def going_on(talk: Talk) -> None:
        talk.start_chunks()
        for _ in range(pieces):
            talk.chunk(DELTA)
        talk.wait_for_hangup()

    with ScriptedServer(going_on) as server:
        transport = AsyncHoldingTransport(FakeDirectory(server.endpoint()), [server.endpoint()])
        request = httpx.Request("POST", server.url + CHAT, content=b"{}")
        answer = await transport.handle_async_request(request)
        came = 0

        async def read(nursery: trio.Nursery) -> None:
            nonlocal came
            async for piece in answer.aiter_raw():
                came += len(piece)
                if came == pieces * len(DELTA):
                    nursery.start_soon(transport.aclose)

        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                with pytest.raises(AnswerInterrupted):
                    await read(nursery)
        assert came == pieces * len(DELTA)


async def test_what_must_not_wait_says_so_when_it_does() -> None:
    with pytest.raises(RuntimeError, match="waits for an event loop"):
        step(trio.lowlevel.checkpoint())  # noqa: ASYNC105 - on purpose
