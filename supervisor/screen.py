"""A snapshot as `queenright status` shows it: lines with a meaning each. Pure; colours are the terminal's to add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor import budgets
from supervisor.advice import troubles
from supervisor.wording import ago, amount, percent, printable, progress, why

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

GOOD = ("running",)
BAD = ("failed", "failing", "down")

INDENT = 12
"""Columns before what goes on in a further row."""

_GATEWAY = {
    "off": "switched off",
    "starting": "about to serve",
    "serving": "{url}, for every OpenAI client",
    "failed": "serves nobody",
    "closing": "{url} takes nobody new: its keeper makes room for the next one, or the engine ends",
}
"""What the gateway is doing (gateway.upkeep.GatewayState), in plain words."""


class Line(NamedTuple):
    """One line. `mood`: `good`, `bad`, `changing` (neither, for now), `quiet`, or "" for what has none."""

    text: str
    mood: str = ""


def mood_of(state: str) -> str:
    """How good a state is."""
    return "good" if state in GOOD else "bad" if state in BAD else "changing"


def plain(snapshot: Mapping[str, Any], now: float) -> str:
    """All of it as text."""
    return "\n".join(line.text for line in lines(snapshot, now))


def lines(snapshot: Mapping[str, Any], now: float) -> Iterator[Line]:
    """The engine, its keeper, its groups, who uses it, and what is wrong."""
    return (Line(printable(line.text), line.mood) for line in _lines(snapshot, now))


def _lines(snapshot: Mapping[str, Any], now: float) -> Iterator[Line]:
    state, reason = snapshot["state"], snapshot["reason"]
    yield Line(f"engine    {state}{why(state, reason)}", mood_of(state))
    yield Line(f"slot      {snapshot['slot']}")
    if gateway := snapshot.get("gateway"):
        yield Line(f"gateway   {gateway_words(gateway)}", "changing" if gateway.get("reason") else "")
    if keeper := snapshot["keeper"]:
        yield Line(f"keeper    pid {keeper['pid']}, version {keeper['version']}, up {ago(keeper['since'], now)}")
    elif snapshot["warden"]:
        yield from (Line(f"          | {line}", "quiet") for line in snapshot["warden"].get("last_words", []))
    if (cgroup := (snapshot["warden"] or {}).get("cgroup", "")).strip("/"):
        yield Line(f"warden    pid {snapshot['warden']['pid']}, in control group {cgroup}")
    if built := snapshot.get("built"):
        who = f"{built['program']} (pid {built['pid']}), to {built['rung']}: {built['reason']}"
        yield Line(f"built     {ago(built['at'], now)} ago by {who}")
    for group in snapshot["groups"]:
        yield from _group(group, now)
    if snapshot["members"]:
        yield Line(f"members   {', '.join(_member(member, now) for member in snapshot['members'])}")
    elif state != "down":
        yield Line(f"members   {_why_without(snapshot)}")
    for private in snapshot.get("private", []):
        groups = ", ".join(f"{group['name']} {group['state']}" for group in private["groups"]) or private["state"]
        users = ", ".join(f"{m['name']} (pid {m['pid']})" for m in private["members"]) or "nobody"
        yield Line(f"private   {private['slot']}: {groups}; used by {users}")
    for trouble in troubles(snapshot, now):
        yield Line(f"wrong     {trouble.about}: {trouble.text}", "bad")
        yield Line(f"          -> {trouble.next_step}")


def fitted(found: Iterable[Line], columns: int, rows: int) -> list[Line]:
    """The lines as rows of a terminal. Where there are too many of them, quoted logs go first, and then what stands before that
    which is wrong, since with that stands what to do."""
    import textwrap

    wide = max(columns, 2 * INDENT)
    shown = [
        Line(row, line.mood)
        for line in found
        for row in textwrap.wrap(line.text, wide, subsequent_indent=" " * INDENT, break_on_hyphens=False) or [""]
    ]
    quiet = [number for number, line in enumerate(shown) if line.mood == "quiet"]
    gone = set(quiet[: max(0, len(shown) - rows)])
    shown = [line for number, line in enumerate(shown) if number not in gone]
    if len(shown) > rows:
        wrong = next((number for number, line in enumerate(shown) if line.text.startswith("wrong ")), len(shown))
        last = shown[wrong:][: rows - 1]
        shown = [*shown[: rows - 1 - len(last)], Line("...", "quiet"), *last]
    return shown


def gateway_words(gateway: Mapping[str, Any]) -> str:
    """Where it is, or why it is nowhere."""
    url, reason = gateway.get("url"), gateway.get("reason")
    words = _GATEWAY.get(str(gateway.get("state")), "{state}").format(url=f"{url}/v1", state=gateway.get("state", "?"))
    return words + (f": {reason}" if reason else "")


def _member(member: Mapping[str, Any], now: float) -> str:
    used = f", used {ago(member['last_use'], now)} ago" if member.get("last_use") else ""
    return f"{member['name']} (pid {member['pid']}, {ago(member['since'], now)}{used})"


def _why_without(snapshot: Mapping[str, Any]) -> str:
    """What keeps an engine up that nobody uses."""
    if snapshot["lifetime"] == "run":
        return "kept up by `queenright run`"
    return f"none; kept warm by {', '.join(snapshot['warm'])}" if snapshot["warm"] else "none"


def _group(group: Mapping[str, Any], now: float) -> Iterator[Line]:
    reason = why(group["state"], group["reason"])
    counts = [(group.get("restarts"), "restart"), (group.get("reloads"), "reload")]
    restarts = "".join(f", {times} {what}{'s' if times > 1 else ''}" for times, what in counts if times)
    since = f" for {ago(group['since'], now)}" if group.get("since") else ""
    yield Line(f"{group['name']:9} {group['state']}{since}{reason}{restarts}", mood_of(group["state"]))
    if (fetching := group.get("fetching")) and fetching["of"]:
        yield Line(f"          {fetching['what']}:{_loading(fetching, now)}")
    if proxy := group["proxy"]:
        yield Line(f"          proxy  pid {proxy['pid']}, port {proxy['port']}{_health(proxy)}")
    queues = group.get("queue") or {}
    for server in group["servers"]:
        pid = server["pid"]
        where = f"pid {pid}, port {server['port']}, {amount(server['rss_bytes'])}" if pid else "no process"
        state = f"{server['state']}{_loading(server.get('loading'), now)}"
        yield Line(
            f"          {server['role']:6} {server['model']}: {state}, {where}{_queue(queues.get(server['role']))}{_health(server)}"
        )
    if group["state"] == "running" and (cause := group.get("cause")):
        said = f"{cause['word']}: {cause['detail']}" if cause["detail"] else cause["word"]
        yield Line(f"          last end: {said}", "quiet")
    yield from (Line(f"          | {line}", "quiet") for line in group.get("log_tail", []))


def _queue(queue: Mapping[str, Any] | None) -> str:
    """Of one server: requests that it is given through the gateway, and those that wait for room."""
    if not queue or not (queue["running"] or queue["waiting"]):
        return ""
    waiting = f", {queue['waiting']} waiting (the first for {queue['oldest_s']:.0f} s)" if queue["waiting"] else ""
    return f", {queue['running']} running{waiting}"


def _loading(loading: Mapping[str, Any] | None, now: float) -> str:
    if not loading:
        return ""
    still = f", nothing for {ago(loading['moved'], now)}" if now - loading["moved"] >= budgets.LOAD_STILL else ""
    return f" {progress(loading['bytes'], loading['of'])}{still}"


def _health(process: Mapping[str, Any]) -> str:
    """What is thought of a process that is not simply healthy, and why."""
    found = process.get("health")
    if not found or found["verdict"] in ("healthy", "unknown"):
        return ""
    return f"; {found['verdict']}: {found['evidence']}"


def news(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[str]:
    """What changed between two snapshots, a line each: for a watch into a pipe."""
    old = {} if before is None else _facts(before)
    new = _facts(after)
    gone = [f"{name} gone" for name in old.keys() - new.keys()]
    told = [f"{name} {text}" for name, text in new.items() if old.get(name) != text] + sorted(gone)
    return [printable(line) for line in told]


def _facts(snapshot: Mapping[str, Any]) -> dict[str, str]:
    """What is worth a line when it changes."""
    found = {"engine:": f"{snapshot['state']}{why(snapshot['state'], snapshot['reason'])}"}
    for group in snapshot["groups"]:
        reason = why(group["state"], group["reason"])
        fetching = group.get("fetching") or {}
        how_far = f" {percent(fetching['bytes'], fetching['of'])}" if fetching.get("of") else ""
        found[f"group {group['name']}:"] = f"{group['state']}{how_far}{reason}"
        for server in group["servers"]:
            loading = server.get("loading")
            how_far = f" {progress(loading['bytes'], loading['of'])}" if loading else ""
            found[f"server {server['role']}:"] = f"{server['state']}{how_far}"
    for member in snapshot["members"]:
        found[f"member {member['name']} (pid {member['pid']})"] = "uses it"
    return found
