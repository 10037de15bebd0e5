"""The layer that tells the tally what became of each request (`facts`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from supervisor.gateway.facts import KEY, Facts
from supervisor.gateway.tally import Ending

if TYPE_CHECKING:
    from supervisor.gateway.guard import App, Receive, Scope, Send
    from supervisor.gateway.tally import Tally

_ENDINGS: Final = {
    "answered": Ending.ANSWERED,
    "refused": Ending.REJECTED,
    "failed": Ending.ERROR,
    "unavailable": Ending.UNAVAILABLE,
    "interrupted": Ending.INTERRUPTED,
    "left": Ending.LEFT,
}


class Counting:
    """Around `app`."""

    def __init__(self, app: App, tally: Tally) -> None:
        self._app, self._tally = app, tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        facts = scope[KEY] = Facts()
        try:
            await self._app(scope, receive, send)
        finally:
            if facts.group:  # else it was for no model
                asking = self._tally.asked(facts.group)
                for _ in range(facts.tried):
                    asking.replayed()
                asking.ended(_ENDINGS.get(facts.outcome, Ending.LEFT))
