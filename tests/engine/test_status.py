"""`queenright status`: the truth in every state, quickly, with the right exit status."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from supervisor._version import __version__
from supervisor.errors import ExitCode
from tests.engine.kit import Launch
from tests.engine.seen import kill
from tests.support import ROOT, wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process

STATUS_PAGE = ROOT / "docs" / "reference" / "status.md"
ANSWER_LIMIT = 10.0
"""What must be there within a second, on a machine that is busy with other tests: not a speed, only not for ever."""


def asked(place: Place) -> tuple[int, dict[str, Any]]:
    """`status --json`, in time."""
    began = time.monotonic()
    code, found = place.status()
    assert time.monotonic() - began < ANSWER_LIMIT
    return code, found


def keys(value: object, path: str = "") -> tuple[set[str], set[str]]:
    """Paths of all keys below a value, and of those that are null or empty, so that nothing is known of what is in them."""
    shown: set[str] = set()
    empty: set[str] = set()
    if isinstance(value, dict):
        for key, each in value.items():
            below, bare = keys(each, f"{path}.{key}" if path else key)
            shown |= below or {f"{path}.{key}" if path else key}
            empty |= bare
        return shown | ({path} if path and not path.endswith("[]") else set()), empty
    if isinstance(value, list):
        for each in value:
            below, bare = keys(each, f"{path}[]")
            shown |= below or {f"{path}[]"}
            empty |= bare
        return shown, empty if value else {path}
    return {path}, {path} if value is None else set()


def fits(value: object, shape: object) -> bool:
    """Whether plain data has a shape: a type, a tuple of alternatives, an object with at least these keys, a list."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(key in value and fits(value[key], shape[key]) for key in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and len(value) > 0 and all(fits(each, shape[0]) for each in value)
    if isinstance(shape, tuple):
        return any(fits(value, each) for each in shape)
    if shape is float:
        return type(value) in (int, float)
    return type(value) is shape


RUNNING = {
    "slot": str,
    "state": str,
    "keeper": {"pid": int, "version": str, "since": float},
    "warden": {"pid": int},
    "groups": [
        {
            "name": str,
            "state": str,
            "reason": str,
            "generation": str,
            "proxy": {"pid": int, "port": int},
            "servers": [
                {"role": str, "model": str, "pid": int, "port": int, "state": str, "rss_bytes": int},
            ],
            "restarts": int,
        }
    ],
    "members": [{"pid": int, "name": str, "since": float}],
}
"""What the issue promises of a running engine."""


def test_status_of_a_running_engine_has_every_field_and_each_is_true(place: Place) -> None:
    front = place.member("user")
    family = place.family()
    code, found = asked(place)
    assert code == ExitCode.OK
    assert fits(found, RUNNING), json.dumps(found, indent=1)
    assert (found["state"], found["slot"]) == ("running", str(place.slot.path))
    assert (found["keeper"]["pid"], found["keeper"]["version"]) == (family.keeper.pid, __version__)
    assert found["warden"]["pid"] == family.warden.pid
    assert [group["name"] for group in found["groups"]] == ["chat", "embed"]
    for group in found["groups"]:
        name = group["name"]
        assert (group["state"], group["restarts"]) == ("running", 0)
        assert group["proxy"]["pid"] == family.proxies[name].pid
        (server,) = group["servers"]
        assert (server["role"], server["model"], server["state"]) == (name, name, "ready")
        (spawn,) = place.spawns(name)
        assert server["pid"] == spawn["pid"]
        assert server["port"] == int(spawn["argv"][spawn["argv"].index("--port") + 1])
        assert server["rss_bytes"] > 1 << 20
        assert f"QUEENRIGHT_GENERATION={group['generation']}".encode() in _environment(server["pid"])
    assert [(member["pid"], member["name"]) for member in found["members"]] == [(front.pid, front.name)]
    assert abs(found["members"][0]["since"] - time.time()) < 600

    # The page has every key, and none that is not there.
    shown, empty = keys(found)
    shown = {key.removesuffix("[]") for key in shown}
    page = set(re.findall(r"^\| `([\w.\[\]]+?)(?:\[\])?` \|", STATUS_PAGE.read_text(), flags=re.MULTILINE))
    assert shown <= page, shown - page
    later = ("gateway", "groups[].queue", "groups[].servers[].memory", "warden.last_", "warden.next_")
    missing = {key for key in page - shown if not key.startswith(later)}
    assert {key for key in missing if not any(key.startswith(f"{one}") for one in empty)} == set()

    # No secret is shown, and what a person sees says the same.
    key = place.slot.group_key("chat").read_text().strip()
    plain = place.cli("status")
    assert plain.returncode == ExitCode.OK
    assert key not in json.dumps(found) + plain.stdout
    for word in ("running", str(place.slot.path), str(family.keeper.pid), "chat", "embed", front.name):
        assert word in plain.stdout

    # A reader that leaves early is no error.
    command = shlex.join(place.command("status", "--json"))
    pipe = f"cd {place.home} && {command} 2>pipe.stderr | true"
    assert (
        subprocess.run(["/bin/bash", "-o", "pipefail", "-c", pipe], env=place.environment, check=False).returncode == 0
    )
    assert (place.home / "pipe.stderr").read_text() == ""


