"""The host's memory, from files of /proc and /sys as kernels write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.devices import host

if TYPE_CHECKING:
    from tests.devices.conftest import FakeRoot

GIB = 2**30
PAGE = 4096
V2 = "36 24 0:31 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = "40 24 0:35 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def test_it_is_what_the_kernel_says_is_available(root: FakeRoot) -> None:
    found = host.read(str(root))
    assert (found.total.bytes, found.available.bytes) == (121 * GIB, 61 * GIB)
    assert found.bound_by == "/proc/meminfo MemAvailable"
    assert (found.limits, found.corrections) == ((), ())


def test_what_the_kernel_does_not_say_is_unknown_and_not_none(root: FakeRoot) -> None:
    root.put("/proc/meminfo", "")
    found = host.read(str(root))
    assert (found.total.bytes, found.available.bytes) == (None, None)
    assert "MemTotal" in found.total.source


def test_every_control_group_above_us_bounds_it(root: FakeRoot) -> None:
    """The middle one binds: 32 GiB, of which 30 are used, 4 of these inactive file pages. 32 - 30 + 4 = 6."""
    root.put("/proc/self/mountinfo", V2)
    root.put("/proc/self/cgroup", "0::/a.slice/b.service/c\n")
    top = "/sys/fs/cgroup"
    root.group(top, memory__stat="inactive_file 1")
    root.group(f"{top}/a.slice", memory__max=100 * GIB, memory__current=40 * GIB, memory__stat="inactive_file 0")
    root.group(
        f"{top}/a.slice/b.service", memory__max="max", memory__high=32 * GIB, memory__current=30 * GIB,
        memory__stat=f"anon 5\ninactive_file {4 * GIB}\nactive_file 7",
    )  # fmt: skip
    root.group(f"{top}/a.slice/b.service/c", memory__max="max", memory__current=1, memory__stat="inactive_file 0")
    found = host.read(str(root))
    assert found.available.bytes == 6 * GIB
    assert found.bound_by == f"{top}/a.slice/b.service/memory.high"
    assert [one.room for one in found.limits] == [60 * GIB, 6 * GIB]
    assert found.ceiling == 32 * GIB


def test_a_container_sees_its_own_limit_at_the_top_of_its_mount(root: FakeRoot) -> None:
    """Without a namespace of its own for control groups: the path is the host's, the mount is that part of it."""
    root.put("/proc/self/mountinfo", V2.replace(" / /sys", " /docker/abc /sys"))
    root.put("/proc/self/cgroup", "0::/docker/abc\n")
    root.group("/sys/fs/cgroup", memory__max=8 * GIB, memory__current=GIB, memory__stat="inactive_file 0")
    assert host.read(str(root)).available.bytes == 7 * GIB


def test_version_one_bounds_it_too(root: FakeRoot) -> None:
    root.put("/proc/self/mountinfo", V1)
    root.put("/proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/user/me\n0::/\n")
    top = "/sys/fs/cgroup/memory"
    none = 2**63 - PAGE
    root.group(top, memory__limit_in_bytes=none, memory__usage_in_bytes=9, memory__stat="total_inactive_file 0")
    root.group(f"{top}/user", memory__limit_in_bytes=4 * GIB, memory__usage_in_bytes=3 * GIB,
               memory__stat=f"inactive_file 1\ntotal_inactive_file {GIB}")  # fmt: skip
    root.group(f"{top}/user/me", memory__limit_in_bytes=none, memory__usage_in_bytes=9, memory__stat="")
    found = host.read(str(root))
    assert (found.available.bytes, found.bound_by) == (2 * GIB, f"{top}/user/memory.limit_in_bytes")


def an_engine(root: FakeRoot, pid: int, *, resident: int, rollup: str = "", status: str = "") -> None:
    root.put(f"/proc/{pid}/statm", f"1 {resident // PAGE + 100} {resident // PAGE} 1 0 1 0\n")
    root.put(f"/proc/{pid}/comm", "anything\n")
    if rollup:
        root.put(f"/proc/{pid}/smaps_rollup", f"00400000-7fff ---p 00000000 00:00 0    [rollup]\n{rollup}")
    if status:
        root.put(f"/proc/{pid}/status", status)


