"""What a service manager gives us, and what it is told."""

from __future__ import annotations

import pytest

from supervisor import budgets, notifying, service
from supervisor.environment import SCRUBBED, clean
from supervisor.errors import UsageError
from supervisor.notifying import Seen, Teller

LOADING = Seen(settled=False, stopping="", status="starting", contract="a")
READY = LOADING._replace(settled=True, status="running")


def extensions(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("EXTEND_TIMEOUT_USEC=")]


def test_systemd_5868_a_load_longer_than_the_start_limit_is_given_the_time_it_takes() -> None:
    """A manager that gave up 20 s after the last word, and a load of 60 s."""
    teller, ends = Teller(0), 20.0
    for second in range(60):
        lines = teller.lines(LOADING._replace(status=f"chat loading ({second} %)"), float(second))
        assert "READY=1" not in lines
        assert f"STATUS=chat loading ({second} %)" in lines
        for line in extensions(lines):
            ends = second + int(line.partition("=")[2]) / 1_000_000
        assert second < ends
    assert "READY=1" in teller.lines(READY, 60.0)
    assert not extensions(teller.lines(READY, 66.0))


def test_nothing_is_said_twice() -> None:
    teller = Teller(0)
    assert teller.lines(READY, 0.0) == ["READY=1", "STATUS=running"]
    assert teller.lines(READY, 1.0) == []


def test_a_changed_configuration_is_a_reload_that_ends() -> None:
    teller = Teller(0)
    teller.lines(READY, 0.0)
    lines = teller.lines(LOADING._replace(contract="b"), 12.5)
    assert lines[:2] == ["RELOADING=1", "MONOTONIC_USEC=12500000"]
    assert "READY=1" in teller.lines(READY._replace(contract="b"), 13.0)
    assert teller.lines(READY._replace(contract="c"), 14.0)[0] == "RELOADING=1"  # READY never in the same datagram
    assert teller.lines(READY._replace(contract="c"), 14.1) == ["READY=1"]


def test_a_stop_is_said_once_and_given_its_time() -> None:
    teller = Teller(0)
    teller.lines(READY, 0.0)
    stopping = READY._replace(stopping="SIGTERM", status="stopping", contract="b")
    whole = round((budgets.WARDEN_STOP + budgets.SWEEP_LIMIT) * 1_000_000)
    assert teller.lines(stopping, 1.0) == ["STOPPING=1", f"EXTEND_TIMEOUT_USEC={whole}", "STATUS=stopping"]
    assert teller.lines(stopping, 9.0) == []


def test_the_watchdog_is_fed_twice_in_its_time_and_never_where_there_is_none() -> None:
    teller = Teller(4.0)
    assert teller.pause_s == 2.0
    fed = [now for now in range(10) if "WATCHDOG=1" in teller.lines(READY, float(now))]
    assert fed == [0, 2, 4, 6, 8]
    assert "WATCHDOG=1" not in Teller(0).lines(READY, 0.0)


def test_the_status_is_one_line_and_says_how_far_a_load_is() -> None:
    group = {"name": "chat", "state": "loading", "servers": [{"loading": {"bytes": 1, "of": 4}}]}
    assert notifying.status("starting", "", [group], "") == "starting; chat loading (25 % loaded)"
    assert "\n" not in notifying.status("failed", "two\nlines", [group], "http://127.0.0.1:1")


def test_what_the_manager_gave_this_process() -> None:
    whole = {
        "NOTIFY_SOCKET": "@a",
        "WATCHDOG_USEC": "2500000",
        "WATCHDOG_PID": "7",
        "LISTEN_FDS": "1",
        "LISTEN_PID": "7",
    }
    assert service.given(whole, 7) == service.Service("\0a", 2.5, 3)
    assert service.given(whole, 8) == service.Service("\0a", 0.0, None)
    assert service.given({}, 7) == service.Service()
    assert (
        service.given({"NOTIFY_SOCKET": "vsock:2:3", "WATCHDOG_USEC": "x", "LISTEN_FDS": "1"}, 7) == service.Service()
    )
    with pytest.raises(UsageError, match="passes 2 sockets"):
        service.given(whole | {"LISTEN_FDS": "2"}, 7)


def test_systemd_25961_none_of_it_goes_to_keeper_or_engine() -> None:
    given = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}
    assert given <= set(SCRUBBED)
    assert clean(dict.fromkeys(given, "1")) == {}
    assert service.watchdog_of(["--console", "--notify=2.5"]) == 2.5
    assert service.watchdog_of(["--console"]) is None
