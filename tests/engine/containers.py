"""A fake container engine for a test: its daemon, its command line, and what of its containers lives."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support import ROOT, alive

if TYPE_CHECKING:
    from pathlib import Path

FAKE = ROOT / "tests" / "fakes" / "container_engine.py"
PAYLOAD = ROOT / "tests" / "fakes" / "contained.py"


class Containers:
    """The daemon is a child of the test and not of the engine, as docker's is: what it runs is in nobody's sweep."""

    def __init__(self, home: Path, name: str = "podman") -> None:
        self.home, self.socket, self.log = home, home / "containers.sock", home / "containers.log"
        self.program = home / name
        self.program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {FAKE} cli {self.socket} "$@"\n')
        self.program.chmod(0o755)
        self.daemon = subprocess.Popen(
            [sys.executable, "-I", "-S", str(FAKE), "daemon", str(self.socket), str(self.log), str(PAYLOAD)],
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.daemon.stdout is not None
        assert self.daemon.stdout.readline() == b"ready\n"

    def close(self) -> None:
        """End it, and all that it runs."""
        self.daemon.communicate(timeout=30)

    def __call__(self, *words: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            [str(self.program), *words],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout

    def did(self, what: str) -> list[list[str]]:
        """(name, id, pid) of each container that this was done to, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[1:] for line in lines if line.split()[0] == what]

    def living(self) -> list[int]:
        """First processes of containers, and what shares their process group."""
        started = {int(pid) for _, _, pid in self.did("run")}
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if alive(pid) and _group(pid) in started
        ]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
