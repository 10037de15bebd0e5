"""Every way to lose a proxy, and what the caller sees: an answer, a 503 that explains, or an explicit interruption."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING

import httpx
import pytest

from supervisor.transport import AnswerInterrupted
from tests.client.asking import ANSWER, CHAT, DELTA, ask, client
from tests.client.scripted import PATIENCE, FakeDirectory, ScriptedServer, Talk, closed_port, endpoint_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.contract import Endpoint

pytestmark = pytest.mark.usefixtures("both_worlds")


def ok(talk: Talk) -> None:
    talk.reply(200, ANSWER)


def close_after_request(talk: Talk) -> None:
    talk.close()


def reset_after_request(talk: Talk) -> None:
    talk.reset()


def close_in_headers(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    talk.close()


def reset_in_headers(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    talk.reset()


def close_in_body(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n" + ANSWER)
    talk.close()


def reset_in_body(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n" + ANSWER)
    talk.reset()


def close_in_chunked_body(talk: Talk) -> None:
    talk.start_chunks("application/json")
    talk.chunk(ANSWER[:10])
    talk.close()


def clean_end_of_half_a_body(talk: Talk) -> None:
    talk.start_chunks("application/json")
    talk.chunk(ANSWER[:10])
    talk.end_chunks()


def garbage(talk: Talk) -> None:
    talk.send(b"-ERR unknown command 'POST'\r\n-ERR wrong number of arguments\r\n\r\n")
    talk.close()


def garbage_without_a_blank_line(talk: Talk) -> None:
    talk.send(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")
    talk.close()


def empty_502(talk: Talk) -> None:
    talk.reply(502)


def close_before_first_event(talk: Talk) -> None:
    talk.start_chunks()
    talk.close()


def reset_after_pings(talk: Talk) -> None:
    talk.start_chunks()
    talk.chunk(b": ping\n\n")
    talk.reset()


def clean_end_of_an_empty_stream(talk: Talk) -> None:
    talk.start_chunks()
    talk.end_chunks()


LOSSES: dict[str, tuple[Callable[[Talk], None], str | None]] = {
    "killed_after_request_was_read": (close_after_request, None),
    "reset_after_request_was_read": (reset_after_request, None),
    "killed_in_the_headers": (close_in_headers, None),
    "reset_in_the_headers": (reset_in_headers, None),
    "killed_in_the_body": (close_in_body, None),
    "reset_in_the_body": (reset_in_body, None),
    "killed_in_a_chunked_body": (close_in_chunked_body, None),
    "half_a_body_with_a_clean_terminator": (clean_end_of_half_a_body, None),
    "garbage_reply": (garbage, "g1"),
    "garbage_that_could_have_become_headers": (garbage_without_a_blank_line, None),
    "empty_502": (empty_502, None),
    "stream_killed_before_its_first_event": (close_before_first_event, None),
    "stream_reset_after_pings": (reset_after_pings, None),
    "empty_stream_with_a_clean_terminator": (clean_end_of_an_empty_stream, None),
}
"""Losses after the request was sent and before the caller saw a byte; and the generation that is then known gone."""


@pytest.mark.parametrize(("loss", "gone"), LOSSES.values(), ids=LOSSES)
def test_lost_once_before_the_first_byte_is_sent_again_and_answered(
    loss: Callable[[Talk], None], gone: str | None
) -> None:
    with ScriptedServer(loss) as old, ScriptedServer(ok) as new:
        directory = FakeDirectory(old.endpoint("g1"), then=[new.endpoint("g2")])
        with client(directory, url=old.url) as http:
            answer = ask(http)
        assert (answer.status_code, answer.content) == (200, ANSWER)
        assert [len(old.received), len(new.received)] == [1, 1]
        assert old.received[0].body == new.received[0].body
        assert json.loads(old.received[0].body) == {"messages": []}
        assert directory.waits == [gone]


@pytest.mark.parametrize(("loss", "gone"), LOSSES.values(), ids=LOSSES)
def test_lost_twice_before_the_first_byte_is_not_sent_to_a_third(
    loss: Callable[[Talk], None], gone: str | None
) -> None:
    with ScriptedServer(loss) as first, ScriptedServer(loss) as second, ScriptedServer(ok) as third:
        directory = FakeDirectory(first.endpoint("g1"), then=[second.endpoint("g2"), third.endpoint("g3")])
        with client(directory, url=first.url) as http:
            answer = ask(http)
        assert answer.status_code == 503
        assert answer.headers["x-should-retry"] == "false"
        assert "sent 2 times" in answer.json()["error"]["reason"]
        assert [len(first.received), len(second.received), len(third.received)] == [1, 1, 0]


@pytest.mark.parametrize("loss", [close_after_request, reset_after_request, close_in_headers, garbage])
def test_a_request_with_side_effects_is_never_sent_again(loss: Callable[[Talk], None]) -> None:
    with ScriptedServer(loss, ok) as server:
        directory = FakeDirectory(server.endpoint(), then=[server.endpoint("g2")])
        with (
            client(directory, url=server.url) as http,
            pytest.raises(AnswerInterrupted, match="what became of the request is not known"),
        ):
            ask(http, path="/api/models/unload/smol")
        assert len(server.received) == 1
        assert directory.waits == []


def test_a_request_with_side_effects_is_held_while_nobody_listens() -> None:
    with ScriptedServer(ok) as new:
        old = endpoint_at(closed_port())
        with client(FakeDirectory(old, then=[new.endpoint("g2")]), url=old.url) as http:
            assert ask(http, path="/api/models/unload/smol").status_code == 200
        assert len(new.received) == 1


def test_port_closed_is_held_and_rediscovered_once() -> None:
    with ScriptedServer() as old, ScriptedServer(ok) as new:
        old.die()
        directory = FakeDirectory(old.endpoint("g1"), then=[new.endpoint("g2")])
        with client(directory, url=old.url) as http:
            assert ask(http).status_code == 200
        assert directory.waits == ["g1"]
        assert [len(old.received), len(new.received)] == [0, 1]


def test_a_stranger_on_the_old_port_is_told_nothing() -> None:
    """What served there is dead, and somebody else took its port: he would have the prompt, and the key."""
    with ScriptedServer(ok) as stranger, ScriptedServer(ok) as new:
        directory = FakeDirectory(stranger.endpoint("g1"), then=[new.endpoint("g2")], strangers={stranger.port})
        with client(directory, url=stranger.url) as http:
            assert ask(http).status_code == 200
            assert ask(http, path="/api/models/unload/smol").status_code == 418  # the script has one step
        assert directory.waits == ["g1"]
        assert (stranger.connected, len(stranger.received), len(new.received)) == (1, 0, 2)


def test_refusals_do_not_count_however_many() -> None:
    with ScriptedServer(empty_502) as old, ScriptedServer() as dead, ScriptedServer(ok) as new:
        dead.die()
        then = [dead.endpoint(f"g{life}") for life in range(2, 6)] + [new.endpoint("g9")]
        directory = FakeDirectory(old.endpoint("g1"), then=list(then))
        with client(directory, url=old.url) as http:
            assert ask(http).status_code == 200
        assert directory.waits == [None, "g2", "g3", "g4", "g5"]
        assert [len(old.received), len(new.received)] == [1, 1]


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("same_port", [True, False], ids=["same_port", "new_port"])
def test_killed_idle_and_rebuilt_between_two_requests_of_one_client(same_port: bool, reset: bool) -> None:
    with ScriptedServer(ok) as old:
        directory = FakeDirectory(old.endpoint("g1"))
        with client(directory, url=old.url) as http:
            assert ask(http).status_code == 200
            old.die(reset=reset)
            with ScriptedServer(ok, port=old.port if same_port else 0) as new:
                directory.then = [new.endpoint("g2")]
                answer = ask(http)
                assert (answer.status_code, answer.content) == (200, ANSWER)
                assert directory.waits == ([] if same_port else ["g1"])
                assert [len(old.received), len(new.received)] == [1, 1]


def test_a_keep_alive_connection_closed_under_the_request_is_sent_again() -> None:
    with ScriptedServer(ok, close_after_request, ok) as server:
        directory = FakeDirectory(server.endpoint(), then=[server.endpoint()])
        with client(directory, url=server.url) as http:
            assert ask(http).status_code == 200
            assert ask(http).status_code == 200
        assert server.connected == 2
        assert len(server.received) == 3
        assert directory.waits == [None]


def test_a_black_hole_is_a_503_at_the_deadline_and_sent_once() -> None:
    with ScriptedServer(Talk.wait_for_hangup, ok) as server:
        directory = FakeDirectory(server.endpoint(), then=[server.endpoint()])
        with client(directory, url=server.url) as http:
            answer = ask(http, deadline_s=0.1)
        assert answer.status_code == 503
        assert answer.json()["error"]["reason"] == "no answer came within the deadline"
        assert len(server.received) == 1


def test_a_black_hole_in_the_body_is_a_503_at_the_deadline() -> None:
    def half(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nx")
        talk.wait_for_hangup()

    def pings(talk: Talk) -> None:
        talk.start_chunks()
        talk.chunk(b":\n\n")
        talk.wait_for_hangup()

    with ScriptedServer(half, pings) as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        assert ask(http, deadline_s=0.1).status_code == 503
        assert ask(http, deadline_s=0.1).status_code == 503
        assert len(server.received) == 2


def test_a_black_hole_for_a_request_with_side_effects_is_interrupted() -> None:
    with (
        ScriptedServer(Talk.wait_for_hangup) as server,
        client(FakeDirectory(server.endpoint()), url=server.url) as http,
        pytest.raises(AnswerInterrupted, match="not known"),
    ):
        ask(http, path="/unload", deadline_s=0.1)


def test_a_port_that_takes_no_connection_is_a_503_at_the_deadline() -> None:
    """A stopped process with a full backlog: the kernel drops the handshake."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as stopped:
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(stopped.getsockname())
        hole = endpoint_at(stopped.getsockname()[1])
        directory = FakeDirectory(hole, then=[hole] * 100)
        with client(directory, url=hole.url) as http:
            answer = ask(http, deadline_s=0.2)
        for filler in fillers:
            filler.close()
    assert answer.status_code == 503
    assert set(directory.waits) <= {None}


