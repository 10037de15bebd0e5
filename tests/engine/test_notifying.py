"""A whole engine under a service manager, of which there is the socket alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.fronts import PATIENCE

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.engine


@pytest.mark.long
def test_the_manager_hears_of_a_start_and_a_stop_from_the_warden_alone(place: Place) -> None:
    name = f"queenright-test-manager-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        manager.bind(f"\0{name}")
        manager.settimeout(PATIENCE)
        place.prefix = ["env", f"NOTIFY_SOCKET=@{name}", "WATCHDOG_USEC=2000000"]
        place.configure()
        place.run()
        heard: list[str] = []
        senders: set[int] = set()

        def until(word: str) -> None:
            while word not in heard:
                data, rights, _, _ = manager.recvmsg(4096, 256)
                senders.update(int.from_bytes(fact[:4], "little") for _, _, fact in rights)
                heard.extend(data.decode().splitlines())

        until("READY=1")
        until("WATCHDOG=1")
        snapshot = place.snapshot()
        assert senders == {snapshot["warden"]["pid"]}
        pids = [snapshot["keeper"]["pid"], *(group["proxy"]["pid"] for group in snapshot["groups"])]
        for pid in pids:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"NOTIFY_SOCKET" not in environment
            assert b"WATCHDOG_" not in environment
        assert place.cli("stop").returncode == 0
        until("STOPPING=1")
