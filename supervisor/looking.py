"""What there is in a slot, for commands that only look. Nothing is started, changed or set aside by it.

What only one of the answers needs (sockets, member files, records) is imported where that answer is made: an empty
slot and a keeper that answers are looked at for less than half of what importing all of it takes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from supervisor import budgets, identity, locks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.slot import Slot

UNKNOWN_GROUP: dict[str, Any] = {
    "state": "degraded",
    "settled": False,
    "draining": False,
    "reason": "its record does not say what it is doing",
    "since": None,
    "url": None,
    "log_tail": [],
    "generation": None,
    "proxy": None,
    "servers": [],
    "restarts": 0,
    "reloads": 0,
    "cause": None,
    "unwatched": None,
    "unwritten": None,
}
"""What is shown of a group whose record does not say it."""


def look(slot: Slot) -> dict[str, Any]:
    """The slot as `status --json` shows it: from the keeper, or from locks and records where it does not answer.

    Raises SlotError for a directory that cannot be a slot.
    """
    if not slot.examine() or locks.is_held(slot.warden_lock) is False:
        return nothing(slot)
    from supervisor import control
    from supervisor.control import ControlError

    try:
        return control.ask(slot, "status", limit=budgets.LOOK_LIMIT)
    except ControlError as error:
        return _from_outside(slot, error.what)


def nothing(slot: Slot) -> dict[str, Any]:
    """The shape of `status --json` when no engine runs."""
    left = locks.held_generations(slot)
    held, outside = _hold(slot), slot.left_outside()
    reason = f"no engine runs; processes of an earlier one are still alive: {', '.join(left)}" if left else "no engine"
    if outside and not left:
        named = ", ".join(f"{one['group']}.{one['generation']}" for one in outside)
        reason = f"no engine runs; what an earlier one started outside its processes may be left: {named}"
    return {
        "slot": str(slot.path),
        "state": "down",
        "reason": f"{reason}, and none is started: {held}" if held else reason,
        "lifetime": None,
        "held": held,
        "held_groups": _held_groups(slot),
        "warm": [],
        "keeper": None,
        "warden": None,
        "groups": [],
        "members": _members(slot) if os.path.isdir(slot.members) else [],
        "outside": outside,
    }


def _hold(slot: Slot) -> str | None:
    """Who holds the slot and why: the file is the truth, also where no keeper could be told of it."""
    if not os.path.lexists(slot.hold_record):  # as `holding.is_held`, which a quick look does not import
        return None
    from supervisor import holding

    found = holding.find(slot)
    return found.describe() if found is not None else None


def _held_groups(slot: Slot) -> dict[str, str]:
    """Who holds single groups, and why."""
    if not slot.held_groups():
        return {}
    from supervisor import holding

    return {name: hold.describe() for name, hold in holding.on_groups(slot).items()}


def _from_outside(slot: Slot, why: str) -> dict[str, Any]:
    """The keeper does not answer: it has ended the engine, a new one is on its way, or it hangs. Where it is one of the
    latter, the engine may well be serving."""
    ended = _has_ended(slot)
    if locks.is_held(slot.warden_lock) is False:
        return nothing(slot)  # meanwhile
    warden = _warden(slot)
    if ended:
        reason = "its keeper has ended everything, and the warden is about to leave"
        return {**nothing(slot), "state": "stopping", "reason": reason, "warden": warden}
    state = "degraded"
    living = _silent_keeper(slot)
    if _is_starting(slot, warden):
        state, why = "starting", "its first keeper is not there yet"
    elif living:
        why = living
    if warden["keeper_crashes"]:
        times = f"{warden['keeper_crashes']} times in a row" if warden["keeper_crashes"] > 1 else "once"
        died = f"died {times}, {warden['last_keeper']}"
        why = f"{living}; before it one {died}" if living else f"the keeper {died}"
        if warden["keeper_crashes"] >= budgets.KEEPER_FAILING:
            state = "failing"
        elif warden["next_keeper_s"] is not None:
            state = "restarting"
        if warden["next_keeper_s"] is not None:
            why += f"; the next one starts in {warden['next_keeper_s']:.0f} s"
    facts = nothing(slot)
    if facts["held"]:
        why += f"; {facts['held']}"
    return {
        **facts,
        "state": state,
        "reason": f"{why}; what is shown comes from records",
        "warden": warden,
        "groups": _recorded_groups(slot),
    }


def _is_starting(slot: Slot, warden: dict[str, Any]) -> bool:
    """Whether this warden's first keeper is within its time to come up: none has ended, and none left its record yet.
    One that takes longer than that is no start, and neither is what is damaged."""
    import json
    import time

    if warden["ticks"] is None:
        return False
    who = [warden["pid"], warden["ticks"]]
    try:
        said = json.loads(slot.warden_record.read_bytes())
        none_ended = [said["pid"], said["ticks"]] == who and said["last_keeper"] is None
    except FileNotFoundError:
        none_ended = True
    except (OSError, ValueError, LookupError, TypeError):
        none_ended = False
    try:
        keeper = json.loads(slot.keeper_record.read_bytes())["record"]
        was_there = [keeper["warden_pid"], keeper["warden_ticks"]] == who
    except (OSError, ValueError, LookupError, TypeError):
        was_there = False
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - warden["ticks"] / os.sysconf("SC_CLK_TCK")
    return bool(none_ended and not was_there and age < budgets.CONTROL_WAIT)


def _silent_keeper(slot: Slot) -> str:
    """The keeper that lives and does not answer, in words; empty where none holds its lock, or it cannot be told who."""
    pids = locks.holders(slot.keeper_lock) if locks.is_held(slot.keeper_lock) else []
    if not pids:
        return ""
    if identity.state_of(pids[0]) in ("T", "t"):
        return f"the keeper, pid {pids[0]}, is stopped (by SIGSTOP or a debugger) and is replaced if it stays so"
    return f"the keeper, pid {pids[0]}, did not answer in time"


def _has_ended(slot: Slot) -> bool:
    """Whether the engine's keeper has come to its end in order. The last that it does is to take both of these away, once
    nothing of the engine runs: one that only died has left them, and where somebody else deleted them, something runs."""
    for record in (slot.contract_record, slot.keeper_record):
        try:
            os.lstat(record)
        except FileNotFoundError:
            continue
        except OSError:
            return False
        return False
    return not locks.held_generations(slot)


def _warden(slot: Slot) -> dict[str, Any]:
    """Who it is, by the kernel, and what it says of its keepers, if what stands there is that warden's."""
    import json

    from supervisor import units

    pids = locks.holders(slot.warden_lock)
    found: dict[str, Any] = {
        "pid": pids[0] if pids else None,
        "ticks": identity.start_ticks(pids[0]) if pids else None,
        "keeper_crashes": 0,
        "cgroup": units.cgroup_of(pids[0]) if pids else "",
        "last_keeper": "",
        "last_words": [],
        "next_keeper_s": None,
    }
    try:
        said = json.loads(slot.warden_record.read_bytes())
        if (said["pid"] in pids or not pids) and said["ticks"] == identity.start_ticks(said["pid"]):
            found |= {"pid": said["pid"], "ticks": said["ticks"]} | _of_keepers(slot, said)
    except (OSError, ValueError, LookupError, TypeError):
        pass  # it could not be written, or was damaged: then that much is not known
    return found