def kib(size: int) -> str:
    return f"{size // 1024} kB"


def test_file_pages_of_a_living_engine_are_not_available(root: FakeRoot) -> None:
    """74 GiB look available, 68 of which are an engine's weights (seed:003): 6 can be had."""
    root.meminfo(MemTotal=121 * GIB, MemAvailable=74 * GIB, Mapped=70 * GIB, Inactive_file=69 * GIB, Active_file=GIB)
    an_engine(root, 4000, resident=68 * GIB, rollup=f"Pss_File: {kib(68 * GIB)}\nLocked: 0 kB\n")
    found = host.read(str(root))
    assert found.available.bytes == 6 * GIB
    assert [(one.bytes, "pid 4000" in one.source) for one in found.corrections] == [(-68 * GIB, True)]
    assert "4000" in found.available.source


def test_two_servers_over_one_file_count_its_pages_once(root: FakeRoot) -> None:
    root.meminfo(MemTotal=121 * GIB, MemAvailable=74 * GIB, Mapped=9 * GIB, Inactive_file=60 * GIB)
    for pid in (4000, 4001):
        an_engine(root, pid, resident=8 * GIB, rollup=f"Pss_File: {kib(4 * GIB)}\n")
    assert host.read(str(root)).available.bytes == 66 * GIB


def test_of_somebody_elses_engine_the_status_says_it_and_no_more_than_is_mapped_counts(root: FakeRoot) -> None:
    root.meminfo(MemTotal=121 * GIB, MemAvailable=74 * GIB, Mapped=9 * GIB, Inactive_file=60 * GIB)
    for pid in (4000, 4001):
        an_engine(root, pid, resident=8 * GIB, status=f"Name:\tx\nVmLck:\t0 kB\nRssFile:\t{kib(8 * GIB)}\n")
    found = host.read(str(root))
    assert found.available.bytes == 65 * GIB
    assert [one.bytes for one in found.corrections] == [-8 * GIB, -GIB]


def test_locked_pages_are_not_taken_off_twice(root: FakeRoot) -> None:
    """mlock(2) moves them to the unevictable list, of which MemAvailable counts nothing."""
    root.meminfo(MemTotal=121 * GIB, MemAvailable=10 * GIB, Mapped=70 * GIB, Inactive_file=9 * GIB)
    an_engine(root, 4000, resident=68 * GIB, rollup=f"Pss_File: {kib(68 * GIB)}\nLocked: {kib(68 * GIB)}\n")
    assert host.read(str(root)).available.bytes == 10 * GIB


def test_the_caches_of_zfs_are_added_up_to_a_cap__ollama_5700(root: FakeRoot) -> None:
    head = "13 1 0x01 123 33456 1 2\nname type data\n"
    root.put("/proc/spl/kstat/zfs/arcstats", f"{head}c_min 4 {4 * GIB}\nsize 4 {20 * GIB}\n")
    found = host.read(str(root))
    assert found.available.bytes == (61 + 16) * GIB
    assert "ZFS" in found.available.source
    root.put("/proc/spl/kstat/zfs/arcstats", f"{head}c_min 4 {4 * GIB}\nsize 4 {60 * GIB}\n")
    assert host.read(str(root)).corrections[0].bytes == 121 * GIB // 4


def test_a_kernel_without_the_estimate_is_assumed_to_have_what_is_free(root: FakeRoot) -> None:
    root.meminfo(MemTotal=8 * GIB, MemFree=2 * GIB)
    found = host.read(str(root))
    assert (found.available.bytes, found.available.how.value) == (2 * GIB, "assumed")


def test_this_machine_has_memory_and_less_of_it_available() -> None:
    found = host.read()
    assert found.total.bytes is not None
    assert found.available.bytes is not None
    assert 0 < found.available.bytes < found.total.bytes
