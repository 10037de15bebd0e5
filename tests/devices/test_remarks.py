"""What the doctor says of memory, from figures and from files of /proc."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from attrs import evolve

from supervisor.devices import fragmentation, host
from supervisor.devices.remarks import Remark, remarks
from supervisor.devices.shape import Device, Figure, Holding, Survey

if TYPE_CHECKING:
    from tests.devices.conftest import FakeRoot

GIB = 2**30
CARD = Device("GPU-a", "", "NVIDIA Fake 24", 0, Figure(24 * GIB, "NVML"), Figure(10 * GIB, "NVML"))


def said(
    root: FakeRoot, *devices: Device, blocks: int | None = 20_000, memlock: int | None = None
) -> dict[str, Remark]:
    memory = evolve(host.read(str(root)), memlock=memlock)
    found = Survey(devices, memory, reason="" if devices else "there is no NVIDIA driver")
    return {one.about: one for one in remarks(found, blocks, 3)}


@pytest.mark.parametrize(("blocks", "warns"), [(20_000, False), (500, True), (0, True)])
def test_the_free_blocks_are_counted_and_too_few_are_a_warning__halogen_33(
    root: FakeRoot, blocks: int, warns: bool
) -> None:
    """Orders 9 and 10 of 4 KiB pages are blocks of 2 and 4 MiB. 2 * a + b blocks, spread over two zones."""
    pairs = blocks // 4
    rest = blocks - 2 * pairs
    small = " ".join(["9999"] * 9)
    text = f"Node 0, zone    DMA32 {small} {rest} 0\nNode 0, zone   Normal {small} 0 {pairs}\n"
    assert fragmentation.count_blocks(text, 4096) == blocks
    found = said(root, blocks=fragmentation.count_blocks(text, 4096))["contiguous memory"]
    assert f"{blocks} free blocks" in found.text
    assert "3 waits" in found.text
    assert bool(found.next_step) is warns


def test_stalls_during_a_load_are_a_difference_of_the_kernels_count__halogen_33(root: FakeRoot) -> None:
    root.put("/proc/vmstat", "nr_free_pages 5\ncompact_stall 40\ncompact_fail 1\n")
    before = fragmentation.compaction_stalls(str(root))
    root.put("/proc/vmstat", "compact_stall 52\n")
    assert fragmentation.stalls_text(before, fragmentation.compaction_stalls(str(root))) == "compaction stalls +12"
    assert fragmentation.stalls_text(before, before) == ""
    root.put("/proc/vmstat", "nr_free_pages 5\n")
    assert fragmentation.stalls_text(before, fragmentation.compaction_stalls(str(root))) == ""


def test_pages_of_another_size_and_a_file_of_another_format() -> None:
    """A page of 64 KiB: 2 MiB are order 5."""
    assert fragmentation.count_blocks("Node 0, zone Normal 1 1 1 1 1 1 1\n", 65536) == 1 + 2
    assert fragmentation.count_blocks("nothing of it\n", 4096) is None
    assert fragmentation.blocks_in(fragmentation.free_blocks("/nowhere")) is None
    assert fragmentation.blocks_in(fragmentation.free_blocks()) is not None


def test_a_limit_of_locked_memory_below_what_experts_need_is_told__ollama_11772(root: FakeRoot) -> None:
    assert said(root, CARD, memlock=8 * 2**20)["locked memory"].next_step
    assert not said(root, CARD, memlock=64 * GIB)["locked memory"].next_step
    assert not said(root, memlock=8 * 2**20)["locked memory"].next_step  # nothing is pinned beside no device
    assert "locked memory" not in said(root, CARD)


def test_of_each_device_it_says_what_is_known_and_what_is_not(root: FakeRoot) -> None:
    held = evolve(CARD, holdings=(Holding(7, 4 * GIB, True), Holding(8, 10 * GIB, False)))
    text = said(root, held)["device 0"].text
    assert "10.0 GiB of 24.0 GiB free" in text
    assert "unattributed: 10.0 GiB" in text
    unknown = evolve(CARD, total=Figure.unknown(""), free=Figure.unknown(""), why_unknown="it is in MIG mode")
    found = said(root, unknown)["device 0"]
    assert "unknown, it is in MIG mode" in found.text
    assert found.next_step
    assert "who holds the rest is unknown" in said(root, evolve(CARD, why_no_holdings="WSL"))["device 0"].text
    assert said(root)["devices"] == Remark("devices", "none: there is no NVIDIA driver")
