"""`queenright ps`: who uses the engine. It only looks: at locks and /proc, so it answers whatever the keeper does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from supervisor.commands._common import add_place, ago, slot_of

if TYPE_CHECKING:
    import argparse

    from supervisor.membership import Member
    from supervisor.slot import Slot

HEADS = ("PID", "AGE", "LAST USE", "TTY", "PROGRAM")


class Ps:
    """The command."""

    help = "who uses the engine: pid, age, last use, terminal and program of each member"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        parser.add_argument("--json", action="store_true", help="the same as data")
        parser.epilog = (
            "example:\n  queenright ps\n  queenright ps --json\n\n"
            "LAST USE is when it last began a request through our library, to within 10 s. `unknown`: none was seen, which\n"
            "is no proof, since a program that has URL and key (as under `queenright exec`) asks the group by itself. Those\n"
            "without a terminal (-) that were not used for days are the ones to look at: they keep the engine up. Exit status\n"
            "4 when no engine runs."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print them. Raises SlotError."""
        from supervisor import locks

        slot = slot_of(args)
        alive = slot.examine() and locks.is_held(slot.warden_lock) is not False
        found = [facts for place in (slot, *slot.private_slots()) for facts in members(place)]
        if args.json:
            import json

            print(json.dumps({"slot": str(slot.path), "members": found}, indent=2))
        else:
            print(table(found, str(slot.path)) if alive or found else f"no engine runs in {slot.path}")
        return 0 if alive or found else 4


COMMAND: Final = Ps()


def members(slot: Slot) -> list[dict[str, Any]]:
    """The members of a slot, the oldest first."""
    import os

    from supervisor import membership

    if not os.path.isdir(slot.members):
        return []
    found = sorted(membership.members(slot), key=lambda member: member.since)
    return [{"slot": str(slot.path), **member.describe(), "tty": _terminal(member)} for member in found]


def _terminal(member: Member) -> str | None:
    """Of exactly that process; None where it cannot be told, as of one in another pid namespace."""
    from supervisor import identity

    if member.identity is None or identity.liveness(member.identity) is not identity.Liveness.ALIVE:
        return None
    return identity.terminal_of(member.identity.pid)


def table(found: list[dict[str, Any]], slot: str) -> str:
    """For people."""
    if not found:
        return f"nobody uses the engine of {slot}"
    from supervisor import wording

    return wording.table([HEADS, *(_row(facts, slot) for facts in found)])


def _row(facts: dict[str, Any], slot: str) -> tuple[str, ...]:
    from supervisor.wording import printable

    used = f"{ago(facts['last_use'])} ago" if facts["last_use"] else "unknown"
    tty = "?" if facts["tty"] is None else facts["tty"] or "-"
    beside = "" if facts["slot"] == slot else f" (in {facts['slot']})"
    since = ago(facts["since"] or None)
    return str(facts["pid"] or "?"), since, used, tty, printable(f"{facts['name'] or '?'}{beside}")
