"""The leader of an attached group: it watches a server that somebody else runs, and is up while that is.

    python -I -S .../attachment.py URL HEALTH PORT SILENCE UNIT KEY_FILE

It waits until URL answers, for as long as that takes; then it listens on its PORT, which is how the keeper sees that the
group is up, and answers there whether the last look went well. It ends, with status 69, once the server has refused
MISSES connections in a row, or has given no answer for SILENCE seconds: the group is then down, and the next leader
waits again. It sends nothing but GET requests, and no signal to anybody.

With a UNIT of systemd ("" for none) it is up only while that is active, whoever answers at URL, and it ends at once when the
unit does, with systemd's word for how, or when the unit was started anew. What systemd does not say counts for nothing.

Standard library only.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

EXIT_LOST = 69
INTERVAL = 1.0  # budget: between two looks, as the keeper looks at servers of its own
ANSWER = 5.0  # budget: for one answer; a Python server may hold its loop for seconds
MISSES = 3
"""Refused connections in a row: one may be a full backlog, or a server that is exchanged for a newer one."""


UNIT_LOOK = 5.0  # budget: between two questions to systemd while all is well: each takes 5 ms of a process
UNIT_ANSWER = 5.0  # budget: one answer of systemctl; a manager that reloads is silent for a second or two
PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "MainPID", "InvocationID")
UP = ("active", "reloading", "refreshing")


class Unit:
    """A unit of systemd, of the user's manager or, where that does not have it, of the system's."""

    def __init__(self, name: str) -> None:
        self.name, self.invocation = name, ""
        self._manager = ""
        """Whose it is, once it was seen there."""
        self._asked = -UNIT_LOOK

    def forget(self) -> None:
        """The next one that is seen may be another's, or started anew."""
        self.invocation = self._manager = ""

    def trouble(self, *, often: bool) -> str:
        """Why it is not up, "" where it is, or where that cannot be told. Not `often`: at most every UNIT_LOOK."""
        now = time.monotonic()
        if not self.name or (not often and now - self._asked < UNIT_LOOK):
            return ""
        self._asked = now
        found = self._look()
        if not found:
            return ""
        if found.get("LoadState") == "not-found":
            return f"there is no unit {self.name}"
        if found.get("ActiveState") not in UP:
            why = f", {found['Result']}" if found.get("Result", "success") != "success" else ""
            return f"{self.name} is {found.get('ActiveState')} ({found.get('SubState')}{why})"
        was, self.invocation = self.invocation, found.get("InvocationID", "")
        if was and self.invocation not in ("", was):
            return f"{self.name} was started anew (pid {found.get('MainPID')})"
        return ""

    def _look(self) -> dict[str, str] | None:
        """None where it cannot be told: whose it is may be silent for now, and what the other says of it means nothing."""
        if self._manager:
            return self._show(self._manager)
        for manager in ("--user", "--system"):
            found = self._show(manager)
            if found is not None and found.get("LoadState") != "not-found":
                self._manager = manager
                return found
        return found

    def _show(self, manager: str) -> dict[str, str] | None:
        words = ["systemctl", manager, "show", "--property", ",".join(PROPERTIES), "--", self.name]
        around = dict(os.environ)
        around.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")  # how systemctl finds the user's manager
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=UNIT_ANSWER, env=around, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode != 0:
            return None
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        return {key: value for key, equals, value in (line.partition("=") for line in lines) if equals}


class Watch:
    """What is known of the server. `state` is in words: "" while it is well."""

    def __init__(self, url: str, page: str, key: str, unit: Unit) -> None:
        self.unit = unit
        parts = urlsplit(url)
        self.host, self.port, self.page = parts.hostname or "127.0.0.1", parts.port or 80, page
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.state = "it was not asked yet"

    def look(self) -> tuple[bool, str]:
        """(whether somebody is there, what is not well with it)."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ANSWER)
        try:
            connection.request("GET", self.page, headers=self.headers)
            status = connection.getresponse().status
        except TimeoutError:
            return True, "it does not answer"
        except (OSError, http.client.HTTPException, ValueError) as error:
            return False, str(error) or type(error).__name__
        finally:
            connection.close()
        return True, "" if 200 <= status < 300 else f"it answers {self.page} with status {status}"


def say(text: str) -> None:
    """One line for the group's log."""
    sys.stderr.write(f"queenright attachment: {text}\n")
    sys.stderr.flush()


def wait_up(watch: Watch, url: str) -> None:
    """Until it is well."""
    said = ""
    while True:
        watch.unit.forget()
        watch.state = watch.unit.trouble(often=True) or watch.look()[1]
        if not watch.state:
            say(f"{url} answers")
            return
        if watch.state != said:
            say(f"waiting for {url}: {watch.state}")
            said = watch.state
        time.sleep(INTERVAL)  # noqa: TID251 - a program of its own, with nothing else to do


def wait_lost(watch: Watch, silence: float) -> str:
    """Until it is lost: why."""
    misses, heard = 0, time.monotonic()
    while True:
        time.sleep(INTERVAL)  # noqa: TID251 - as above
        there, watch.state = watch.look()
        misses = 0 if there else misses + 1
        if there and watch.state != "it does not answer":
            heard = time.monotonic()
        if trouble := watch.unit.trouble(often=bool(watch.state)):
            watch.state = trouble
            return trouble
        if misses >= MISSES:
            return f"{watch.state}, {misses} times in a row"
        if there and time.monotonic() - heard > silence:
            return f"{watch.state}, for {time.monotonic() - heard:.0f} s"


def answer(listener: socket.socket, watch: Watch) -> None:
    """Say to whoever asks whether the server is well."""
    while True:
        asker, _ = listener.accept()
        with asker:
            try:
                asker.settimeout(ANSWER)
                asker.recv(4096)
                status = "503 Service Unavailable" if watch.state else "200 OK"
                body = watch.state or "ok"
                head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body.encode())}\r\nConnection: close\r\n\r\n"
                asker.sendall((head + body).encode())
            except OSError:
                continue


def main(words: list[str]) -> int:
    """Exit status."""
    url, page, port, silence, unit, key_file = words
    key = ""
    if key_file:
        with open(key_file, encoding="ascii") as file:
            key = file.read().strip()
    watch = Watch(url, page, key, Unit(unit))
    wait_up(watch, url)
    listener = socket.create_server(("127.0.0.1", int(port)))
    threading.Thread(target=answer, args=(listener, watch), daemon=True).start()
    say(f"{url} is lost: {wait_lost(watch, float(silence))}")
    return EXIT_LOST


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
