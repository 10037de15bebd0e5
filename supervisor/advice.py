"""What is wrong with an engine, and what to do about it: a pure function of the snapshot, over one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from supervisor import budgets
from supervisor.wording import WAY_OUT, amount, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

READ: Final = 0.95
"""Share of a file from which it counts as read: what follows is warming. llama-server leaves 2 % of it alone (measured)."""

NEXT: Final[Mapping[str, str]] = {
    "failed": "`queenright logs {name} --start` says why; mend it, then `queenright retry {name}`",
    "held": "`queenright release` lets it run again",
    "held group": "`queenright release --group {name}` lets it run again",
    "payload": "see its source and the disk; `queenright payload fetch` tries it by hand, and the group does so by itself",
    "failing": "`queenright logs keeper` has its last words; the engine serves on, and a keeper is tried every 30 s",
    "restarting": "nothing: the next keeper takes the engine up as it is",
    "silent": "nothing: a keeper that stays silent is replaced; `queenright stop` works all the same",
    "unkillable": "see what holds that process (a driver, a disk); what it holds stays taken until it is gone",
    "outside": WAY_OUT,
    "left over": "`queenright stop` ends them",
    "unwritten": "make room on the slot's disk; the record is then written by itself",
    "unwatched": "nothing at once: it serves, and the watch was begun again; `queenright logs keeper` has what the kind's maker needs",
    "stalled": "wait, or look at `queenright logs {name}`; it is rebuilt by itself if it stays so",
    "stuck load": "look at the disk and at `queenright logs {name}`; the group's start_limit_s ends the load",
    "memory": "`queenright status --json` has it line by line (memory.compared, memory.asked); configure what it really takes",
    "two accounts": "`queenright plan` shows both, and which of them is gone by; it is worth a report, with the model's name",
    "model file": "nothing, for what runs; the next start reads what is there then, so put it back, or configure another one",
    "gateway": "see what has its port, or [gateway] in queenright.toml and `queenright apply`; it is tried again by itself, and"
    " direct members are served all the same",
    "off device": "`queenright doctor` says what the driver shows; once it works, `queenright stop` and a new start load it there",
    "gone quiet": "if that program is not wanted any more, end it: it keeps the engine up",
}
"""The next step for each kind of trouble. `{name}` is the group's."""


class Trouble(NamedTuple):
    """One thing that is wrong. `kind` is a key of NEXT, `about` what it concerns, `text` says it."""

    kind: str
    about: str
    text: str

    @property
    def next_step(self) -> str:
        """What to do about it."""
        return NEXT[self.kind].format(name=self.about)


def troubles(snapshot: Mapping[str, Any], now: float) -> list[Trouble]:
    """All that is wrong, what is worst first. `now` in seconds of the epoch."""
    found = [trouble for group in snapshot["groups"] for trouble in _of_group(group, now)]
    found += [*_of_engine(snapshot), *_of_gateway(snapshot.get("gateway")), *_of_members(snapshot["members"], now)]
    order = list(NEXT)
    return sorted(found, key=lambda trouble: order.index(trouble.kind))


def off_device(groups: Sequence[Mapping[str, Any]]) -> str:
    """Which server was planned for a device and has nothing there, in words; "" where none is known to. It answers, some
    twenty times slower, so nothing else would tell (ollama#5464): the engine is `degraded`, and those who come bind all
    the same, for a slow engine is better than none, and a second one would find no device either."""
    for group in groups:
        for server in group["servers"]:
            for line in (server.get("memory") or {}).get("compared", ()):
                if line["verdict"] == "absent":
                    size = line["planned"] / 2**20
                    return f"{server['role']} runs without its device: {line['what']}: {size:.0f} MiB planned, and it has none"
    return ""


def _of_engine(snapshot: Mapping[str, Any]) -> Iterator[Trouble]:
    state, reason = snapshot["state"], snapshot["reason"]
    if snapshot.get("held"):
        yield Trouble("held", "engine", snapshot["held"])
    for name, why in snapshot.get("held_groups", {}).items():
        yield Trouble("held group", name, why)
    for one in snapshot.get("outside", ()):
        text = f"what its generation {one['generation']} started outside its processes (a container) is not known to have ended"
        yield Trouble("outside", one["group"], text)
    if state in ("failing", "restarting"):
        yield Trouble(state, "keeper", reason)
    elif state == "degraded" and snapshot["keeper"] is None:
        yield Trouble("silent", "keeper", reason)
    elif state == "down" and "still alive" in reason:
        yield Trouble("left over", "engine", reason)
    elif state == "degraded" and reason and reason == off_device(snapshot["groups"]):
        yield Trouble("off device", "engine", reason)


def _of_group(group: Mapping[str, Any], now: float) -> Iterator[Trouble]:
    name = group["name"]
    if "left outside" in (group["reason"] or ""):
        yield Trouble("outside", name, group["reason"])
    elif group["state"] == "failed":
        yield Trouble("failed", name, "it was given up, and is not tried again by itself")
    if (group.get("fetching") or {}).get("trouble"):
        yield Trouble("payload", name, group["reason"])
    if "cannot be killed" in (group["reason"] or ""):
        yield Trouble("unkillable", name, group["reason"])
    if unwatched := group.get("unwatched"):
        yield Trouble("unwatched", name, f"the watch over its servers broke off: {unwatched}")
    if unwritten := group.get("unwritten"):
        yield Trouble("unwritten", name, f"its record is old: {unwritten}")
    for process in (group["proxy"], *group["servers"]):
        health = (process or {}).get("health")
        if health and health["verdict"] in ("stalled", "hung", "wedged"):
            yield Trouble("stalled", name, f"{health['verdict']}: {health['evidence']}")
    for server in group["servers"]:
        for warning in (server.get("memory") or {}).get("warnings", ()):
            yield Trouble("memory", name, f"{server['role']}: {warning}")
        if said := _two_accounts((server.get("memory") or {}).get("estimate")):
            yield Trouble("two accounts", name, f"{server['role']}: {said}")
        if gone := server.get("deleted_model"):
            text = f"{server['role']} serves on out of {gone}, which was removed or replaced since it was loaded"
            yield Trouble("model file", name, text)
        loading = server.get("loading")
        if loading and loading["bytes"] < READ * loading["of"] and now - loading["moved"] >= budgets.STUCK_LOAD:
            text = f"the load of {server['model']} has not moved for {span(now - loading['moved'])}"
            yield Trouble("stuck load", name, text)


def _two_accounts(estimate: Mapping[str, Any] | None) -> str:
    """What the engine's own estimate says otherwise than the plan's arithmetic, of figures that are no upper bounds; "" where
    they agree."""
    found = [one for one in (estimate or {}).get("compared", ()) if one["differs"]]
    wrong = [one for one in found if one["what"] != "compute buffer" or one["estimated"] > one["modelled"]]
    parts = [f"{one['what']} {amount(one['modelled'])}, and {amount(one['estimated'])}" for one in wrong]
    return f"by its file's header it takes {'; '.join(parts)} by {(estimate or {}).get('by')}" if parts else ""


def _of_gateway(gateway: Mapping[str, Any] | None) -> Iterator[Trouble]:
    if gateway and gateway.get("reason"):
        yield Trouble("gateway", "gateway", f"{gateway.get('state')}: {gateway['reason']}")


def _of_members(members: list[dict[str, Any]], now: float) -> Iterator[Trouble]:
    for member in members:
        if (used := member.get("last_use")) and now - used >= budgets.FORGOTTEN:
            yield Trouble("gone quiet", member["name"], f"pid {member['pid']} has not used it for {span(now - used)}")
