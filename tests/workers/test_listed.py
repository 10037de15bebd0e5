"""`llama-server --list-devices`, read."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor.devices.shape import Device, Figure, HostMemory, Survey
from supervisor.errors import QueenrightError
from tests.support import alive, wait_until
from workers import engines, listed, outside

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
MIB = 2**20
HOST = HostMemory(Figure(64 * GIB, "MemTotal"), Figure(50 * GIB, "MemAvailable"), "", Figure(50 * GIB, ""))
TWO = """Available devices:
  CUDA0: NVIDIA GeForce RTX 4090 (24564 MiB, 23000 MiB free)
  CUDA1: NVIDIA RTX A6000 (48000 MiB, 47000 MiB free)
  Vulkan0: NVIDIA GeForce RTX 4090 (24564 MiB, 23000 MiB free)
"""
APU = """ggml_vulkan: Found 2 Vulkan devices:
ggml_vulkan: 0 = AMD Radeon Graphics (RADV GFX1151) (radv) | uma: 1 | fp16: 1 | bf16: 0 | warp size: 64
ggml_vulkan: 1 = llvmpipe (LLVM 19.1.7, 256 bits) (llvmpipe) | uma: 1 | fp16: 1 | bf16: 0 | warp size: 8
Available devices:
  Vulkan0: AMD Radeon Graphics (RADV GFX1151) (98304 MiB, 90000 MiB free)
  Vulkan1: llvmpipe (LLVM 19.1.7, 256 bits) (64000 MiB, 64000 MiB free)
"""


def test_one_backend_counts_and_each_card_has_its_name_there() -> None:
    found = listed.parse(TWO, HOST)
    assert found is not None
    assert [(one.engine_name, one.name, one.free.bytes) for one in found] == [
        ("CUDA0", "NVIDIA GeForce RTX 4090", 23000 * MIB),
        ("CUDA1", "NVIDIA RTX A6000", 47000 * MIB),
    ]


def test_a_processors_graphics_share_the_hosts_memory_and_a_software_device_is_none() -> None:
    found = listed.parse(APU, HOST)
    assert found is not None
    assert [(one.engine_name, one.unified, one.total.bytes, one.free.bytes) for one in found] == [
        ("Vulkan0", True, 64 * GIB, 50 * GIB)
    ]


def test_no_list_is_not_an_empty_list() -> None:
    assert listed.parse("error: invalid argument: --list-devices", HOST) is None
    assert listed.parse(None, HOST) is None
    assert listed.parse("Available devices:\n", HOST) == ()


def test_nvml_and_the_servers_list_are_joined_by_order_and_name() -> None:
    cards = tuple(
        Device(uuid, "", name, index, Figure(1, ""), Figure(1, ""))
        for index, (uuid, name) in enumerate([("GPU-a", "NVIDIA GeForce RTX 4090"), ("GPU-b", "NVIDIA RTX A6000")])
    )
    theirs = listed.parse(TWO, HOST)
    assert [one.engine_name for one in listed.joined(Survey(cards, HOST), theirs).devices] == ["CUDA0", "CUDA1"]
    assert [one.engine_name for one in listed.joined(Survey(cards[::-1], HOST), theirs).devices] == ["", ""]
    assert listed.joined(Survey((), HOST), theirs).devices == theirs
    assert listed.joined(Survey(cards, HOST), None).devices == cards


def test_a_plan_sees_what_its_server_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was built for the processor is planned for it, whatever cards there are; by plan as by a start."""
    from workers.planner.shapes import machine_of

    card = Device("GPU-1", "", "a card", 0, Figure(24 << 30, "NVML"), Figure(24 << 30, "NVML"))
    here = Survey((card,), HOST)
    monkeypatch.setattr(listed, "ask", lambda *_: "Available devices:\n  (none)\n")
    assert machine_of(listed.as_seen_by(["llama-server"], here)).cards == ()
    monkeypatch.setattr(listed, "ask", lambda *_: None)
    assert len(machine_of(listed.as_seen_by(["llama-server"], here)).cards) == 1, (
        "one that cannot be asked tells nothing"
    )
    monkeypatch.setattr(listed, "ask", lambda *_: 1 / 0)
    assert machine_of(listed.as_seen_by([], here)).cards, "there is nobody to ask"


