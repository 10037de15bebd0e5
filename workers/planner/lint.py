"""What a model's file says that its launch should heed: each with its consequence, and what to do where there is something."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from workers.planner import architecture as arch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from workers.planner.model import Model

POOLED: Final = frozenset({1, 2, 3})
"""pooling_type of embedding models: mean, cls, last (llama.h)."""

RANK: Final = 4
"""pooling_type of a model with a classifier head."""

LOCKING: Final = ("--mlock",)
LOAD_MODES: Final = ("--load-mode", "-lm")

RAISE_IT: Final = "raise it: `ulimit -l unlimited`, LimitMEMLOCK=infinity in a unit"

_RAISES: Final = re.compile(r"raise_exception\((?P<words>[^)]*)\)")
_CONDITION: Final = re.compile(r"\{%-?\s*(?:el)?if\s(?P<what>[^%]*)%\}(?:(?!\{%).)*$", re.DOTALL)
_LEVEL: Final = re.compile(r"reasoning|thinking|effort", re.IGNORECASE)


class Hint(NamedTuple):
    """One thing to know. Without a `next_step` it is a property of the file, with one something is wrong with its use."""

    text: str
    next_step: str = ""

    @property
    def sentence(self) -> str:
        """Both in one line."""
        return f"{self.text}; {self.next_step}" if self.next_step else self.text


def hints(model: Model, role: str, arguments: Sequence[str], *, jinja: bool | None = None) -> Iterator[Hint]:
    """What to know of this model in this role. Nothing of it stops a launch. `jinja` is whether the server reads templates
    without being told to, None where nobody knows."""
    given = {word.partition("=")[0] for word in arguments}
    embeds = role == "embed" or bool(given & {"--embeddings", "--embedding"})
    ranks = role == "rerank" or bool(given & {"--reranking", "--rerank"})
    yield from _use(model, given, embeds=embeds, ranks=ranks)
    if not embeds and not ranks:
        yield from _tools(model, given, jinja)
        yield from _levels(model, arguments)
    yield from _drafting(model, arguments)
    if model.has_routed_experts:
        part = model.weights.experts / model.weights.total
        yield Hint(
            f"{model.experts} routed experts, {model.experts_used} a token: {part:.0%} of the weights may stay in system "
            "memory"
        )
    if model.window:
        sliding = sum(1 for layer in model.layers if layer.window)
        yield Hint(
            f"{sliding} of {len(model.layers)} layers slide over {model.window:,} tokens: their cache does not grow with the "
            "context, and an earlier prompt is only reused from a checkpoint"
        )
    elif "--swa-full" in given:
        yield Hint("--swa-full does nothing here: no layer of this model slides", "remove it")
    if model.is_recurrent:
        yield Hint("layers with a recurrent state: an earlier prompt is only reused from a checkpoint")


def _use(model: Model, given: set[str], *, embeds: bool, ranks: bool) -> Iterator[Hint]:
    """Whether it is used for what it was made for."""
    if model.pooling in POOLED and not embeds and not ranks:
        yield Hint(
            "an embedding model (its header names a pooling) without --embeddings: it answers a chat with an error",
            "give it the role embed",
        )
    if (
        embeds
        and not ranks
        and model.pooling is None
        and "--pooling" not in given
        and model.architecture not in arch.NO_CACHE
    ):
        yield Hint(
            "no embedding model (its header names no pooling): /v1/embeddings answers 400",
            "take one that was trained for it, or say how with `--pooling mean`, for vectors of little worth",
        )
    if ranks and not model.has_classifier and model.pooling != RANK:
        yield Hint(
            "the role rerank on a model without a classifier head: llama-server answers 200 with scores that mean nothing",
            "take a model that was trained to rank",
        )


def _tools(model: Model, given: set[str], jinja: bool | None) -> Iterator[Hint]:
    if "tools" not in model.template or "--jinja" in given:
        return
    if "--no-jinja" in given:
        yield Hint(
            "its template knows tools, and --no-jinja turns templates off: requests with `tools` are refused",
            "remove it",
        )
    elif jinja is None:
        yield Hint("its template knows tools: requests with `tools` need --jinja (newer servers have it on)")
    elif not jinja:
        yield Hint("its template knows tools, and requests with `tools` are refused without --jinja", "add --jinja")


def _levels(model: Model, arguments: Sequence[str]) -> Iterator[Hint]:
    """A template may end a request with an error over a level of reasoning that it does not know."""
    for found in _RAISES.finditer(model.template):
        condition = _CONDITION.search(model.template[: found.start()])
        about = condition["what"] if condition else ""
        if not _LEVEL.search(found["words"]) and not _LEVEL.search(about):
            continue
        levels = re.findall(r"""['"](\w+)['"]""", about)
        takes = f" (it takes {', '.join(levels)})" if levels else ""
        asked = _asked_level(arguments)
        if levels and asked is not None and asked not in levels and " not in " in about:
            text = f"the launch asks for reasoning `{asked}`, and its template raises an error over that{takes}: each request is refused"
            yield Hint(text, f"ask for {' or '.join(levels)}")
        else:
            yield Hint(
                f"its template raises an error over a reasoning level that it does not know{takes}: a client that sends "
                "another one is refused"
            )
        return


def _asked_level(arguments: Sequence[str]) -> str | None:
    """The level of reasoning that a launch sets for all requests."""
    for flag, value in pairwise(arguments):
        if flag == "--reasoning-effort" and value != "default":
            return value
        if flag == "--chat-template-kwargs":
            try:
                said = json.loads(value)
            except ValueError:
                return None
            level = said.get("reasoning_effort") if isinstance(said, dict) else None
            return level if isinstance(level, str) else None
    return None


def _drafting(model: Model, arguments: Sequence[str]) -> Iterator[Hint]:
    asks = any(flag == "--spec-type" and "draft-mtp" in value.split(",") for flag, value in pairwise(arguments))
    if asks and not model.mtp_layers and not {"--spec-draft-model", "--model-draft", "-md"} & set(arguments):
        yield Hint(
            "--spec-type draft-mtp on a file without layers for prediction ahead (MTP): they are a property of the file",
            "take a file that was converted with them, or draft otherwise",
        )
    elif model.mtp_layers and not asks:
        yield Hint(
            f"it brings {model.mtp_layers} layers for prediction ahead (MTP); they are a property of this file, and only "
            "take memory unless the server is told to draft with them"
        )


def locks(arguments: Sequence[str]) -> bool:
    """Whether a launch asks for its memory to be locked."""
    pairs = zip(arguments, (*arguments[1:], ""), strict=False)
    return any(word in LOCKING or (word in LOAD_MODES and "mlock" in value) for word, value in pairs)


def unlockable(model: Model, arguments: Sequence[str], limit: int | None) -> Hint | None:
    """A launch that locks more than a process may (`limit` in bytes, None without one). llama-server says so in its log, and
    serves from pages that can be swapped out."""
    need = model.weights.total
    if limit is None or need <= limit or not locks(arguments):
        return None
    gib, mib = need / (1 << 30), limit / (1 << 20)
    return Hint(
        f"asks for {gib:.2f} GiB of weights to be locked, and a process may lock {mib:,.0f} MiB: they are not",
        RAISE_IT,
    )