def test_sixteen_threads_share_one_transport_over_a_kill() -> None:
    with ScriptedServer(*[close_after_request] * 16) as old, ScriptedServer(*[ok] * 16) as new:

        class Directory(FakeDirectory):
            def wait(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
                self.waits.append(unlike)
                self.endpoint = new.endpoint("g2")
                return self.endpoint

        with client(Directory(old.endpoint("g1")), url=old.url) as http:
            together = threading.Barrier(16)
            answers: list[int] = []

            def one() -> None:
                together.wait(PATIENCE)
                answers.append(ask(http).status_code)

            threads = [threading.Thread(target=one) for _ in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
        assert answers == [200] * 16
        assert len(new.received) == 16
        assert len(old.received) <= 16


# --- after the first byte -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["closed", "reset", "clean_end"])
def test_killed_after_three_events_is_interrupted_and_not_sent_again(loss: str) -> None:
    read = threading.Event()

    def three_then_lost(talk: Talk) -> None:
        talk.start_chunks()
        for _ in range(3):
            talk.chunk(DELTA)
        talk.wait(read)
        {"closed": talk.close, "reset": talk.reset, "clean_end": talk.end_chunks}[loss]()

    with ScriptedServer(three_then_lost, ok) as server:
        directory = FakeDirectory(server.endpoint(), then=[server.endpoint("g2")])
        with client(directory, url=server.url) as http:
            got = b""
            with http.stream("POST", CHAT, json={}) as answer:
                pieces = answer.iter_raw()
                while got.count(b"data:") < 3:
                    got += next(pieces)
                read.set()
                with pytest.raises(AnswerInterrupted, match="after part of it had been delivered") as raised:
                    next(pieces)
            assert isinstance(raised.value, httpx.ReadError)
            assert raised.value.request.url.path == CHAT
            assert got == DELTA * 3
            assert len(server.received) == 1
            assert directory.waits == []
            assert ask(http).status_code == 200, "the next call works"


def test_garbage_in_the_middle_of_a_stream_is_interrupted() -> None:
    def strange(talk: Talk) -> None:
        talk.start_chunks()
        talk.chunk(DELTA)
        talk.send(b"this is no chunk\r\n")

    with ScriptedServer(strange) as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        with http.stream("POST", CHAT, json={}) as answer, pytest.raises(AnswerInterrupted):
            answer.read()
        assert len(server.received) == 1


def test_a_pass_through_body_that_is_cut_is_interrupted() -> None:
    with ScriptedServer(close_in_body) as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        with pytest.raises(AnswerInterrupted):
            http.get("/v1/models")
        assert len(server.received) == 1
