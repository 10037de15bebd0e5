"""What processors have and what wheels need, on texts of /proc/cpuinfo. The Zen 3's was read on such a machine; the
others are shortened to the flags that matter and some that must not be mistaken for them."""

from __future__ import annotations

import pytest

from workers.cpu import SAPPHIRE_RAPIDS_LEVEL, SKULK, XLLAMACPP, cpu_flags, lacks, this_machine

CORE = "\n".join(
    (
        "processor\t: {number}",
        "vendor_id\t: {vendor}",
        "model name\t: {name}",
        "flags\t\t: {flags}",
        "bugs\t\t: sysret_ss_attrs spectre_v1 avx512f",
        "vmx flags\t: vnmi avx512vl",
        "",
    )
)

ZEN_3 = (
    "fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall nx "
    "mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc rep_good nopl xtopology nonstop_tsc cpuid extd_apicid "
    "tsc_known_freq pni pclmulqdq ssse3 fma cx16 pcid sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave "
    "avx f16c rdrand hypervisor lahf_lm cmp_legacy cr8_legacy abm sse4a misalignsse 3dnowprefetch osvw topoext "
    "vmmcall fsgsbase tsc_adjust bmi1 avx2 smep bmi2 erms invpcid rdseed adx smap clflushopt clwb sha_ni xsaveopt "
    "xsavec xgetbv1 xsaves clzero xsaveerptr arat umip vaes vpclmulqdq rdpid fsrm"
)
AVX512 = "avx avx2 fma f16c bmi2 avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512vbmi avx512_vbmi2"
ICE_LAKE = f"{AVX512} avx512_vnni avx512_bitalg avx512_vpopcntdq"
ZEN_4 = f"{ICE_LAKE} avx512_bf16"
ZEN_5 = f"{ZEN_4} avx_vnni avx512_vp2intersect"
IVY_BRIDGE = "sse4_1 sse4_2 avx f16c"

ARM = "processor\t: 0\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimddp\n"


def cpuinfo(*flags: str) -> str:
    cores = (CORE.format(number=n, vendor="X", name="Y", flags=words) for n, words in enumerate(flags))
    return "\n".join(cores)


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        (ZEN_3, SAPPHIRE_RAPIDS_LEVEL[4:]),
        (ICE_LAKE, ("avx512_bf16", "avx_vnni")),
        (ZEN_4, ("avx_vnni",)),
        (ZEN_5, ()),
        (IVY_BRIDGE, tuple(flag for flag in SAPPHIRE_RAPIDS_LEVEL if flag != "f16c")),
    ],
)
def test_what_a_processor_lacks_for_the_executable_of_today(flags: str, missing: tuple[str, ...]) -> None:
    for version in ("0.10434.0", "0.10092.0", "one that nobody has looked into"):
        assert lacks(SKULK, version, "x86_64", cpu_flags(cpuinfo(flags, flags))) == missing


@pytest.mark.parametrize(("distribution", "version"), [(SKULK, "0.10068.0"), (XLLAMACPP, "2026.10.11549")])
def test_what_was_built_for_avx2_needs_only_that(distribution: str, version: str) -> None:
    for flags in (ZEN_3, ICE_LAKE, ZEN_4, ZEN_5):
        assert lacks(distribution, version, "x86_64", cpu_flags(cpuinfo(flags))) == ()
    assert lacks(distribution, version, "x86_64", cpu_flags(cpuinfo(IVY_BRIDGE))) == ("avx2", "fma", "bmi2")


def test_only_what_every_processor_has_counts() -> None:
    assert cpu_flags(cpuinfo("a b c", "b c d", "c b")) == {"b", "c"}


def test_other_lines_and_parts_of_words_do_not_count() -> None:
    flags = cpu_flags(cpuinfo("avx512_vnni avx2"))
    assert flags == {"avx512_vnni", "avx2"}


@pytest.mark.parametrize("text", ["", ARM, "flags\n"])
def test_where_no_flags_are_told_nothing_is_held_against_a_wheel(text: str) -> None:
    assert cpu_flags(text) == frozenset()
    assert lacks(SKULK, "0.10434.0", "x86_64", cpu_flags(text)) == ()


def test_other_machines_and_other_wheels_need_nothing_that_we_know_of() -> None:
    assert lacks(XLLAMACPP, "2026.10.11549", "aarch64", frozenset({"avx"})) == ()
    assert lacks("lilbee-engine", "3", "x86_64", frozenset({"avx"})) == ()


def test_this_machine_can_be_asked() -> None:
    assert isinstance(this_machine(), frozenset)
