"""Every way to lose a proxy, under the gateway: what its caller gets, and how it is counted (huggingface_hub#4398)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from supervisor.contract import Endpoint, EngineSpec, GatewaySpec, GroupSpec, LaunchSpec
from supervisor.gateway import forwarding
from supervisor.gateway.tally import Ending, Tally
from tests.client.asking import ANSWER
from tests.client.scripted import FakeDirectory, ScriptedServer, Talk
from tests.client.test_transport_losses import LOSSES, ok

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'


class Found(FakeDirectory):
    """A directory as the gateway asks one."""

    def reason(self, group: str) -> str:
        return "it was killed"

    def has_proxy(self, group: str) -> bool:
        return True


def asked(
    monkeypatch: pytest.MonkeyPatch,
    endpoint: Endpoint,
    *then: Endpoint,
    is_stream: bool = False,
    deadline_s: float = 10.0,
) -> tuple[int, bytes, Tally, list[str | None]]:
    """Ask for a chat completion: status, body, what was counted, and what the directory was asked for."""
    directory = Found(endpoint, then=list(then))
    monkeypatch.setattr(forwarding, "Whereabouts", lambda _: directory)
    chat = LaunchSpec("chat", "smol", "/smol.gguf", 4096, 1)
    spec = EngineSpec((GroupSpec("chat", "llama-swap", (chat,), "p"),), gateway=GatewaySpec(deadline_s=deadline_s))
    tally = Tally()
    keeper: Any = SimpleNamespace(spec=spec, tree=None, gateway=SimpleNamespace(tally=tally))
    body = json.dumps({"messages": [], "max_tokens": 4, "stream": is_stream}).encode()
    sent: list[dict[str, Any]] = []

    async def main() -> None:
        requests = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return requests.pop() if requests else await trio.sleep_forever()

        async def send(message: Any) -> None:
            sent.append(message)

        app = forwarding.Forwarding(keeper)
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "headers": []}
        with trio.fail_after(30):
            await app(scope, receive, send)
        await app._carrier.pool.aclose()

    trio.run(main)
    assert not any([*tally.waiting.values(), *tally.running.values()])
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent), tally, directory.waits


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("loss", "gone"), LOSSES.values(), ids=LOSSES)
def test_lost_once_before_the_first_byte_the_caller_gets_its_answer(
    monkeypatch: pytest.MonkeyPatch, loss: Callable[[Talk], None], gone: str | None, is_stream: bool
) -> None:
    with ScriptedServer(loss) as old, ScriptedServer(ok) as new:
        status, body, tally, waits = asked(monkeypatch, old.endpoint("g1"), new.endpoint("g2"), is_stream=is_stream)
        assert (status, body) == (200, ANSWER)
        assert [len(old.received), len(new.received)] == [1, 1]
        assert waits == [gone], "found anew once"
    assert (tally.ended, tally.held, tally.replayed) == ({("chat", Ending.ANSWERED): 1}, {"chat": 1}, {"chat": 1})


@pytest.mark.parametrize(("loss", "gone"), LOSSES.values(), ids=LOSSES)
def test_lost_twice_the_caller_gets_a_503_that_says_so_and_no_third_one_is_asked(
    monkeypatch: pytest.MonkeyPatch, loss: Callable[[Talk], None], gone: str | None
) -> None:
    del gone
    with ScriptedServer(loss) as first, ScriptedServer(loss) as second, ScriptedServer(ok) as third:
        then = (second.endpoint("g2"), third.endpoint("g3"))
        status, body, tally, _ = asked(monkeypatch, first.endpoint("g1"), *then)
        error = json.loads(body)["error"]
        assert (status, error["code"], error["group"]) == (503, "engine_unavailable", "chat")
        assert "sent 2 times" in error["reason"]
        assert len(third.received) == 0
    assert tally.ended == {("chat", Ending.UNAVAILABLE): 1}


def test_a_closed_port_is_found_anew_once_and_a_black_hole_is_a_503_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedServer() as old, ScriptedServer(ok) as new:
        old.die()
        status, body, _, waits = asked(monkeypatch, old.endpoint("g1"), new.endpoint("g2"))
        assert (status, body, waits) == (200, ANSWER, ["g1"])
    with ScriptedServer(lambda talk: talk.wait_for_hangup()) as hole:
        status, body, tally, _ = asked(monkeypatch, hole.endpoint("g1"), deadline_s=0.5)
        assert (status, json.loads(body)["error"]["code"]) == (503, "engine_unavailable")
        assert len(hole.received) == 1
    assert tally.ended == {("chat", Ending.UNAVAILABLE): 1}


@pytest.mark.parametrize("is_reset", [False, True])
def test_lost_behind_its_first_event_a_stream_says_that_it_is_broken(
    monkeypatch: pytest.MonkeyPatch, is_reset: bool
) -> None:
    def loss(talk: Talk) -> None:
        talk.start_chunks()
        talk.chunk(EVENTS)
        (talk.reset if is_reset else talk.end_chunks)()

    with ScriptedServer(loss) as old, ScriptedServer(ok) as new:
        status, body, tally, waits = asked(monkeypatch, old.endpoint("g1"), new.endpoint("g2"), is_stream=True)
        assert (status, waits, len(new.received)) == (200, [], 0)
        head, _, last = body.partition(b"event: error\ndata: ")
        assert head.startswith(EVENTS)
        assert json.loads(last)["error"]["code"] == "interrupted"
    assert tally.ended == {("chat", Ending.INTERRUPTED): 1}


FAILURE = b'data: {"error":{"code":500,"message":"cannot parse the call","type":"server_error"}}\n\n'
FAILURES = {
    "as data": (FAILURE, b""),
    "before done": (FAILURE + b"data: [DONE]\n\n", b""),
    "as an event": (b'event: error\ndata: {"code":500,"message":"cannot parse the call"}\n\n', b""),
    "as of old": (
        b'error: {"code":500,"message":"cannot parse the call"}\n\n',
        b'event: error\ndata: {"error": {"code": 500, "message": "cannot parse the call"}}\n\n',
    ),
}
CALL = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]},"finish_reason":null}]}\n\n'


@pytest.mark.parametrize(("failure", "more"), FAILURES.values(), ids=FAILURES)
def test_a_server_that_says_in_its_stream_that_it_failed_is_passed_on_and_counted_as_that(
    monkeypatch: pytest.MonkeyPatch, failure: bytes, more: bytes
) -> None:
    """In the middle of a tool call, say. Whoever reads events has read why; a form of it that none of them reads is said
    once more in one that they do."""

    def fail(talk: Talk) -> None:
        talk.start_chunks()
        talk.chunk(CALL)
        talk.chunk(failure)
        talk.end_chunks()

    with ScriptedServer(fail) as server:
        status, body, tally, waits = asked(monkeypatch, server.endpoint("g1"), is_stream=True)
        assert (status, body, waits, len(server.received)) == (200, CALL + failure + more, [], 1)
    assert tally.ended == {("chat", Ending.ERROR): 1}


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_failure_that_is_cut_in_its_middle_is_a_broken_stream(
    monkeypatch: pytest.MonkeyPatch, is_reset: bool
) -> None:
    def fail(talk: Talk) -> None:
        talk.start_chunks()
        talk.chunk(EVENTS)
        talk.chunk(FAILURE[:30])
        (talk.reset if is_reset else talk.end_chunks)()

    with ScriptedServer(fail) as server:
        status, body, tally, _ = asked(monkeypatch, server.endpoint("g1"), is_stream=True)
        head, _, last = body.partition(b"event: error\ndata: ")
        assert (status, head) == (200, EVENTS + FAILURE[:30] + b"\n\n")
        assert json.loads(last)["error"]["code"] == "interrupted"
    assert tally.ended == {("chat", Ending.INTERRUPTED): 1}
