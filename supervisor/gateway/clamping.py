"""How long an answer may be, and when a prompt is too long. Pure.

Agents reserve the longest answer they can think of with every request (`max_tokens` of 32k and more). That is no reason
to refuse one: what is left of the window after the prompt is what there can be, so the reservation is lowered to that,
and the answer says so (LIMIT_HEADER). Only a prompt that does not fit the window is refused, with the numbers: how
many tokens it has, how many there is room for, and how many of them are the system prompt, the tools and the last turn,
without which there is no conversation. Turns are never dropped by us: what a model has not been told is the client's to
decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from supervisor.gateway.admission import Need, Room
from supervisor.gateway.demand import OUTPUT_KEYS, Demand, Work

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_HEADER: Final = "x-queenright-max-tokens"
"""In an answer: how many tokens it could have at most, where that is not what the client asked for."""


@frozen
class Reservation:
    """What a request is admitted with. `limit`: the most tokens of an answer, to be written into the request; None =
    it stays as it is."""

    need: Need
    limit: int | None = None


@frozen
class TooLong:
    """A prompt that has no room in the window, in tokens."""

    prompt: int
    window: int


def wants_count(demand: Demand, window: int, room: Room) -> bool:
    """Whether the true size of the prompt matters, so that the server should be asked. `window`: tokens of a sequence,
    0 if not known.

    Not for a request that fits even by the bound from bytes: into its window, and into its even share of the pool, for
    as many of those as there are places fit at once.
    """
    if demand.work is not Work.ANSWER or not demand.is_countable or not window:
        return False
    if demand.output is None:
        return bool(room.positions)
    most = demand.prompt_most + demand.output
    return most > window or bool(room.positions and most > room.positions // max(room.places, 1))


def reserve(demand: Demand, window: int, room: Room, counted: int | None) -> Reservation | TooLong:
    """What to admit the request with. `counted`: its prompt as the server counts it, None if it was not asked or gave no
    answer; then the bound is taken for it, and nothing is refused by that."""
    lanes = min(demand.sequences, max(room.places, 1))
    if demand.work is Work.READ:
        return Reservation(Need(lanes, min(demand.prompt_most, room.positions), reads=True))
    if demand.work is Work.NONE or not window:
        return Reservation(Need(lanes, room.positions))
    if counted is not None and counted >= window:
        return TooLong(counted, window)
    prompt = demand.prompt_most if counted is None else counted
    # Of an uncounted prompt it is only known that it has less than the window, else the server refuses it.
    left = window - (min(prompt, window // 2) if counted is None else prompt)
    asked = demand.output
    if asked is not None and prompt + asked <= window:
        left, limit = asked, None
    elif asked is not None:
        left = min(asked, left if counted is not None else window)
        limit = left if left < asked else None
    else:
        # Left open: a window of its own ends the answer; a shared pool would let it have all there is.
        limit = left if room.positions else None
    if room.positions and counted is not None and 0 < (share := room.positions // lanes - prompt) < left:
        left = limit = share  # several answers of one request have the pool among them
    # More than a window a sequence never holds, whatever the bound of its prompt says.
    positions = lanes * min(prompt + left, window) if room.positions else 0
    if counted is None:
        positions = min(positions, room.positions)  # at worst it runs alone
    return Reservation(Need(lanes, positions), limit)


def limited(body: Mapping[str, Any], path: str, limit: int) -> dict[str, Any]:
    """The body with no more than `limit` tokens of an answer reserved, whatever the client calls it."""
    changed = dict(body)
    named = [key for key in OUTPUT_KEYS if isinstance(changed.get(key), int | float)]
    for key in named or ["max_output_tokens" if path.rstrip("/").endswith("/responses") else "max_tokens"]:
        said = changed.get(key)
        changed[key] = limit if said is None or said < 0 else min(said, limit)
    return changed


def least_of(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The body without the earlier turns of its conversation: the system prompt, the tools and all from the last message
    of the user on. None where there are no earlier turns, or no turns at all."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return None
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    last = max((place for place, role in enumerate(roles) if role == "user"), default=None)
    if last is None:
        return None
    kept = [message for message, role in zip(messages[:last], roles, strict=False) if role in {"system", "developer"}]
    if len(kept) == last:
        return None
    return {**body, "messages": [*kept, *messages[last:]]}


def too_long(refused: TooLong, least: int | None) -> dict[str, Any]:
    """The body of the 400, in OpenAI's error shape with llama-server's type and numbers. `least`: tokens of the part
    that `least_of` leaves; None if there is none or it was not counted."""
    prompt, window = refused.prompt, refused.window
    message = f"the prompt has {prompt} tokens and exceeds the available context size of {window}"
    if least is None:
        message += "; shorten it"
    elif least >= window:
        message += (
            f"; its system prompt, tools and last turn alone have {least}, so dropping earlier turns does not help"
        )
    else:
        message += f"; without the earlier turns it would have {least}"
    return {
        "error": {
            "message": message,
            "type": "exceed_context_size_error",
            "param": "messages",
            "code": "context_length_exceeded",
            "n_prompt_tokens": prompt,
            "n_ctx": window,
            "n_least_tokens": least,
        }
    }
