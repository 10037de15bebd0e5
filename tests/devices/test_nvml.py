"""What NVML says, and what is made of it: a fake library, loaded by the real pynvml in the process that asks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from supervisor.devices import survey
from supervisor.devices.shape import DeviceKind
from tests.fakes.nvml import (
    DRIVER_NOT_LOADED,
    GIB,
    GPU_IS_LOST,
    MIB,
    NO_PERMISSION,
    NOT_SUPPORTED,
    FakeNvml,
    Gpu,
)

if TYPE_CHECKING:
    from tests.devices.conftest import FakeRoot

pytestmark = pytest.mark.process

LONG_GONE = 4_194_304 + 1
"""Above the largest pid there can be (proc_sys_kernel(5), pid_max)."""


def a_card(uuid: str = "GPU-a", **more: object) -> Gpu:
    return Gpu(uuid, **({"memory": (24 * GIB, 20 * GIB)} | more))  # type: ignore[arg-type]


def test_a_card_with_its_memory_and_who_holds_it(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    fake_nvml.say(a_card(name="NVIDIA GeForce RTX 4090", processes=[(os.getpid(), 3 * GIB)]))
    found = survey.survey(str(root))
    (card,) = found.devices
    assert (card.uuid, card.pci, card.name) == ("GPU-a", "00000000:01:00.0", "NVIDIA GeForce RTX 4090")
    assert (card.total.bytes, card.free.bytes, card.total.source) == (24 * GIB, 20 * GIB, "NVML")
    assert not card.unified
    assert card.holdings[0].is_here
    assert card.unattributed.bytes == GIB
    assert (found.driver, found.reason, found.incomplete) == ("580.95.05", "", False)
    assert fake_nvml.shutdowns == 1


def test_without_a_driver_the_list_is_empty_with_its_reason__gpustat_90(
    root: FakeRoot,
) -> None:
    """The library that the fake stands for is not there at all: no import fails, no traceback is shown."""
    found = survey.survey(str(root))
    if found.devices:
        pytest.skip("this machine has an NVIDIA device")
    assert "driver" in found.reason
    assert not found.incomplete
    # Nothing that only looks imports the library: a machine without it is not even asked.
    code = "import sys, supervisor.devices.survey, supervisor.checks; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_driver_that_is_not_loaded_is_no_device(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    fake_nvml.say(init=DRIVER_NOT_LOADED)
    found = survey.survey(str(root))
    assert (found.devices, found.incomplete) == ((), False)
    assert "not loaded" in found.reason


def test_a_driver_that_hangs_is_left_and_is_no_machine_without_devices(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    fake_nvml.say(a_card(), hang=True)
    before = time.monotonic()
    found = survey.survey(str(root), limit=0.5)
    assert time.monotonic() - before < 5
    assert (found.devices, found.incomplete) == ((), True)
    assert "hangs" in found.reason


def test_an_error_that_says_nothing_leaves_it_open(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    fake_nvml.say(init=999)
    found = survey.survey(str(root))
    assert (found.incomplete, found.reason) == (True, "NVML says UNKNOWN")


def test_a_device_without_memory_figures_shares_the_hosts__dra_driver_nvidia_gpu_1073(
    fake_nvml: FakeNvml, root: FakeRoot
) -> None:
    fake_nvml.say(Gpu("GPU-gb10", NOT_SUPPORTED, name="NVIDIA GB10", bar1=None))
    found = survey.survey(str(root))
    (device,) = found.devices
    assert device.unified
    assert found.unified
    # The same bytes as the host's, to be counted once.
    assert (device.total.bytes, device.free.bytes) == (found.host.total.bytes, found.host.available.bytes)
    assert device.free.bytes == 61 * GIB
    assert "MemAvailable" in device.free.source


def test_host_figures_given_as_a_devices_own_are_the_hosts__nvitop_208(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    fake_nvml.say(Gpu("GPU-x", (121 * GIB - 100 * MIB, 10 * GIB), name="NVIDIA something new", bar1=None))
    (device,) = survey.survey(str(root)).devices
    assert device.unified
    assert device.free.bytes == 61 * GIB


def test_a_card_as_large_as_the_host_is_a_card(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    """The kernel keeps part of the nominal size for itself; and a card has a window on the bus."""
    fake_nvml.say(Gpu("GPU-x", (121 * GIB, 120 * GIB)), Gpu("GPU-y", (124 * GIB, 120 * GIB), bar1=None))
    assert [device.unified for device in survey.survey(str(root)).devices] == [False, False]


def test_a_unified_total_is_no_budget__nvtop_449(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    """121 GiB of which the system uses 60: what can be had are the 61 that are available, less a planner's reserve."""
    fake_nvml.say(Gpu("GPU-gb10", (121 * GIB, 121 * GIB), name="NVIDIA GB10", bar1=None))
    (device,) = survey.survey(str(root)).devices
    assert device.free.bytes == 61 * GIB
    assert not device.unattributed.is_known


