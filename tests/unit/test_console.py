"""The terminal of `queenright run`: lines reach it, and nothing that it does can stop the keeper."""

from __future__ import annotations

import os
import re
import threading
import time
from typing import TYPE_CHECKING

import pytest

from supervisor import console
from supervisor.budgets import CONSOLE_DRAIN
from supervisor.console import BACKLOG, Console
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 20.0
"""Seconds: only a hang takes so long."""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The reading end of what a console writes to."""
    reading, writing = os.pipe()
    monkeypatch.setattr(console, "CONSOLE_FD", writing)
    before = set(threading.enumerate())
    yield reading
    os.set_blocking(reading, False)
    for thread in set(threading.enumerate()) - before:  # it may stand in a write still: let it go
        wait_until(lambda: _is_idle(reading), within=LIMIT, what=f"{thread.name} to be done")
    os.close(reading)
    os.close(writing)


def _is_idle(reading: int) -> bool:
    try:
        return not os.read(reading, 1 << 20)
    except BlockingIOError:
        return True


def test_lines_come_out_in_order_with_the_time(terminal: int) -> None:
    spoken = Console(True)
    for text in ("chat: starting", "é\x1b[2J\n\u2028\udcff", "chat: running"):
        spoken.say(text)
    spoken.drain()
    lines = os.read(terminal, 4096).decode().splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines] == [
        "chat: starting",
        "é?[2J???",
        "chat: running",
    ]
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)


def test_a_terminal_that_nobody_reads_never_blocks(terminal: int) -> None:
    """As after Ctrl-S: the pipe is full, its writer stands, and the keeper goes on."""
    spoken = Console(True)

    def talk() -> None:
        for _ in range(BACKLOG * 10):
            spoken.say("x" * 1024)

    talking = threading.Thread(target=talk)
    talking.start()
    talking.join(LIMIT)
    assert not talking.is_alive()
    began = time.monotonic()
    spoken.drain()
    assert CONSOLE_DRAIN * 0.9 <= time.monotonic() - began < LIMIT, "the end does not wait for it for long either"
    os.set_blocking(terminal, False)
    read = 0
    while spoken._lines.unfinished_tasks:
        try:
            read += len(os.read(terminal, 1 << 20))
        except BlockingIOError:
            time.sleep(0.001)
    assert read < (BACKLOG + 100) * 1100, "what did not fit was dropped"


def test_a_terminal_that_went_away_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setattr(console, "CONSOLE_FD", writing)
    spoken = Console(True)
    os.close(reading)
    for _ in range(3):
        spoken.say("nobody hears this")
    spoken.drain()
    assert not spoken._lines.unfinished_tasks
    os.close(writing)


def test_the_descriptor_is_not_passed_on(terminal: int) -> None:
    os.set_inheritable(console.CONSOLE_FD, True)
    Console(True)
    assert not os.get_inheritable(console.CONSOLE_FD)


def test_without_a_terminal_nothing_is_said_and_no_thread_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "CONSOLE_FD", -1)
    before = threading.active_count()
    silent = Console(False)
    silent.say("nothing")
    silent.drain()
    assert threading.active_count() == before
