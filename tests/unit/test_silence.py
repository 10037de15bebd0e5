"""When a warden whose control socket is silent is known to hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor import budgets, identity, silence, stopping
from supervisor.identity import Identity
from supervisor.silence import Silence
from supervisor.slot import Slot
from tests.support import wait_until

WARDEN = Identity("boot", 1, 7, 100)
SUCCESSOR = WARDEN._replace(ticks=200)


def test_stopped_and_silent_for_the_whole_time_is_a_hang() -> None:
    seen = Silence()
    for second in range(0, 10, 2):
        seen.saw(WARDEN, "T", began=float(second), now=second + 1.9)
        assert not seen.proof
        assert seen.is_suspect
    seen.saw(WARDEN, "T", began=10.0, now=10.1)
    assert "pid 7 is stopped" in seen.proof


def test_one_look_is_never_enough() -> None:
    seen = Silence()
    seen.saw(WARDEN, "T", began=0.0, now=budgets.CONTROL_ANSWER)
    assert not seen.proof


@pytest.mark.parametrize("state", ["S", "R", "D", "t", "Z", ""])
def test_a_warden_in_another_state_is_not_hung_however_long_it_is_silent(state: str) -> None:
    seen = Silence()
    for second in range(0, 100, 2):
        seen.saw(WARDEN, state, began=float(second), now=second + 2.0)
    assert not seen.proof
    assert not seen.is_suspect


looks = st.lists(
    st.tuples(st.sampled_from([WARDEN, SUCCESSOR, None]), st.sampled_from("TTTSD"), st.booleans(), st.floats(0, 6)),
    max_size=12,
)


@given(looks)
@example([(WARDEN, "T", False, 6.0), (SUCCESSOR, "T", False, 6.0)])
@example([(WARDEN, "T", False, 6.0), (None, "T", False, 1.0), (WARDEN, "T", False, 6.0)])
@example([(WARDEN, "T", False, 6.0), (WARDEN, "T", True, 1.0), (WARDEN, "T", False, 6.0)])
def test_an_answer_another_state_or_another_warden_begins_the_proof_anew(
    looks: list[tuple[Identity | None, str, bool, float]],
) -> None:
    """Against a plain reading: the last looks in a row that were silent, of one warden, and found it stopped."""
    seen, now, since, of = Silence(), 0.0, None, None
    for warden, state, answered, took in looks:
        began, now = now, now + took
        if answered:
            seen.broken()
            since = None
            continue
        seen.saw(warden, state, began=began, now=now)
        if warden is None or state != "T":
            since = None
        elif since is None or warden != of:
            since = began
        of = warden
        assert bool(seen.proof) == (since is not None and now - since >= budgets.WARDEN_SILENCE)


@pytest.mark.process
def test_only_that_very_warden_is_ended_and_only_while_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(60)"],
                             stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert child.stdout is not None
        child.stdout.readline()
        who = identity.of(child.pid)
        assert who is not None
        slot = Slot(Path("/nowhere"))
        found: list[Identity | None] = [who]
        monkeypatch.setattr(stopping, "find_warden", lambda _: found[0])
        silence.end(slot, who)  # it goes on
        assert child.poll() is None
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: identity.state_of(child.pid) == "T", what="it is stopped")
        silence.end(slot, who._replace(ticks=who.ticks + 1))  # another one
        found[0] = who._replace(ticks=who.ticks + 1)
        silence.end(slot, who)  # no longer the warden
        found[0] = None
        silence.end(slot, who)  # of another namespace, say: it cannot be found
        assert identity.state_of(child.pid) == "T"
        found[0] = who
        silence.end(slot, who)
        assert child.wait(10) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
