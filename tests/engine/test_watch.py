"""`queenright status --watch`: over the ends and beginnings of engines, on a terminal and into a pipe."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import termios
from typing import TYPE_CHECKING

import pytest

from tests.engine.terminal import Running
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process


def test_a_watch_goes_on_over_the_ends_of_engines_and_ends_with_ctrl_c(place: Place) -> None:
    screen = Running(place, place.command("status", "--watch"))
    place.running.append(screen)
    piped = place.home / "piped"
    with piped.open("wb") as output:
        pipe = subprocess.Popen(
            place.command("status", "--watch"), stdout=output, stderr=output, cwd=place.home, env=place.environment
        )
    try:
        screen.wait_said("engine    down")
        front = place.member("user")
        screen.wait_said("engine    running")
        screen.wait_said(front.name)
        fcntl.ioctl(screen._master, termios.TIOCSWINSZ, struct.pack("4H", 10, 40, 0, 0))
        assert place.cli("stop").returncode == 0
        place.member("again")
        screen.wait_said("again-")
        wait_until(lambda: piped.read_text().count("engine: running") == 2, within=30, what="both engines were told of")
        screen.type(b"\x03")
        assert screen.wait() == 130
        assert screen.said().count("\x1b[?1049l") == 1, "the terminal has its own screen back"
        assert "Traceback" not in screen.said()
        pipe.send_signal(signal.SIGINT)
        assert pipe.wait(30) == 130
    finally:
        if pipe.poll() is None:
            pipe.kill()
            pipe.wait()
    said = [line[9:] for line in piped.read_text().splitlines()]
    assert said[0] == "engine: down: no engine"
    assert "server chat: ready" in said
    assert any(line.startswith(f"member {front.name} (pid {front.pid}) uses it") for line in said)
    assert not any("\x1b" in line for line in said)


def test_a_terminal_that_cannot_be_drawn_on_gets_lines(place: Place) -> None:
    words = ["env", "TERM=dumb", *place.command("status", "--watch")]
    terminal = Running(place, words)
    place.running.append(terminal)
    terminal.wait_said("engine: down: no engine")
    terminal.type(b"\x03")
    assert terminal.wait() == 130
    assert "\x1b" not in terminal.said()


def test_a_reader_that_leaves_ends_a_watch_into_a_pipe(place: Place) -> None:
    read, write = os.pipe()
    pipe = subprocess.Popen(
        place.command("status", "--watch", "--json"), stdout=write, cwd=place.home, env=place.environment
    )
    os.close(write)
    try:
        assert b'"state": "down"' in os.read(read, 65536)
        os.close(read)
        place.member()
        assert pipe.wait(60) == 0
    finally:
        if pipe.poll() is None:
            pipe.kill()
            pipe.wait()
