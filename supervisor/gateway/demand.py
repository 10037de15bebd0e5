"""What a request asks of a server: how many sequences, how large a prompt at most, how long an answer. Pure.

**The bound from bytes.** No token of a text is shorter than one byte of it: a byte-level BPE starts with the bytes and
only merges; SentencePiece and WordPiece fall back to bytes or to one token for a whole word. So a prompt has at most as
many tokens as its text has bytes, and what the chat template adds: its marks for each message (5 or 6 tokens in the
templates of Llama, Qwen, Gemma and gpt-oss), a preamble (up to 300 tokens, more with tools), and the schemas of the
tools, which some templates write out again with indentation. It is three to five times the true count for English, and
costs a walk over the body; the server's own count is exact and costs two requests to it. Pictures and sound are counted
by the piece: their bytes say nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

PREAMBLE: Final = 1024
"""Tokens that a chat template may add once."""

PER_MESSAGE: Final = 16
"""Tokens that it may add to each message."""

TOOLS: Final = 2
"""How much longer the tools' schemas may be in the prompt than in the request."""

MEDIA: Final = 4096
"""Tokens of one picture or piece of sound at most: what large vision encoders make of a large picture."""

OUTPUT_KEYS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
"""What clients call the most tokens of an answer."""


class Work(StrEnum):
    """What a server does for a request."""

    ANSWER = "answer"
    """Tokens of a prompt, then tokens of an answer."""
    READ = "read"
    """Only those of a prompt: embeddings, rerank."""
    NONE = "none"
    """Nothing that takes a sequence: tokenize, templates, lists."""


@frozen
class Demand:
    """`sequences` it would compute at once; `prompt_most` tokens at most in each; `output` tokens reserved for each
    answer, None where the client leaves it open."""

    work: Work
    sequences: int = 1
    prompt_most: int = 0
    output: int | None = None
    is_countable: bool = True
    """The server's tokenizer tells how long the prompt is: it is text alone."""


_MEDIA: Final = ("image", "image_url", "input_image", "input_audio", "source")
"""The types of media parts, and the keys in them that hold the bytes."""

_ANSWERS: Final = ("chat/completions", "completions", "completion", "infill", "messages", "responses")
_READS: Final = ("embeddings", "embedding", "rerank", "reranking")


def work_of(method: str, path: str) -> Work:
    """What a request makes a server do, by method and URL path."""
    if method.upper() != "POST":
        return Work.NONE
    served = path.rstrip("/")
    if served.endswith(tuple(f"/{name}" for name in _ANSWERS)):
        return Work.ANSWER
    return Work.READ if served.endswith(tuple(f"/{name}" for name in _READS)) else Work.NONE


def demand_of(work: Work, body: Mapping[str, Any]) -> Demand:
    """What the parsed body of a request asks for. Total: what makes no sense is counted as if it did."""
    if work is Work.NONE:
        return Demand(work)
    prompts = body.get("prompt")
    many = isinstance(prompts, list) and bool(prompts) and all(isinstance(one, str | list) for one in prompts)
    copies = max(_whole(body.get("n")) or 1, _whole(body.get("n_cmpl")) or 1)
    if work is Work.READ:
        return Demand(work, 1, prompt_most(body), 0)
    sequences = copies * (len(prompts) if many and prompts else 1)
    pieces = body.get("messages", body.get("input", body.get("prompt")))
    return Demand(work, max(1, sequences), prompt_most(body), output_of(body), not _has_media(pieces))


def output_of(body: Mapping[str, Any]) -> int | None:
    """Tokens reserved for an answer: the largest of what the keys say, since which of them counts is the server's; None
    where none does, or where it is negative, which llama-server takes for no limit."""
    said = [number for key in OUTPUT_KEYS if (number := _whole(body.get(key))) is not None]
    return max(said) if said and min(said) >= 0 else None


def prompt_most(body: Mapping[str, Any]) -> int:
    """The most tokens that the prompt of this body can have; see the module."""
    messages = body.get("messages", body.get("input"))
    marks = PER_MESSAGE * len(messages) if isinstance(messages, list) else 0
    return PREAMBLE + marks + sum(_size(value) * (TOOLS if key == "tools" else 1) for key, value in body.items())


def _size(value: Any) -> int:
    """Bytes of all text in a value, with its keys and a mark for each piece; of media what MEDIA says."""
    size = 0
    rest = [value]
    while rest:  # no recursion: a body may be nested as deep as its parser lets it
        one = rest.pop()
        if isinstance(one, str):
            size += _bytes(one)
        elif isinstance(one, dict):
            size += sum(_bytes(key) + 6 for key in one)
            if one.get("type") in _MEDIA:
                size += MEDIA
                rest += [part for key, part in one.items() if key not in _MEDIA]
            else:
                rest += one.values()
        elif isinstance(one, list):
            size += len(one)
            rest += one
        else:
            size += len(str(one))
    return size


def _has_media(value: Any) -> bool:
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            if one.get("type") in _MEDIA or "multimodal_data" in one:
                return True
            rest += one.values()
        elif isinstance(one, list):
            rest += one
    return False


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None
