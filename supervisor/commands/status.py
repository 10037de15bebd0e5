"""`queenright status`: one screen, plain words. It only looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from supervisor.commands._common import add_place, ago, size, slot_of

if TYPE_CHECKING:
    import argparse

    from supervisor.slot import Slot


class Status:
    """The command."""

    help = "what runs, since when, and who uses it"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        parser.add_argument("--json", action="store_true", help="the same as data")
        parser.epilog = (
            "example:\n  queenright status --json\n\nExit status 4 when no engine runs, 5 when a group failed."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print it."""
        from supervisor.looking import dump, look

        slot = slot_of(args)
        snapshot = look(slot)
        snapshot["built"] = _built(slot) if snapshot["state"] != "down" else None
        snapshot["private"] = [_brief(look(private)) for private in slot.private_slots() if _is_alive(private)]
        print(dump(snapshot) if args.json else render(snapshot))
        return {"down": 4, "failed": 5}.get(snapshot["state"], 0)


COMMAND: Final = Status()


def _built(slot: Slot) -> dict[str, Any] | None:
    """By whom the engine came to be what it is, and why: the last step of the ladder that was more than to bind."""
    from supervisor import journal

    return journal.last_rung(slot, "build", "extend", "replace", "take over")


def _is_alive(slot: Slot) -> bool:
    from supervisor import locks

    return locks.is_held(slot.warden_lock) is not False


def _brief(snapshot: dict[str, Any]) -> dict[str, Any]:
    """An engine beside the one that was asked for: enough to see that it is there, and whose."""
    groups = [{"name": group["name"], "state": group["state"]} for group in snapshot["groups"]]
    return {"groups": groups} | {key: snapshot[key] for key in ("slot", "state", "members")}


def render(snapshot: dict[str, Any]) -> str:
    """The snapshot for people."""
    lines = [f"engine    {snapshot['state']}" + (f": {snapshot['reason']}" if snapshot["reason"] else "")]
    lines.append(f"slot      {snapshot['slot']}")
    if snapshot["keeper"]:
        keeper = snapshot["keeper"]
        lines.append(f"keeper    pid {keeper['pid']}, version {keeper['version']}, up {ago(keeper['since'])}")
    elif snapshot["warden"]:
        lines += [f"          | {line}" for line in snapshot["warden"]["last_words"]]
    if (cgroup := (snapshot["warden"] or {}).get("cgroup", "")).strip("/"):
        lines.append(f"warden    pid {snapshot['warden']['pid']}, in control group {cgroup}")
    if built := snapshot.get("built"):
        lines.append(
            f"built     {ago(built['at'])} ago by {built['program']} (pid {built['pid']}), to {built['rung']}: {built['reason']}"
        )
    for group in snapshot["groups"]:
        lines += _group(group)
    if snapshot["members"]:
        names = ", ".join(f"{m['name']} (pid {m['pid']}, {ago(m['since'])})" for m in snapshot["members"])
        lines.append(f"members   {names}")
    elif snapshot["state"] != "down":
        lines.append(f"members   {_why_without(snapshot)}")
    for private in snapshot.get("private", []):
        groups = ", ".join(f"{group['name']} {group['state']}" for group in private["groups"]) or private["state"]
        users = ", ".join(f"{m['name']} (pid {m['pid']})" for m in private["members"]) or "nobody"
        lines.append(f"private   {private['slot']}: {groups}; used by {users}")
    return "\n".join(lines)


def _why_without(snapshot: dict[str, Any]) -> str:
    """What keeps an engine up that nobody uses."""
    if snapshot["lifetime"] == "run":
        return "kept up by `queenright run`"
    return f"none; kept warm by {', '.join(snapshot['warm'])}" if snapshot["warm"] else "none"


def _group(group: dict[str, Any]) -> list[str]:
    reason = f": {group['reason']}" if group["reason"] else ""
    counts = [(group.get("restarts"), "restart"), (group.get("reloads"), "reload")]
    restarts = "".join(f", {times} {what}{'s' if times > 1 else ''}" for times, what in counts if times)
    lines = [f"{group['name']:9} {group['state']}{reason}{restarts}"]
    if group["proxy"]:
        lines.append(
            f"          proxy  pid {group['proxy']['pid']}, port {group['proxy']['port']}{_health(group['proxy'])}"
        )
    for server in group["servers"]:
        where = (
            f"pid {server['pid']}, port {server['port']}, {size(server['rss_bytes'])}"
            if server["pid"]
            else "no process"
        )
        lines.append(f"          {server['role']:6} {server['model']}: {server['state']}, {where}{_health(server)}")
    if group["state"] == "running" and (cause := group.get("cause")):
        said = f"{cause['word']}: {cause['detail']}" if cause["detail"] else cause["word"]
        lines.append(f"          last end: {said}")
    if unwritten := group.get("unwritten"):
        lines.append(f"          its record is old: {unwritten}")
    return lines + [f"          | {line}" for line in group.get("log_tail", [])]


def _health(process: dict[str, Any]) -> str:
    """What is thought of a process that is not simply healthy, and why."""
    found = process.get("health")
    if not found or found["verdict"] in ("healthy", "unknown"):
        return ""
    return f"; {found['verdict']}: {found['evidence']}"