def test_a_gpu_in_mig_mode_is_its_slices__nvidia_container_toolkit_842(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    slices = [Gpu("MIG-1", (10 * GIB, 9 * GIB)), Gpu("MIG-2", (20 * GIB, 19 * GIB))]
    fake_nvml.say(Gpu("GPU-parent", NO_PERMISSION, mig=True, slices=slices))
    found = survey.survey(str(root)).devices
    assert [(one.uuid, one.kind, one.total.bytes) for one in found] == [
        ("MIG-1", DeviceKind.MIG, 10 * GIB),
        ("MIG-2", DeviceKind.MIG, 20 * GIB),
    ]


@pytest.mark.parametrize("parent", [NO_PERMISSION, (80 * GIB, 80 * GIB)])
def test_where_neither_gpu_nor_slice_can_be_asked_it_is_unknown__nvidia_container_toolkit_842(
    fake_nvml: FakeNvml, root: FakeRoot, parent: int | tuple[int, int]
) -> None:
    fake_nvml.say(Gpu("GPU-parent", parent, mig=True, slices=[Gpu("MIG-1", NO_PERMISSION, lost=NO_PERMISSION)]))
    (device,) = survey.survey(str(root)).devices
    assert (device.total.bytes, device.free.bytes) == (None, None)
    assert not device.is_known
    assert "MIG" in device.why_unknown
    assert not device.unified


def test_a_slice_that_does_not_tell_its_memory_is_unknown(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    fake_nvml.say(Gpu("GPU-parent", NO_PERMISSION, mig=NO_PERMISSION, slices=[Gpu("MIG-1", NOT_SUPPORTED)]))
    (device,) = survey.survey(str(root)).devices
    assert (device.uuid, device.total.bytes, device.unified) == ("MIG-1", None, False)


def test_pids_of_another_namespace_are_nobodys__sglang_omni_1685(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    fake_nvml.say(a_card(memory=(24 * GIB, 12 * GIB), processes=[(LONG_GONE, 12 * GIB)]))
    (card,) = survey.survey(str(root)).devices
    assert [one.is_here for one in card.holdings] == [False]
    assert card.unattributed.bytes == 12 * GIB
    assert card.free.bytes == 12 * GIB


def test_in_a_namespace_of_its_own_an_equal_number_is_not_the_same_process__sglang_omni_1685(
    fake_nvml: FakeNvml, root: FakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.identity.pid_namespace", lambda: survey.FIRST_NAMESPACE + 7)
    fake_nvml.say(a_card(memory=(24 * GIB, 12 * GIB), processes=[(os.getpid(), 12 * GIB)]))
    (card,) = survey.survey(str(root)).devices
    assert card.unattributed.bytes == 12 * GIB


def test_under_wsl_a_process_has_no_figure_and_none_is_made_up(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    fake_nvml.say(a_card("GPU-a", processes=[(os.getpid(), None)]), a_card("GPU-b", processes=NOT_SUPPORTED))
    first, second = survey.survey(str(root)).devices
    assert first.holdings[0].bytes is None
    assert not first.unattributed.is_known
    assert (second.holdings, second.unattributed.bytes) == ((), None)
    assert "NOT_SUPPORTED" in second.why_no_holdings


def test_a_lost_card_leaves_the_others_and_is_named(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    fake_nvml.say(a_card("GPU-a"), a_card("GPU-b", lost=GPU_IS_LOST), a_card("GPU-c", memory=GPU_IS_LOST))
    found = survey.survey(str(root))
    assert [(one.uuid, one.total.bytes) for one in found.devices] == [("GPU-a", 24 * GIB), ("GPU-c", None)]
    assert found.reason == "device 1 does not answer: GPU_IS_LOST"
    assert found.incomplete


def test_devices_stand_in_the_order_of_the_bus__gpustack_1633(fake_nvml: FakeNvml, root: FakeRoot) -> None:
    """CUDA's own order is the fastest first. Ours is that of CUDA_DEVICE_ORDER=PCI_BUS_ID, which every engine gets
    (tests/unit/test_group.py)."""
    fake_nvml.say(a_card("GPU-far", pci="00000000:C1:00.0"), a_card("GPU-near", pci="00000000:0A:00.0"))
    assert [(one.uuid, one.index) for one in survey.survey(str(root)).devices] == [("GPU-near", 0), ("GPU-far", 1)]
