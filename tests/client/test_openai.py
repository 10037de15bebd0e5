"""What docs/guides/openai-python.md says of the `openai` package on `engine.http`, held against scripted servers.

The package is built on httpx2 and takes our httpx client through a layer of its own: each promise of the guide is asked
for here, so that a version that breaks one is noticed.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

import openai
import pytest

from supervisor.errors import FailedForGoodError
from supervisor.transport import AnswerInterrupted
from tests.client.asking import ANSWER, DELTA, DONE, FINISH, client
from tests.client.scripted import PATIENCE, FakeDirectory, ScriptedServer, Talk

pytestmark = pytest.mark.process  # the package asks other programs what machine this is

MESSAGES: Any = [{"role": "user", "content": "x"}]


def on(http: Any, server: ScriptedServer, **options: Any) -> openai.OpenAI:
    """As the guide makes it, with the package's own idea of retrying unless told otherwise. `http` is an httpx.Client,
    which the package takes and its types do not know of."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", http_client=http, **options)


def words(api: openai.OpenAI, into: list[str | None], **options: Any) -> None:
    """A stream, piece by piece."""
    for event in api.chat.completions.create(model="chat", messages=MESSAGES, stream=True, **options):
        into.append(event.choices[0].delta.content)


def whole(talk: Talk) -> None:
    talk.reply(200, ANSWER)


def closed(talk: Talk) -> None:
    talk.close()


def test_whole_answers_and_streams_come_through_with_the_groups_key() -> None:
    def streamed(talk: Talk) -> None:
        talk.start_chunks()
        for event in (DELTA, DELTA, FINISH, DONE):
            talk.chunk(event)
        talk.end_chunks()

    with ScriptedServer(whole, streamed) as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        api = on(http, server)
        answer = api.chat.completions.create(model="chat", messages=MESSAGES)
        assert answer.choices[0].message.content == "hi"
        heard: list[str | None] = []
        words(api, heard)
        assert heard == ["a", "a", None]
        assert [request.headers["authorization"] for request in server.received] == ["Bearer group-key"] * 2


@pytest.mark.parametrize("clean", [False, True], ids=["cut", "cut behind a clean end of chunks"])
def test_a_cut_stream_is_a_connection_error_caused_by_ours_and_not_sent_again(clean: bool) -> None:
    def cut(talk: Talk) -> None:
        talk.start_chunks()
        talk.chunk(DELTA)
        if clean:
            talk.end_chunks()
        else:
            talk.close()

    with ScriptedServer(cut) as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        heard: list[str | None] = []
        with pytest.raises(openai.APIConnectionError) as caught:
            words(on(http, server), heard)
        assert heard == ["a"]
        assert isinstance(caught.value.__cause__, AnswerInterrupted)
        assert "after part of it had been delivered" in str(caught.value.__cause__)
        assert len(server.received) == 1


def test_an_error_in_a_stream_is_an_error_with_the_servers_words() -> None:
    def fail(talk: Talk) -> None:
        talk.start_chunks()
        talk.chunk(DELTA)
        talk.chunk(b'data: {"error":{"code":500,"message":"cannot parse the tool call","type":"server_error"}}\n\n')
        talk.end_chunks()

    with ScriptedServer(fail) as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        heard: list[str | None] = []
        with pytest.raises(openai.APIError, match="cannot parse the tool call"):
            words(on(http, server), heard)
        assert heard == ["a"]


def test_our_503_is_an_error_with_every_field_and_never_repeated() -> None:
    gone = FailedForGoodError("its model is missing", "`queenright model pull x`")
    with ScriptedServer() as server:
        server.die()
        directory = FakeDirectory(server.endpoint(), then=[gone])
        with client(directory, url=server.url) as http, pytest.raises(openai.InternalServerError) as caught:
            on(http, server).chat.completions.create(model="chat", messages=MESSAGES)
    assert (caught.value.status_code, caught.value.code) == (503, "engine_unavailable")
    assert "its model is missing" in caught.value.message
    body: Any = caught.value.body
    assert (body["group"], body["state"], body["next_step"]) == ("chat", "failed", gone.next_step)
    assert len(body["tried"]) == 1
    assert len(directory.waits) == 1


def test_what_must_not_be_sent_again_is_not_with_retries_off() -> None:
    with ScriptedServer(closed) as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        with pytest.raises(openai.APIConnectionError) as caught:
            on(http, server, max_retries=0).models.list()
        assert isinstance(caught.value.__cause__, AnswerInterrupted)
        assert len(server.received) == 1


def test_a_timeout_to_the_first_byte_is_our_503() -> None:
    over = threading.Event()
    with (
        ScriptedServer(lambda talk: talk.wait(over)) as server,
        client(FakeDirectory(server.endpoint()), url=server.url) as http,
    ):
        with pytest.raises(openai.InternalServerError, match="no answer came within the deadline"):
            on(http, server).chat.completions.create(model="chat", messages=MESSAGES, timeout=0.2)
        assert len(server.received) == 1
        over.set()


def test_a_timeout_within_a_stream_is_a_connection_error() -> None:
    over = threading.Event()

    def stall(talk: Talk) -> None:
        talk.start_chunks()
        talk.chunk(DELTA)
        talk.wait(over)

    with ScriptedServer(stall) as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        heard: list[str | None] = []
        with pytest.raises(openai.APIConnectionError) as caught:
            words(on(http, server), heard, timeout=0.5)
        assert isinstance(caught.value.__cause__, AnswerInterrupted)
        assert heard == ["a"]
        over.set()


def test_without_a_timeout_of_its_own_the_package_has_that_of_our_client() -> None:
    with ScriptedServer() as server, client(FakeDirectory(server.endpoint()), url=server.url, timeout_s=None) as http:
        timeout: Any = on(http, server).timeout
        assert timeout.as_dict() == {"connect": None, "read": None, "write": None, "pool": None}


def test_a_stream_that_is_dropped_hangs_up() -> None:
    hung_up = threading.Event()

    def wait(talk: Talk) -> None:
        talk.start_chunks()
        talk.chunk(DELTA)
        talk.wait_for_hangup()
        hung_up.set()

    with ScriptedServer(wait, whole) as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        api = on(http, server)
        stream = api.chat.completions.create(model="chat", messages=MESSAGES, stream=True)
        assert next(iter(stream)).choices[0].delta.content == "a"
        del stream
        gc.collect()
        assert hung_up.wait(PATIENCE)
        assert api.chat.completions.create(model="chat", messages=MESSAGES).choices[0].message.content == "hi"


def test_closing_the_package_closes_our_client() -> None:
    with ScriptedServer() as server, client(FakeDirectory(server.endpoint()), url=server.url) as http:
        on(http, server).close()
        assert http.is_closed