def _of_keepers(slot: Slot, said: dict[str, Any]) -> dict[str, Any]:
    """From warden.json (docs/reference/warden-protocol.md). Raises what a damaged one makes it raise."""
    import time

    from supervisor import logfiles
    from supervisor.contract import Exit

    last, due = said["last_keeper"], said["due"]
    if last is None:
        return {}
    end = "hung" if last["why"] == "hung" else Exit(last["code"], last["status"]).describe()
    spoke = last["code"] == os.CLD_EXITED and last["status"] != 0  # one that was killed had no time for last words
    return {
        "keeper_crashes": int(said["crashes"]),
        "last_keeper": f"the last one: {end}, after {last['lived']:.1f} s",
        "last_words": logfiles.tail(slot.keeper_log, lines=5) if spoke else [],
        "next_keeper_s": None if due is None else max(0.0, round(due - time.monotonic(), 1)),
    }


def _recorded_groups(slot: Slot) -> list[dict[str, Any]]:
    from supervisor import records
    from supervisor.errors import RecordError

    found = []
    for path in sorted(slot.groups.glob("*.json")):
        if path.name.count(".") != 1:
            continue  # a generation's configuration
        try:
            facts = records.read_fields(path, version=records.GROUP_VERSION, set_aside=False)
        except RecordError as error:
            facts = {"reason": error.what}
        if facts is not None:
            found.append({"name": path.stem} | UNKNOWN_GROUP | facts)
    return found


