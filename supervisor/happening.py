"""What happens to a group: an event, whose news it is, and whether it still counts when its turn comes. Pure."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.contract import State
from supervisor.lifecycle import AT_REST, Event

OF_THE_LIVING = frozenset({Event.READY, Event.NOT_READY, Event.SERVER_LOST, Event.UNHEALTHY})
"""What only a generation that is meant to live can tell."""

GIVES_REASON = frozenset({Event.NOT_READY, Event.UNHEALTHY, Event.SERVER_LOST, Event.UNKILLABLE})
"""What says by itself why the group is as it is. A stop does where it begins, a verdict where it is carried out."""

ENDS_ATTEMPT = frozenset({Event.UNHEALTHY, Event.EXITED, Event.UNKILLABLE})
"""After which nothing is waited for or watched any more: what load or watch would say of the end is not its cause."""


class Happening(NamedTuple):
    """`generation` is whose news it is; "" for what concerns the group as such."""

    event: Event
    generation: str = ""
    reason: str = ""

    def is_stale(self, state: State, generation: str, *, exited: bool) -> bool:
        """Whether these are the last words of a generation that is no more, or that is on its way out. `generation`: the
        one that the group has now, "" for none, and whether its leader has `exited`."""
        if self.generation and self.generation != generation:
            return True
        none_lives = state in (State.STOPPING, State.FETCHING) or state in AT_REST
        return self.event in OF_THE_LIVING and (exited or none_lives)

    def gives_reason(self, was: State, now: State) -> bool:
        """Whether its reason is the group's from now on: what comes after a stop does not hide who asked for it."""
        given_up = self.event is Event.GIVEN_UP and now is State.FAILED
        lacking = self.event is Event.LACKING and now is State.FETCHING
        return self.event in GIVES_REASON or given_up or lacking or self._begins_stop(was, now)

    def ends_attempt(self, was: State, now: State) -> bool:
        """Whether the group's attempt to be up, or to stay up, is over with it."""
        return self.event in ENDS_ATTEMPT or self._begins_stop(was, now)

    def _begins_stop(self, was: State, now: State) -> bool:
        return self.event is Event.STOP and now is State.STOPPING is not was
