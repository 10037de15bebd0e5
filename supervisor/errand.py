"""What a group is being stopped for: to start again, to stay down, to be no more. Pure.

A stop takes its time, and more may be asked for meanwhile. The last word counts, and it is done in the moment in which
the group is at rest and no other stop is on its way to it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from supervisor.lifecycle import AT_REST, Event

if TYPE_CHECKING:
    from supervisor.contract import GroupSpec, State
    from supervisor.kinds import Kind


class After(StrEnum):
    """What a group was told to stop for."""

    START = "start again"
    HOLD = "stay down until released"
    RETIRE = "be no more"


THEN: Final[dict[After, tuple[Event, ...]]] = {
    After.START: (Event.RELEASE, Event.WANTED),  # it may have been held before
    After.HOLD: (Event.HOLD,),
    After.RETIRE: (),
}
"""What happens to the group once it is at rest."""


class Shape(NamedTuple):
    """What a group is to be."""

    spec: GroupSpec
    kind: Kind


class Errand(NamedTuple):
    """`after`: what it stops for, None while it is not stopping or stops with the whole engine. `stops_due`: stops that
    are still in the inbox. `is_held` outlasts the stop. `shape`: what it is to be from the next rest on."""

    after: After | None = None
    stops_due: int = 0
    is_held: bool = False
    shape: Shape | None = None

    def stop_sent(self) -> Errand:
        """A stop is on its way to the group."""
        return self._replace(stops_due=self.stops_due + 1)

    def stop_came(self) -> Errand:
        """That stop has come."""
        return self._replace(stops_due=self.stops_due - 1)

    def to_start(self) -> Errand:
        """Start again."""
        return self._replace(after=After.START)

    def to_become(self, shape: Shape) -> Errand:
        """Be something else from then on. A held one stays held."""
        return self._replace(after=After.HOLD if self.is_held else After.START, shape=shape)

    def to_hold(self) -> Errand:
        """Stay down until released."""
        return self._replace(after=After.HOLD, is_held=True)

    def released(self) -> Errand:
        """The hold is over: one that was stopping for it starts again."""
        return self._replace(after=After.START if self.after is After.HOLD else self.after, is_held=False)

    def to_retire(self) -> Errand:
        """Be no more."""
        return self._replace(after=After.RETIRE)

    def called_off(self) -> Errand:
        """Whatever it was to do afterwards is off."""
        return self._replace(after=None)

    def done(self) -> Errand:
        """The stop is over, and the group goes on."""
        return self._replace(after=None, shape=None)

    @property
    def is_under_way(self) -> bool:
        """Whether it is being stopped for something that is still to come. To be no more is nothing to wait for."""
        return self.after is not None and not (self.after is After.RETIRE and not self.stops_due)

    def is_due(self, state: State, *, lives: bool) -> bool:
        """Whether the group is where it goes on. One that is to be no more and cannot be killed is shown for as long as
        it `lives`."""
        if self.after is None or self.stops_due or (self.after is After.RETIRE and lives):
            return False
        return state in AT_REST