def _members(slot: Slot) -> list[dict[str, Any]]:
    from supervisor import membership

    return [member.describe() for member in membership.members(slot)]


def whole(slot: Slot, snapshot: dict[str, Any]) -> dict[str, Any]:
    """The snapshot with what stands beside it: what `with_files` adds, `built`, by whom the engine came to be what it is and
    why (the last step of the ladder that was more than to bind), and `private`, the engines in private slots."""
    built = None
    if snapshot["state"] != "down":
        from supervisor import journal

        built = journal.last_rung(slot, "build", "extend", "replace", "take over")
    private = [_brief(look(one)) for one in slot.private_slots() if locks.is_held(one.warden_lock) is not False]
    return {**with_files(snapshot), "built": built, "private": private}


def with_files(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The snapshot with what the kernel says of the servers' files: `deleted_model`, where a server still has a model's file
    mapped that lost its name since, for it was removed or another one put in its place (ollama/ollama#4443). The keeper does
    not look: a process that waits for a dead disk lets nobody read its mappings."""
    groups = []
    for group in snapshot["groups"]:
        servers = [{**one, "deleted_model": _deleted_model(one.get("pid"))} for one in group["servers"]]
        groups.append({**group, "servers": servers})
    return {**snapshot, "groups": groups}


def _deleted_model(pid: int | None) -> str | None:
    import re

    maps = (identity.proc_file_in_time(pid, "maps") if pid else None) or b""
    found = re.search(rb" (/.*(?:\.gguf|/blobs/[0-9a-f]{40,64})) \(deleted\)$", maps, re.MULTILINE)
    return os.fsdecode(found[1]) if found else None


def _brief(snapshot: dict[str, Any]) -> dict[str, Any]:
    """An engine beside the one that was asked for: enough to see that it is there, and whose."""
    groups = [{"name": group["name"], "state": group["state"]} for group in snapshot["groups"]]
    return {"groups": groups} | {key: snapshot[key] for key in ("slot", "state", "members")}


def follow(slot: Slot) -> Iterator[dict[str, Any]]:
    """Whole snapshots, for ever: each change as the keeper tells of it, and one every WATCH_ROUND at least. Over the ends of
    keepers and engines, and while there is none. Raises SlotError for a directory that cannot be a slot."""
    import time

    from supervisor import control
    from supervisor.control import ControlError

    while True:
        told = False
        if slot.examine() and locks.is_held(slot.warden_lock) is not False:
            try:
                for snapshot in control.converse(slot, "follow", limit=budgets.WATCH_ROUND, first=budgets.LOOK_LIMIT):
                    told = True
                    yield whole(slot, snapshot)
            except ControlError:
                pass  # the round is over, or nobody answers
        if not told:
            yield whole(slot, look(slot))
            time.sleep(budgets.WATCH_PAUSE)  # noqa: TID251 - nobody tells of an engine that is to come


def dump(snapshot: dict[str, Any]) -> str:
    """As `--json` prints it: without what is for programs of ours only."""
    import json

    return json.dumps({key: value for key, value in snapshot.items() if key != "contract"}, indent=2)
