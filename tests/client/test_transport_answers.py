"""What is done with answers, keys, URLs and deadlines when the connection itself holds."""

from __future__ import annotations

import pickle
import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from supervisor import budgets
from supervisor.contract import Endpoint, State
from supervisor.errors import FailedForGoodError, InterruptedAnswerError, UsageError
from supervisor.transport import AnswerInterrupted, HoldingTransport
from tests.client.asking import ANSWER, CHAT, ask, client
from tests.client.scripted import PATIENCE, FakeDirectory, ScriptedServer, Talk, closed_port, endpoint_at

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("both_worlds")

STRING_FORM = b'{"src":"llama-swap","error":"unspecific error: upstream command exited prematurely"}'
OBJECT_FORM = b'{"src":"llama-swap","error":{"message":"Too many requests","code":"concurrency_limit"}}'
LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
THEIRS = b'{"error":{"code":500,"message":"does not support logits"}}'


def says(status: int, body: bytes = b"", *headers: str) -> Callable[[Talk], None]:
    return lambda talk: talk.reply(status, body, *headers)


ok = says(200, ANSWER)


@pytest.mark.parametrize(
    ("first", "gone"),
    [
        (says(500, STRING_FORM), None),
        (says(500, OBJECT_FORM), None),
        (says(500), None),
        (says(502), None),
        (says(503, OBJECT_FORM), None),
        (says(503), None),
        (says(503, LOADING), None),
        (says(401, OBJECT_FORM), "g1"),
    ],
    ids=["500_string", "500_object", "500_empty", "502_empty", "503_object", "503_empty", "503_loading", "401_proxy"],
)
def test_the_proxys_own_errors_are_held_and_sent_again(first: Callable[[Talk], None], gone: str | None) -> None:
    with ScriptedServer(first, ok) as server:
        directory = FakeDirectory(server.endpoint("g1"), then=[server.endpoint("g1")])
        with client(directory, url=server.url) as http:
            assert ask(http).content == ANSWER
        assert len(server.received) == 2
        assert directory.waits == [gone]


@pytest.mark.parametrize("status", [200, 204, 400, 401, 404, 500, 502, 503, 504])
def test_the_servers_own_answers_pass_through(status: int) -> None:
    body = b"" if status == 204 else THEIRS
    with ScriptedServer(says(status, body, "X-Theirs: yes")) as server:
        with client(FakeDirectory(server.endpoint()), url=server.url) as http:
            answer = ask(http)
        assert (answer.status_code, answer.content, answer.headers["x-theirs"]) == (status, body, "yes")
        assert len(server.received) == 1


@pytest.mark.parametrize("status", [401, 429, 500, 502, 503])
def test_any_answer_to_a_request_with_side_effects_passes_through(status: int) -> None:
    with ScriptedServer(says(status, OBJECT_FORM)) as server:
        with client(FakeDirectory(server.endpoint()), url=server.url) as http:
            assert http.get("/unload").status_code == status
        assert len(server.received) == 1


def test_a_loading_model_is_asked_until_it_has_loaded() -> None:
    with ScriptedServer(*[says(503, LOADING)] * 4, ok) as server:
        directory = FakeDirectory(server.endpoint(), then=[server.endpoint()] * 4)
        with client(directory, url=server.url) as http:
            assert ask(http).status_code == 200
        assert len(server.received) == 5


@pytest.mark.parametrize(
    "body", [OBJECT_FORM, b'{"error":"Too many requests"}']
)  # the second: v250, which does not say whose it is
def test_a_429_of_the_proxy_waits_as_told(body: bytes) -> None:
    with ScriptedServer(says(429, body, "Retry-After: 0"), ok) as server:
        directory = FakeDirectory(server.endpoint())
        with client(directory, url=server.url) as http:
            assert ask(http).status_code == 200
        assert directory.waits == []


def test_a_429_that_says_later_than_the_deadline_is_a_503_at_once() -> None:
    with ScriptedServer(says(429, OBJECT_FORM, "Retry-After: 30")) as server:
        with client(FakeDirectory(server.endpoint()), url=server.url) as http:
            answer = ask(http)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")


def test_a_429_that_says_a_number_without_sense_is_waited_for_as_if_it_said_none() -> None:
    with (
        ScriptedServer(says(429, OBJECT_FORM, "Retry-After: " + 400 * "9"), ok) as server,
        client(FakeDirectory(server.endpoint()), url=server.url) as http,
    ):
        assert ask(http).status_code == 200


# --- held -----------------------------------------------------------------------------------------------------------


def test_a_request_is_held_until_the_group_is_back() -> None:
    back, held = threading.Event(), threading.Event()

    def rebuilding() -> None:
        held.set()
        assert back.wait(PATIENCE)

    with ScriptedServer(ok) as new:
        down = endpoint_at(closed_port())
        directory = FakeDirectory(down, then=[new.endpoint("g2")], before_wait=rebuilding)
        with client(directory, url=down.url) as http:
            answers: list[httpx.Response] = []
            asker = threading.Thread(target=lambda: answers.append(ask(http)))
            asker.start()
            assert held.wait(PATIENCE)
            assert answers == []
            back.set()
            asker.join(PATIENCE)
        assert answers[0].content == ANSWER


def test_a_group_never_heard_of_is_waited_for() -> None:
    with ScriptedServer(ok) as server:
        directory = FakeDirectory(None, then=[server.endpoint()])
        with client(directory, endpoints=[server.endpoint()]) as http:
            assert http.post(server.url + CHAT, json={}).status_code == 200


