"""The time limits fit into one another, and a change that breaks this is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from supervisor import budgets


def test_they_fit_as_they_are() -> None:
    budgets.check()


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("UNLOAD_LIMIT", 3.0, "UNLOAD_LIMIT < GROUP_GRACE"),
        ("GROUP_GRACE", 4.0, "GROUP_GRACE + SWEEP_LIMIT < GROUP_STOP"),
        ("SWEEP_LIMIT", 3.0, "GROUP_GRACE + SWEEP_LIMIT < GROUP_STOP"),
        ("GROUP_STOP", 8.0, "GROUP_STOP + UNDO_LIMIT < TEARDOWN"),
        ("TEARDOWN", 9.5, "TEARDOWN < WARDEN_STOP"),
        ("SWEEP_LIMIT", 2.0, "WARDEN_STOP + SWEEP_LIMIT < 10"),
        ("WARDEN_STOP", 15.0, "WARDEN_STOP < HANDOFF_WAIT"),
        ("CONTROL_WAIT", 10.1, "3 * CONTROL_WAIT <= BUILD_LOCK_WAIT"),
        ("MEMBER_POLL", 0.5, "MEMBER_POLL * 2 < 1"),
        ("READY_POLL", 0.25, "READY_POLL < READY_POLL_MOST"),
        ("RESTART_DELAYS", (0.0, 2.0, 1.0), "RESTART_DELAYS grow"),
        ("KEEPER_DELAYS", (1.0, 0.0), "KEEPER_DELAYS grow"),
        ("KEEPER_BEAT", 2.5, "4 * KEEPER_BEAT < KEEPER_SILENCE"),
        ("KEEPER_SILENCE", 13.0, "KEEPER_SILENCE + 2 * KEEPER_LOOK < HANDOFF_WAIT"),
    ],
)
def test_a_limit_that_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, rule: str
) -> None:
    monkeypatch.setattr(budgets, name, value)
    with pytest.raises(ValueError, match="time limits do not fit into one another") as raised:
        budgets.check()
    assert rule in str(raised.value)


def test_every_broken_rule_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "TEARDOWN", 20.0)
    monkeypatch.setattr(budgets, "MEMBER_POLL", 0.5)
    with pytest.raises(ValueError, match=r"TEARDOWN < WARDEN_STOP; .*MEMBER_POLL"):
        budgets.check()


@pytest.mark.process
def test_the_check_runs_without_asserts_too() -> None:
    """`python -O` strips them."""
    script = "from supervisor import budgets; budgets.GROUP_STOP = 99; budgets.check()"
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "GROUP_STOP + UNDO_LIMIT < TEARDOWN" in done.stderr
