"""Where a program is sent that knows nothing of us: one base URL, one key, and a model's name.

To the gateway, where it serves: one URL for all roles, behind which requests are held and sent again. Else to the group's
own. `queenright exec` imports this before anything heavy.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from supervisor import budgets, control

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisor.slot import Slot

NO_KEY: Final = "none-is-needed"
"""Where the gateway takes no key: OpenAI's libraries refuse an empty one."""


class Door(NamedTuple):
    """`url` without `/v1`; `model` as a request names it there."""

    url: str
    key: str
    model: str


def find(slot: Slot, role: str, direct: Door, seen: Mapping[str, Any] | None = None) -> Door:
    """The gateway's where it serves, waiting for one that is about to; else `direct`. `seen` is the keeper's brief answer, if
    it is at hand. Raises ControlError, or GatewayError for a key file that we cannot read."""
    until = time.monotonic() + budgets.GATEWAY_START
    seen = seen or control.ask(slot, "status", brief=True)
    while _is_coming(seen) and time.monotonic() < until:
        time.sleep(budgets.READY_POLL)  # noqa: TID251 - the keeper tells of itself once it can
        seen = control.ask(slot, "status", brief=True)
    if _state(seen) != "serving":
        return direct
    # A role is a name of its model whatever `ids` says, and of that one alone.
    return Door(seen["gateway"]["url"], _key(seen["contract"]["gateway"]["key_file"]), role)


def _is_coming(seen: Mapping[str, Any]) -> bool:
    """`off` is also what it is before it begins."""
    return _state(seen) in ("off", "starting") and bool(seen["contract"]["gateway"]["enabled"])


def _state(seen: Mapping[str, Any]) -> str:
    """ "" of a keeper of before there were gateways."""
    return str(seen["gateway"]["state"]) if "gateway" in seen else ""


def _key(path: str) -> str:
    if not path:
        return NO_KEY
    from supervisor.gateway import keys

    return keys.read(path)[0].decode()