def _environment(pid: int) -> list[bytes]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read().split(b"\0")


def test_status_of_an_empty_slot_is_down(place: Place) -> None:
    code, found = asked(place)
    assert code == ExitCode.NO_ENGINE
    assert (found["state"], found["reason"], found["keeper"], found["warden"]) == ("down", "no engine", None, None)
    assert found["groups"] == found["members"] == []
    assert found.keys() >= RUNNING.keys()


@pytest.mark.long
def test_status_and_logs_answer_during_a_slow_load(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 600}),), "embed": (Launch("embed"),)})
    place.front().open(wait=False)
    place.wait_state("running", "embed")
    wait_until(place.spawns, what="the chat server is loading")
    wait_until(lambda: place.group()["servers"][0]["state"] == "loading", what="status says that it loads")
    code, found = asked(place)
    assert (code, found["state"]) == (ExitCode.OK, "starting")
    assert [(group["state"], group["servers"][0]["state"]) for group in found["groups"]] == [
        ("starting", "loading"),
        ("running", "ready"),
    ]
    began = time.monotonic()
    assert place.cli("logs").returncode == ExitCode.OK
    assert time.monotonic() - began < ANSWER_LIMIT


@pytest.mark.long
def test_status_says_that_the_keeper_is_stopped_and_not_how_the_one_before_died(place: Place) -> None:
    place.member()
    kill(place.family().keeper)
    place.until(lambda: place.snapshot()["warden"]["keeper_crashes"] == 1, within=60, what="another keeper")
    keeper = place.family().keeper
    kill(keeper, signal.SIGSTOP)
    code, found = asked(place)
    kill(keeper, signal.SIGCONT)
    assert (code, found["state"], found["keeper"]) == (ExitCode.OK, "degraded", None)
    assert found["reason"].startswith(f"the keeper, pid {keeper.pid}, is stopped")
    assert "; before it one died once, the last one: killed by SIGKILL" in found["reason"]


@pytest.mark.long
def test_status_during_a_rebuild_says_what_died(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"bind_delay": 1}),), "embed": (Launch("embed"),)})
    place.member()
    family = place.family()
    kill(family.proxies["chat"])
    found = place.wait_state("rebuilding")
    assert "SIGKILL" in found["reason"]
    code, found = asked(place)
    assert (code, found["state"]) == (ExitCode.OK, "rebuilding")
    assert "rebuilding" in place.cli("status").stdout
    place.wait_state("running")
    assert place.group()["restarts"] == 1


@pytest.mark.long
def test_status_of_a_failed_group_gives_exit_5_with_its_last_words(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"exit_early": 1, "exit_code": 9}),), "embed": (Launch("embed"),)})
    place.front().open(wait=False)
    place.wait_state("failed")
    place.wait_state("running", "embed")
    code, found = asked(place)
    assert (code, found["state"]) == (ExitCode.FAILED_FOR_GOOD, "failed")
    plain = place.cli("status")
    assert plain.returncode == ExitCode.FAILED_FOR_GOOD
    assert found["groups"][0]["reason"] in plain.stdout
    assert len(place.spawns()) == 3


@pytest.mark.long
def test_status_without_a_keeper_is_answered_from_outside(place: Place) -> None:
    front = place.member("user")
    family = place.recorded()
    kill(family.keeper, signal.SIGSTOP)
    code, found = asked(place)
    assert code == ExitCode.OK
    assert (found["state"], found["keeper"]) == ("degraded", None)
    assert f"the keeper, pid {family.keeper.pid}, is stopped" in found["reason"]
    assert found["warden"]["pid"] == family.warden.pid
    assert {group["name"]: group["proxy"]["pid"] for group in found["groups"]} == {
        name: who.pid for name, who in family.proxies.items()
    }
    assert [member["pid"] for member in found["members"]] == [front.pid]
    assert place.cli("status").returncode == ExitCode.OK
    kill(family.keeper, signal.SIGCONT)
    assert wait_until(lambda: place.status()[1]["state"] == "running", what="the keeper answers again")
    assert place.family() == family
