"""What a keeper says of its groups to an operator: on the terminal of `queenright run`, and in the slot's journal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import trio

from supervisor import budgets, journal
from supervisor.contract import State
from supervisor.wording import progress, why

if TYPE_CHECKING:
    from collections.abc import Iterable

    from supervisor.console import Console
    from supervisor.slot import Slot

DOWN = (State.DOWN, "")
"""As each group begins: that it was down before it was started is no news."""


class Narrator:
    """Says what changed, a little later than it did: recovery must not wait for a terminal, or for a disk."""

    def __init__(self, slot: Slot, console: Console) -> None:
        self._slot, self._console = slot, console
        self._seen: dict[str, tuple[State, str]] = {}
        self._tenths: dict[str, tuple[str, int]] = {}
        self._loads: dict[tuple[str, str], int] = {}
        """By group and role, the tenth that was said last."""
        self._gateway = ""
        self._untold: list[tuple[float, str, dict[str, Any]]] = []
        """When, what ("" for what is said only), and the facts, in the order in which it happened."""
        self._news = trio.Event()

    def see(self, groups: Iterable[tuple[str, State, str]]) -> None:
        """The groups as they are now: name, state, reason."""
        for name, state, reason in groups:
            if self._seen.get(name, DOWN) != (state, reason):
                self._seen[name] = (state, reason)
                self._note("state", {"group": name, "state": state.value, "reason": reason})

    def see_fetch(self, name: str, fetching: dict[str, Any] | None) -> None:
        """How far a group's fetch is: a line for each tenth of a file, and none for its beginning."""
        if not (fetching and fetching["of"]):
            self._tenths.pop(name, None)
            return
        now = (fetching["what"], 10 * fetching["bytes"] // fetching["of"])
        was = self._tenths.get(name)
        self._tenths[name] = now
        if was is not None and was[0] == now[0] and now[1] > was[1]:
            self._note("fetch", {"group": name, "step": now[0], "bytes": fetching["bytes"], "of": fetching["of"]})

    def see_loads(self, name: str, loads: dict[str, dict[str, Any]]) -> None:
        """How far a group's servers are with long loads, by role: a line for each tenth of a model, for a terminal alone."""
        for gone in [key for key in self._loads if key[0] == name and key[1] not in loads]:
            del self._loads[gone]
        for role, load in loads.items():
            tenth = 10 * load["bytes"] // max(1, load["of"])
            if tenth > self._loads.get((name, role), -1):
                self._loads[name, role] = tenth
                self._say(f"{name}: loading {role}: {progress(load['bytes'], load['of'])}")

    def see_gateway(self, gateway: dict[str, Any]) -> None:
        """Where it serves, or why it does not (`gateway.upkeep.Gateway.describe`)."""
        said = {"serving": f"{gateway['url']}/v1", "failed": "serves nobody"}.get(gateway["state"], "")
        text = ": ".join(filter(None, (said, gateway["reason"])))
        if said and text != self._gateway:
            self._gateway = text
            self._say(f"gateway: {text}")

    def note_end(self, facts: dict[str, Any]) -> None:
        """A death in a group, for the journal (`endings.facts`)."""
        self._note("ended", facts)

    def _say(self, text: str) -> None:
        """For the terminal alone: the state of a moment, which `queenright status` has and the journal need not."""
        self._untold.append((time.time(), "", {"text": text}))
        self._news.set()

    def _note(self, what: str, facts: dict[str, Any]) -> None:
        self._untold.append((time.time(), what, facts))
        self._news.set()

    async def run(self) -> None:
        """Say it, until cancelled."""
        while True:
            await self._news.wait()
            await trio.sleep(budgets.NARRATION_PAUSE)
            self.say_all()

    def say_all(self) -> None:
        """Say what was not said yet."""
        for at, what, facts in self._untold:
            if not what:
                self._console.say(facts["text"])
                continue
            if what == "state":
                self._console.say(f"{facts['group']}: {facts['state']}{why(facts['state'], facts['reason'])}")
            elif what == "fetch":
                self._console.say(f"{facts['group']}: {facts['step']}: {progress(facts['bytes'], facts['of'])}")
            journal.note(self._slot, what, at=at, **facts)
        self._untold.clear()
        self._news = trio.Event()

    def say_left_warm(self, groups: list[str], roots: list[str]) -> None:
        """Nobody uses the engine any more, and it stays for the sake of these configurations."""
        self.say_all()
        why = "the last member left"
        self._console.say(f"{why}; kept warm for {', '.join(roots)}")
        journal.note(self._slot, "left warm", why=why, groups=groups, roots=roots)

    def say_stopped(
        self, why: str, groups: list[str], seconds: float, *, clean: bool, killed: list[str], swept: int
    ) -> None:
        """How the teardown went. `clean`: nothing is left; `killed`: groups that took SIGKILL; `swept` counts processes
        that had not ended with their leader."""
        self.say_all()
        took = f"{seconds:.1f} s"
        outcome = "everything is gone" if clean else "something could not be killed; see the groups"
        how = f"; SIGKILL for {', '.join(killed)}" if killed else ""
        self._console.say(f"stopped ({why}): {', '.join(groups)} in {took}, {outcome}{how}")
        journal.note(self._slot, "stopped", why=why, groups=groups, took=took, clean=clean, killed=killed, swept=swept)
