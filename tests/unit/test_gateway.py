"""What the gateway decides: which model a request means, and what a stream amounts to when it is put together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.contract import EngineSpec, GatewayIds, GatewaySpec, GroupSpec, LaunchSpec
from supervisor.gateway import naming, reassembly, saying

CHAT = "/v1/chat/completions"


def launch(role: str, model: str) -> LaunchSpec:
    return LaunchSpec(role, model, f"/{model}.gguf", 4096, 1)


def engine(**gateway: Any) -> EngineSpec:
    groups = (
        GroupSpec("a", "llama-swap", (launch("chat", "smol"), launch("vision", "smol")), "p"),
        GroupSpec("b", "llama-swap", (launch("embed", "minilm"),), "p"),
    )
    return EngineSpec(groups, gateway=GatewaySpec(**gateway))


@pytest.mark.parametrize(
    ("path", "name", "role"),
    [
        (CHAT, "vision", "vision"),
        (CHAT, "smol", "chat"),
        (CHAT, "gpt-4", "vision"),
        (CHAT, "embed", "embed"),
        (CHAT, None, "chat"),
        (CHAT, "", "chat"),
        (CHAT, 7, "chat"),
        (CHAT, "nobody", None),
        ("/v1/embeddings", "nobody", "embed"),
        ("/v1/embeddings", None, "embed"),
        ("/v1/embeddings/", ["x"], "embed"),
        ("/embedding", "chat", "chat"),
        ("/v1/rerank", "nobody", None),
        ("/tokenize", None, "chat"),
        ("/tokenize", "minilm", "embed"),
    ],
)
def test_a_name_means_one_model(path: str, name: object, role: str | None) -> None:
    found = naming.find(engine(aliases={"vision": ("gpt-4",)}), path, name)
    assert (found.launch.role if found else None) == role


def test_a_lone_model_is_meant_where_none_is_named_and_no_role_is_chat() -> None:
    spec = EngineSpec((GroupSpec("a", "command", (launch("writer", "m"), launch("embed", "e")), "p"),))
    found = naming.find(spec, CHAT, None)
    assert found is not None
    assert found.launch.role == "writer"


def test_an_id_is_of_one_model() -> None:
    assert [one.id for one in naming.served(engine(ids=GatewayIds.MODEL))] == ["smol", "vision", "minilm"]


# --- whole answers out of streams -------------------------------------------------------------------------------------


def stream(*events: object) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish, **more}
    return {"id": "x", "object": "chat.completion.chunk", "model": "m", "created": 1, "choices": [choice]}


def test_words_reasoning_and_figures_are_put_together() -> None:
    status, answer = reassembly.whole(
        CHAT,
        b": ping\n\n"
        + stream(
            chunk({"role": "assistant", "content": None}),
            chunk({"reasoning_content": "hm"}),
            chunk({"reasoning_content": "m"}),
            chunk({"content": "a"}, logprobs={"content": [1]}),
            chunk({"content": "b"}, logprobs={"content": [2]}),
            chunk({}, "stop"),
            {"choices": [], "model": "m", "usage": {"total_tokens": 3}, "timings": {"predicted_n": 2}},
        ),
    )
    assert status == 200
    assert answer == {
        "id": "x",
        "object": "chat.completion",
        "model": "m",
        "created": 1,
        "usage": {"total_tokens": 3},
        "timings": {"predicted_n": 2},
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "ab", "reasoning_content": "hmm"},
                "logprobs": {"content": [1, 2]},
            }
        ],
    }


def test_tool_calls_that_come_in_pieces_and_interleaved_choices_are_put_together() -> None:
    def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        named = {"name": more.pop("name")} if "name" in more else {}
        return {"tool_calls": [{"index": index, **more, "function": {**named, "arguments": arguments}}]}

    _, answer = reassembly.whole(
        CHAT,
        stream(
            chunk({"role": "assistant", "content": "hi"}, index=1),
            chunk({"role": "assistant", "content": None}),
            chunk(call(0, "", id="c0", type="function", name="f")),
            chunk(call(0, '{"a"')),
            chunk(call(1, "{}", id="c1", type="function", name="g")),
            chunk(call(0, ":1}")),
            chunk({}, "stop", index=1),
            chunk({}, "tool_calls"),
        ),
    )
    first, second = answer["choices"]
    assert first["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "c1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    assert (first["finish_reason"], second["message"]["content"], second["finish_reason"]) == (
        "tool_calls",
        "hi",
        "stop",
    )


def test_a_text_completion_is_put_together() -> None:
    events = [{"choices": [{"text": t, "index": 0, "logprobs": None, "finish_reason": None}], "id": "x"} for t in "ab"]
    events.append({"choices": [{"text": "", "index": 0, "logprobs": None, "finish_reason": "length"}], "id": "x"})
    assert reassembly.whole("/v1/completions", stream(*events)) == (
        200,
        {
            "id": "x",
            "object": "text_completion",
            "choices": [{"text": "ab", "index": 0, "logprobs": None, "finish_reason": "length"}],
        },
    )


def test_an_error_in_a_stream_has_the_status_it_would_have_had() -> None:
    events = stream(chunk({"content": "a"}), {"error": {"code": 400, "message": "too long"}})
    assert reassembly.whole(CHAT, events) == (400, {"error": {"code": 400, "message": "too long"}})
    for said in (b'error: {"message": "x"}\n\n', b'event: error\ndata: {"message": "x"}\n\n'):
        assert reassembly.whole(CHAT, said) == (500, {"error": {"message": "x"}})
    status, answer = reassembly.whole(CHAT, stream({"error": None, **chunk({"content": "a"})}))
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "a")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b": only a comment\n\n",
        b"data: {\n\n",
        b"data: [DONE]\n\n",
        b'data: {"choices":[7]}\n\n',
        b'data: {"choices":[{"delta":{"tool_calls":[3]}}]}\n\n',
    ],
)
def test_what_is_no_stream_of_completions_is_refused(text: bytes) -> None:
    with pytest.raises(reassembly.UnreadableStreamError):
        reassembly.whole(CHAT, text)


@pytest.mark.parametrize(
    ("path", "body", "is_streamed"),
    [
        (CHAT, {}, True),
        (CHAT, {"n": 3}, True),
        (CHAT, {"stream": True}, False),
        (CHAT, {"n_cmpl": 2}, False),
        ("/v1/completions", {"prompt": "a"}, True),
        ("/v1/completions", {"prompt": ["a", "b"]}, False),
        ("/v1/completions", {"prompt": "a", "n": 2}, False),
        ("/completion", {"prompt": "a"}, False),
        ("/v1/embeddings", {"input": "a"}, False),
        ("/v1/messages", {}, False),
    ],
)
def test_only_what_can_be_put_together_is_asked_for_as_a_stream(
    path: str, body: dict[str, Any], is_streamed: bool
) -> None:
    twin = reassembly.streamed(path, body)
    assert (twin is not None) is is_streamed
    if twin is not None:
        assert twin == {**body, "stream": True, "stream_options": {"include_usage": True}}


def test_a_comment_is_one_line_whatever_the_reason_is() -> None:
    from supervisor.contract import State

    words = saying.comment("chat", State.REBUILDING, "it died:\n\ndata: {}", 5.2)
    assert words == b": queued: group chat is rebuilding (it died: data: {}); 5 s so far\n\n"


def test_a_name_of_megabytes_is_not_said_back() -> None:
    for name in ("x" * (1 << 20), ["x" * (1 << 20)]):
        assert len(saying.unknown_model(name, ["chat"])) < 1000
    assert b"there is no model 'gpt-9'" in saying.unknown_model("gpt-9", ["chat"])


def test_an_error_event_is_an_error_whatever_the_server_said() -> None:
    assert saying.event(b"<html>") == (
        b'event: error\ndata: {"error": {"message": "<html>", "type": "server_error", "code": null}}\n\n'
    )
