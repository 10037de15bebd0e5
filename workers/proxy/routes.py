"""PURE: the routes that pass on to a model, and the path a model sees."""

from __future__ import annotations

from urllib.parse import unquote

POST_ROUTES = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/reranking",
        "/rerank",
        "/reranking",
        "/infill",
        "/completion",
        "/v1/audio/speech",
        "/v1/audio/voices",
        "/v1/audio/transcriptions",
        "/v1/images/generations",
        "/v1/images/edits",
        "/sdapi/v1/txt2img",
        "/sdapi/v1/img2img",
        "/audioapi/v1/tasks/run",
        "/v/chat/completions",
        "/v/responses",
        "/v/completions",
        "/v/messages",
        "/v/messages/count_tokens",
        "/v/embeddings",
        "/v/rerank",
        "/v/reranking",
    }
)
GET_ROUTES = frozenset({"/v1/audio/voices", "/sdapi/v1/loras", "/props"})


def server_target(target: str) -> str:
    """What the server is asked for: `/v/x` is `/x` and `/audioapi/x` is `/x` to it; the rest passes unchanged."""
    for prefix in ("/v/", "/audioapi/"):
        if target.startswith(prefix):
            return target[len(prefix) - 1 :]
    return target


def split_upstream(raw_path: str, names: frozenset[str]) -> tuple[str, str] | None:
    """`/upstream/<model>/<rest>` as (model, rest as sent), or None. Names may hold slashes; the longest one wins."""
    segments = raw_path.removeprefix("/upstream/").split("/")
    for count in range(len(segments), 0, -1):
        name = unquote("/".join(segments[:count]))
        if name in names:
            rest = segments[count:]
            return name, "/" + "/".join(rest) if rest else ""
    return None
