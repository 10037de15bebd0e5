"""The faults of a soak, as far as they can be looked at without an engine; tests/engine/test_soak.py does them all to one."""

from __future__ import annotations

import http.client
import random
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.observer import Sighting
from chaos.soak.faults import FAULTS, Ground, Hit, changed_beyond, comers, damage, ports
from chaos.soak.faults.memory import V1_LIMITS, V2_LIMITS, OutOfMemory, Place, place_among
from chaos.soak.soak import fault_judgements
from chaos.soak.verdicts import Verdict
from supervisor import identity
from supervisor.devices import cgroups
from supervisor.identity import Identity
from supervisor.slot import Slot
from tests.support import free_port, wait_until


def who(pid: int) -> Identity:
    return Identity("boot", 1, pid, pid * 10)


BEFORE = Sighting(
    who(1), who(2), {"chat": who(3), "embed": who(5)}, {"chat": (who(4),), "embed": (who(6),)}
)  # fmt: skip
AFTER = {
    "warden": BEFORE._replace(warden=who(11)),
    "keeper": BEFORE._replace(keeper=None),
    "chat": BEFORE._replace(servers={**BEFORE.servers, "chat": (who(14),)}),
    "embed": BEFORE._replace(leaders={"chat": who(3), "embed": who(15)}),
}


@pytest.mark.parametrize("name", AFTER)
def test_whoever_a_fault_did_not_touch_must_be_the_same_process(name: str) -> None:
    assert changed_beyond((), BEFORE, BEFORE) == []
    assert changed_beyond((), BEFORE, AFTER[name]) == [name]
    assert changed_beyond([name], BEFORE, AFTER[name]) == []
    (found, own) = fault_judgements(3, BEFORE, AFTER[name], Hit(touched=frozenset({"another"})))
    assert (found.verdict, found.seen, own.verdict) == (Verdict.BROKEN, f"replaced: {name}", Verdict.HOLDS)
    assert fault_judgements(3, BEFORE, AFTER[name], None)[0].verdict is Verdict.BROKEN, "nor may it without a fault"


def test_what_a_fault_says_of_itself_is_judged_and_a_crash_has_found_out_nothing() -> None:
    def crash() -> str:
        raise ZeroDivisionError("a bug")

    assert fault_judgements(3, BEFORE, BEFORE, Hit(wrong=lambda: "two built"))[1].verdict is Verdict.BROKEN
    assert fault_judgements(3, BEFORE, BEFORE, Hit(wrong=crash))[1].verdict is Verdict.UNKNOWN
    assert fault_judgements(3, BEFORE, None, None)[0].verdict is Verdict.UNKNOWN


@pytest.mark.process
def test_who_stood_still_and_ended_meanwhile_is_nobody_to_go_on() -> None:
    """By number alone that was an error which ended the soak, or a signal to whoever has the number now."""
    front = subprocess.Popen(["sleep", "600"])
    with ExitStack() as undo:
        ground = Ground(Slot(Path("/nowhere")), Path("x"), BEFORE, random.Random(0), undo, (front.pid,))
        stopped = comers._stop_fronts(ground)
        assert [one.pid for one in stopped] == [front.pid]
        wait_until(lambda: identity.stat_of(front.pid).state == "T")
        front.kill()
        front.wait()
        comers._go_on(ground, stopped)
        undo.close()


def test_each_fault_is_said_in_plain_words_under_a_name_of_its_own() -> None:
    assert all(fault.name == name and fault.what and type(fault).__doc__ for name, fault in FAULTS.items())
    assert len({fault.what for fault in FAULTS.values()}) == len(FAULTS)


def test_damaged_records_are_drawn_by_the_seed_and_never_what_was_written() -> None:
    whole = bytes(range(256))
    for seed in range(20):
        bad, cut = (how(whole, random.Random(seed)) for how in (damage.corrupted, damage.truncated))
        assert (bad, cut) == tuple(how(whole, random.Random(seed)) for how in (damage.corrupted, damage.truncated))
        assert len(bad) == len(whole)
        assert bad != whole
        assert len(cut) < len(whole)
        assert whole.startswith(cut)
    assert damage.corrupted(b"", random.Random(0)) == damage.truncated(b"", random.Random(0)) == b""


def test_a_port_thief_answers_200_to_all_and_tells_what_he_heard() -> None:
    heard: list[str] = []
    thief = ports.Thief(free_port(), heard)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", thief.server_address[1], timeout=10)
        connection.request("POST", "/v1/chat/completions", body=b"{}")
        assert connection.getresponse().status == 200
        assert heard == ["POST /v1/chat/completions HTTP/1.1"]
        connection.close()
    finally:
        thief.close()


V1 = "9:name=systemd:/\n4:memory:/a/b\n0::/\n"
V2 = "0::/user.slice/engine\n"
MOUNT_V1 = "26 25 0:22 {shown} /cg/memory rw - cgroup cgroup rw,memory\n"
MOUNT_V2 = "27 25 0:23 / /cg/unified rw - cgroup2 cgroup2 rw\n"


def test_a_control_group_is_made_beside_that_of_version_2_and_in_that_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)

    def place(groups: str, mounts: str) -> Place | None:
        (tmp_path / "proc/7/cgroup").write_text(groups)
        (tmp_path / "proc/7/mountinfo").write_text(mounts)
        return place_among(cgroups.around(str(tmp_path), 7))

    outside = MOUNT_V1.format(shown="/containers/c")  # a container sees a path that is outside of what is mounted
    assert place(V1, outside) == Place(Path("/cg/memory"), V1_LIMITS, "memory.oom_control")
    both = MOUNT_V2 + MOUNT_V1.format(shown="/")
    assert place(V1, both) == Place(Path("/cg/memory/a/b"), V1_LIMITS, "memory.oom_control")
    assert place("4:memory:/a/b\n0::/x\n", both) == place(V1, both)  # the controller is in one of them alone
    assert place(V2, "") is None  # that is not mounted here
    assert place(V2, MOUNT_V2) == Place(Path("/cg/unified/user.slice"), V2_LIMITS, "memory.events")
    assert place("0::/\n", MOUNT_V2) is None  # nothing is beside the root
    assert place("4:memory:/a\n", "") is None


@pytest.mark.parametrize(
    ("handed_down", "reason"),
    [(None, "no control group"), ("cpu pids", "does not hand memory"), ("cpu memory", ""), ("", "")],
)
def test_an_oom_kill_is_only_done_where_control_groups_can_be_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handed_down: str | None, reason: str
) -> None:
    (tmp_path / "cgroup.procs").touch()
    if handed_down:  # version 1 has no such file
        (tmp_path / "cgroup.subtree_control").write_text(f"{handed_down}\n")
    place = None if handed_down is None else Place(tmp_path, (), "")
    monkeypatch.setattr(OutOfMemory, "place_of", lambda _, server: place)
    ground = Ground(Slot(tmp_path), tmp_path, BEFORE, random.Random(0), ExitStack())
    assert reason in OutOfMemory().obstacle(ground)
    assert bool(reason) == bool(OutOfMemory().obstacle(ground))
