"""Whether free memory is in one piece: some engines need blocks of 2 MiB, and while the kernel makes them nothing moves.

A check of total free memory passes there, and the load then stands still at full CPU with no disk activity
(halogen-flash-server#33). The kernel counts both: free blocks in /proc/buddyinfo, and in /proc/vmstat how often somebody
had to wait for it to compact memory.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.devices.shape import Figure

BLOCK_BYTES = 2 * 2**20
"""A huge page of x86-64, and what GPU drivers allocate in."""

FEW_BLOCKS = 1024
"""Free blocks (a count) under which a load that needs them may stall: 2 GiB in pieces that large. On a host of 121 GiB
an engine warned of stalls at 310, and did not at 1,396 (measured there)."""


def free_blocks(root: str = "/") -> Figure:
    """How many blocks of 2 MiB could be had at once, in bytes: `blocks_in` turns it into a count. Page cache in pieces
    does not count, though the kernel can make blocks of it. Unknown where /proc/buddyinfo cannot be read."""
    from supervisor.devices.shape import Figure  # 9 ms that a keeper, who only counts stalls, does not pay

    with suppress(OSError, ValueError), open(os.path.join(root, "proc/buddyinfo"), encoding="ascii") as file:
        count = count_blocks(file.read(), os.sysconf("SC_PAGE_SIZE"))
        if count is not None:
            return Figure(count * BLOCK_BYTES, "/proc/buddyinfo, free blocks of 2 MiB and larger")
    return Figure.unknown("/proc/buddyinfo cannot be read")


def blocks_in(figure: Figure) -> int | None:
    """Its count."""
    return None if figure.bytes is None else figure.bytes // BLOCK_BYTES


def count_blocks(text: str, page: int) -> int | None:
    """From the text: a column for each order, free runs of 2**order pages (proc_buddyinfo(5)). None for another format."""
    least = (BLOCK_BYTES // page).bit_length() - 1
    total, seen = 0, False
    for line in text.splitlines():
        head, _, columns = line.partition("zone")
        numbers = columns.split()[1:]
        if not head.startswith("Node") or not all(number.isdecimal() for number in numbers):
            continue
        seen = True
        total += sum(int(number) << (order - least) for order, number in enumerate(numbers) if order >= least)
    return total if seen else None


def compaction_stalls(root: str = "/") -> int | None:
    """How often since the boot somebody waited for memory to be compacted (`compact_stall`); None where the kernel does not
    count it."""
    with suppress(OSError, ValueError), open(os.path.join(root, "proc/vmstat"), encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(" ")
            if name == "compact_stall":
                return int(value)
    return None


def stalls_text(before: int | None, now: int | None) -> str:
    """For the status of a load: `compaction stalls +N`, "" where there were none or nobody counts."""
    if before is None or now is None or now <= before:
        return ""
    return f"compaction stalls +{now - before}"