def test_cards_that_a_group_does_not_show_are_not_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cards of one make, of which the server is shown the second one: a plan over both would put all on that one."""

    def card(number: int) -> Device:
        figure = Figure(24 * GIB, "NVML")
        return Device(f"GPU-{number}a", "", "NVIDIA RTX A6000", number, figure, figure)

    here = Survey((card(0), card(1)), HOST)
    one = "Available devices:\n  {}0: NVIDIA RTX A6000 (48000 MiB, 47000 MiB free)\n"
    both = one + "  {}1: NVIDIA RTX A6000 (48000 MiB, 47000 MiB free)\n"

    def seen(text: str, shown: str | None) -> list[tuple[str, str]]:
        monkeypatch.setattr(listed, "ask", lambda *_: text)
        environment = {} if shown is None else {listed.SHOWN: shown}
        devices = listed.as_seen_by(["llama-server"], here, environment).devices
        return [(one.uuid, one.engine_name) for one in devices]

    assert seen(one.format("CUDA"), "1") == seen(one.format("CUDA"), "GPU-1") == [("GPU-1a", "CUDA0")]
    assert seen(both.format("CUDA", "CUDA"), "1,0") == [("GPU-1a", "CUDA0"), ("GPU-0a", "CUDA1")]
    assert seen(both.format("CUDA", "CUDA"), None) == [("GPU-0a", "CUDA0"), ("GPU-1a", "CUDA1")]
    vulkan = both.format("Vulkan", "Vulkan")
    assert seen(vulkan, "1") == [("GPU-0a", "Vulkan0"), ("GPU-1a", "Vulkan1")], "it does not go by that"
    assert [name for _, name in seen(one.format("CUDA"), "7")] == ["", ""], "names stay open"


@pytest.mark.process
def test_it_is_asked_in_the_environment_of_a_server_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell's CUDA_VISIBLE_DEVICES is no server's, and the order of cards is set for each of them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("LD_PRELOAD_NOT", "x")
    words = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_PRELOAD_NOT", "ADDED"]
    code = f"import os; print([os.environ.get(name) for name in {words}])"
    assert listed.ask([sys.executable, "-c", code], {"ADDED": "1"}) == "\n[None, 'PCI_BUS_ID', None, '1']\n"


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
@pytest.mark.process
def test_one_that_does_not_even_die_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stuck in a driver, a process does not hear SIGKILL, and what it has started holds its pipes: who plans has the book of
    promises, for which everybody waits."""
    script = tmp_path / "llama-server"
    script.write_text("#!/bin/sh\nsleep 600 & echo $! > " + str(tmp_path / "child") + "\nwait\n")
    script.chmod(0o755)
    assert listed.ask([str(script)], limit=0.5) is None
    wait_until(lambda: not alive(int((tmp_path / "child").read_text())))
    ended: list[int] = []
    monkeypatch.setattr("os.killpg", lambda pid, number: ended.append(pid))
    monkeypatch.setattr(outside, "END_LIMIT", 0.1)
    assert listed.ask([sys.executable, "-c", "__import__('time').sleep(3)"], limit=0.2) is None
    assert os.waitpid(ended[0], os.WNOHANG) == (0, 0), "it still runs"
    os.kill(ended[0], signal.SIGKILL)
    os.waitpid(ended[0], 0)


@pytest.mark.process
def test_a_server_that_fails_or_hangs_is_no_list() -> None:
    assert listed.ask([sys.executable, "-c", "raise SystemExit(1)"]) is None
    assert listed.ask([sys.executable, "-c", "__import__('signal').pause()"], limit=0.3) is None
    assert listed.ask(["/nowhere/llama-server"]) is None


@pytest.mark.process
@pytest.mark.engine
def test_the_real_server_speaks_so() -> None:
    try:
        server = engines.find_llama_server()
    except QueenrightError as error:
        pytest.skip(str(error))
    found = listed.parse(listed.ask(server.argv), HOST)
    assert found is not None