def test_past_the_deadline_the_503_says_group_state_reason_and_tries() -> None:
    down = endpoint_at(closed_port())
    directory = FakeDirectory(down, now=State.REBUILDING)
    with client(directory, url=down.url) as http:
        answer = ask(http)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["message"] == "group chat (rebuilding): the group did not come back in time"
    assert (error["group"], error["state"], error["next_step"]) == ("chat", "rebuilding", "Look.")
    assert error["tried"] == [f"{down.url} generation g1: the connection was refused"]
    assert {"type", "param", "code"} <= error.keys()


def test_a_group_failed_for_good_is_a_503_at_once() -> None:
    down = endpoint_at(closed_port())
    directory = FakeDirectory(down, then=[FailedForGoodError("chat never became healthy: bad flag")])
    with client(directory, url=down.url) as http:
        answer = ask(http)
    assert answer.status_code == 503
    assert answer.json()["error"]["state"] == "failed"
    assert "bad flag" in answer.json()["error"]["message"]


def test_the_deadline_holds_while_a_directory_answers_with_the_dead() -> None:
    down = endpoint_at(closed_port())
    directory = FakeDirectory(down, then=[down] * 1000)
    with client(directory, url=down.url) as http:
        answer = ask(http, deadline_s=0.5)
    assert answer.status_code == 503
    assert len(directory.waits) < 20, "holds are spaced"
    (tried,) = answer.json()["error"]["tried"]
    assert tried.endswith("times)")


def test_closing_the_client_ends_what_it_holds() -> None:
    held = threading.Event()
    with ScriptedServer(says(503, LOADING), says(503, LOADING)) as server:
        directory = FakeDirectory(server.endpoint(), then=[server.endpoint()] * 9, before_wait=held.set)
        transport = HoldingTransport(directory, [server.endpoint()])
        request = httpx.Request("POST", server.url + CHAT, content=b"{}")
        answers: list[httpx.Response] = []
        asker = threading.Thread(target=lambda: answers.append(transport.handle_request(request)))
        asker.start()
        assert held.wait(PATIENCE)
        transport.close()
        asker.join(PATIENCE)
        assert answers[0].status_code == 503


def test_nothing_is_sent_by_a_client_that_is_closed() -> None:
    """A connection that it made now would be closed by nobody."""
    with ScriptedServer() as server:
        transport = HoldingTransport(FakeDirectory(server.endpoint()), [server.endpoint()])
        transport.close()
        answer = transport.handle_request(httpx.Request("POST", server.url + CHAT, content=b"{}"))
        assert answer.status_code == 503
        assert "was closed" in answer.read().decode()


def test_a_callers_read_timeout_is_its_deadline() -> None:
    with ScriptedServer(Talk.wait_for_hangup) as server:
        started = time.monotonic()
        with client(FakeDirectory(server.endpoint()), url=server.url, timeout_s=0.1) as http:
            assert ask(http).status_code == 503
        assert time.monotonic() - started < budgets.REQUEST_DEADLINE / 10


@pytest.mark.parametrize(
    ("content_type", "begun"), [("application/json", b'{"choices":'), ("text/event-stream", b": nothing yet\n\n")]
)
def test_an_answer_that_begins_and_says_no_more_was_silent_not_cut(content_type: str, begun: bytes) -> None:
    def begins(talk: Talk) -> None:
        talk.start_chunks(content_type)
        talk.chunk(begun)
        talk.wait_for_hangup()

    with ScriptedServer(begins) as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        answer = ask(http, deadline_s=0.3)
    assert answer.status_code == 503
    assert "no answer came within the deadline" in answer.json()["error"]["message"]


# --- rewriting ------------------------------------------------------------------------------------------------------


def test_an_old_url_and_a_foreign_key_reach_the_group_where_it_is_now() -> None:
    with ScriptedServer(ok, ok) as server:
        old = Endpoint("chat", "chat", "smol", f"http://localhost:{closed_port()}", "old-key", "g1")
        with client(FakeDirectory(server.endpoint(key="new-key")), url=old.url, endpoints=[old]) as http:
            headers = {"Authorization": "Bearer sk-theirs", "X-Api-Key": "sk-theirs", "X-Theirs": "yes"}
            http.post(f"{CHAT}?a=b%2Fc", content=iter([b"one ", b"two"]), headers=headers)
        (got,) = server.received
        assert got.target == f"{CHAT}?a=b%2Fc"
        assert got.body == b"one two"
        assert got.headers["authorization"] == "Bearer new-key"
        assert got.headers["host"] == f"127.0.0.1:{server.port}"
        assert got.headers["x-theirs"] == "yes"
        assert got.headers["accept-encoding"] == "identity"
        assert "x-api-key" not in got.headers
        assert "transfer-encoding" not in got.headers


def test_a_url_that_no_endpoint_had_is_refused_and_gets_no_key() -> None:
    with ScriptedServer(ok) as server, ScriptedServer(ok) as foreign:
        with (
            client(FakeDirectory(server.endpoint()), url=foreign.url) as http,
            pytest.raises(UsageError, match=foreign.url),
        ):
            ask(http)
        assert foreign.received == []


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(ok) as server, ScriptedServer() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        with client(FakeDirectory(server.endpoint()), url=server.url) as http:
            assert ask(http).status_code == 200
        assert proxy.connected == 0


def test_a_request_that_is_no_http_is_the_callers_error() -> None:
    with ScriptedServer() as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        with pytest.raises(httpx.LocalProtocolError):
            http.post(CHAT, headers={"X-Bad": "a\nb"})
        assert server.received == []


def test_an_interruption_is_ours_and_httpxs_and_pickles() -> None:
    error = AnswerInterrupted("cut")
    assert isinstance(error, InterruptedAnswerError)
    assert isinstance(error, httpx.ReadError)
    assert str(error).startswith("cut\n")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (copy.what, copy.next_step) == (error.what, error.next_step)
    assert error.as_dict()["error"] == "AnswerInterrupted"
