"""Naming what ended a generation: every rule by the line it was written for, and what comes before what."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.causes import CPU_STEP, RULES, Cause, Evidence, Rule, Word, name
from supervisor.contract import Exit
from tests.unit import test_logfiles

FAILED = Exit(1, 1)
KILLED = Exit(2, signal.SIGKILL)
NOT_STARTED = "the chat server did not start: upstream command exited prematurely"


def of(text: str, *, ended: Exit = FAILED, blame: str = NOT_STARTED, **facts: object) -> Cause:
    return name(Evidence(ended, blame, tuple(text.splitlines()), **facts))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.word.value}-{rule.pattern[:20]}")
def test_every_rule_knows_the_line_it_was_written_for(rule: Rule) -> None:
    found = re.search(rule.pattern, rule.example)
    assert found
    assert ", ".join(filter(None, found.groups())) == rule.detail
    assert of(f"llama is loading\n{rule.example}\nbye").word is rule.word


@pytest.mark.parametrize("prefix", ["", "[chat] ", "2026-11-30T01:02:03Z ", "\x1b[32m"])
def test_a_proxy_may_write_before_the_line(prefix: str) -> None:
    assert of(prefix + "error: invalid argument: --nope") == Cause(Word.BAD_FLAG, "--nope")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (test_logfiles.BAD_FLAG, Cause(Word.BAD_FLAG, "--no-such-flag")),
        (test_logfiles.MISSING_MODEL, Cause(Word.MODEL_MISSING, "/nope.gguf, No such file or directory")),
        (test_logfiles.PORT_TAKEN, Cause(Word.PORT_CONFLICT, "28112")),
        (test_logfiles.ILLEGAL_INSTRUCTION, Cause(Word.ILLEGAL_INSTRUCTION, CPU_STEP)),
    ],
)
def test_whole_logs_of_real_servers(text: str, cause: Cause) -> None:
    assert of(text) == cause


def test_a_broken_model_is_named_with_its_path() -> None:
    found = of(test_logfiles.TRUNCATED_MODEL)
    assert found.word is Word.MODEL_BROKEN
    assert found.detail.startswith("/m/trunc.gguf, tensor 'token_embd.weight' data is not within the file bounds")


KV_CACHE_DOES_NOT_FIT = """\
0.00.008.083 I srv    load_model: loading model '/m/SmolLM2-135M-Instruct.Q4_1.gguf'
0.00.302.651 W common_fit_params: failed to fit params to free device memory: was unable to fit model into system memory by reducing context, abort
0.00.579.833 E ggml_aligned_malloc: insufficient memory (attempted to allocate 43948.12 MB)
0.00.579.871 E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 46082949120
0.00.590.069 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache
0.00.590.354 E cmn  common_init_: failed to create context with model '/m/SmolLM2-135M-Instruct.Q4_1.gguf'
[WARN] <chat> upstream process exited unexpectedly (-11)
"""
"""b10434 with `--ctx-size 2000000` and little memory. It then dies of SIGSEGV: the signal is what follows, not the cause."""


def test_what_a_server_says_comes_before_the_signal_it_dies_of_then() -> None:
    assert of(KV_CACHE_DOES_NOT_FIT) == Cause(Word.HOST_MEMORY, "attempted to allocate 43948.12 MB")


def test_llama_cpp_20509_an_oom_kill_is_told_from_any_other_sigkill() -> None:
    rose = "oom_kill of /sys/fs/cgroup/x/memory.events rose from 0 to 1"
    words = "Memory cgroup out of memory: Killed process 77 (llama-server) total-vm:1kB"
    assert of("", ended=KILLED, blame="", was_ready=True, oom=rose) == Cause(Word.OOM_KILL, rose)
    told = of("", ended=KILLED, blame="", was_ready=True, oom=rose, kernel=(words,))
    assert told == Cause(Word.OOM_KILL, f"{words} ({rose})")
    alone = of("", ended=KILLED, blame="", was_ready=True)
    assert alone == Cause(Word.SIGNAL, "SIGKILL, sent by whom is unknown")


def test_a_server_that_the_kernel_killed_in_mid_load() -> None:
    assert (
        of("[WARN] <chat> upstream process exited unexpectedly (-9)", ended=KILLED, oom="it rose").word is Word.OOM_KILL
    )


def test_an_oom_kill_of_somebody_else_is_not_the_cause_of_a_bad_flag() -> None:
    assert of(test_logfiles.BAD_FLAG, ended=KILLED, oom="it rose").word is Word.BAD_FLAG


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (Evidence(Exit(1, 0)), Cause(Word.CLEAN_EXIT, "its proxy ended with exit status 0 before it was ready")),
        (Evidence(Exit(1, 0), was_ready=True), Cause(Word.EXIT_STATUS, "0")),
        (Evidence(Exit(1, 3)), Cause(Word.EXIT_STATUS, "3")),
        (Evidence(Exit(1, 126)), Cause(Word.NOT_EXECUTABLE)),
        (Evidence(Exit(1, 127)), Cause(Word.NOT_FOUND)),
        (Evidence(Exit(2, 4)), Cause(Word.ILLEGAL_INSTRUCTION, CPU_STEP)),
        (Evidence(Exit(3, 11)), Cause(Word.SIGNAL, "SIGSEGV")),
        (Evidence(Exit(2, 64)), Cause(Word.SIGNAL, "SIGRTMAX")),
        (Evidence(Exit(2, 99)), Cause(Word.SIGNAL, "signal 99")),
        (Evidence(KILLED, "hung: no answer for 5 s"), Cause(Word.HUNG, "hung: no answer for 5 s")),
        (Evidence(KILLED, "the chat server is wedged"), Cause(Word.WEDGED, "the chat server is wedged")),
        (Evidence(KILLED, "not ready within 1 s (start_limit_s of group chat)"),
         Cause(Word.START_LIMIT, "not ready within 1 s (start_limit_s of group chat)")),
        (Evidence(KILLED, NOT_STARTED), Cause(Word.UNKNOWN, NOT_STARTED)),
        (Evidence(KILLED, NOT_STARTED, ("[WARN] <c> upstream process exited unexpectedly (0)",)),
         Cause(Word.CLEAN_EXIT, "a server ended with exit status 0 before it was ready")),
        (Evidence(KILLED, NOT_STARTED, ("[WARN] <c> upstream process exited unexpectedly (3)",)), Cause(Word.EXIT_STATUS, "3")),
        (Evidence(KILLED, NOT_STARTED, ("[WARN] <c> upstream process exited unexpectedly (-11)",)), Cause(Word.SIGNAL, "SIGSEGV")),
    ],
)  # fmt: skip
def test_an_end_without_words_is_named_by_how_it_ended(evidence: Evidence, cause: Cause) -> None:
    assert name(evidence) == cause


def test_what_an_engine_said_while_it_started_does_not_explain_the_end_of_one_that_served() -> None:
    text = "E gguf_init_from_file: failed to open GGUF file '/draft.gguf' (No such file or directory)"
    assert of(text, ended=KILLED, blame="", was_ready=True).word is Word.SIGNAL
    assert of("CUDA error: out of memory", ended=Exit(3, 6), blame="", was_ready=True).word is Word.DEVICE_MEMORY


def test_what_llama_cpp_only_warns_of_is_no_cause() -> None:
    assert of("0.00.3 W srv: failed to load model, '/m.gguf'").word is Word.UNKNOWN


@given(
    st.builds(
        Evidence,
        st.builds(Exit, st.sampled_from([1, 2, 3]), st.integers(0, 300)),
        st.text(),
        st.lists(st.one_of(st.text(), st.sampled_from([rule.example for rule in RULES]))).map(tuple),
        st.booleans(),
        st.text(),
        st.lists(st.text()).map(tuple),
    )
)
def test_there_is_a_name_for_every_end(evidence: Evidence) -> None:
    assert name(evidence).describe()


def test_the_page_has_every_word() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "exit-causes.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE) == [word.value for word in Word]


def test_what_health_kills_for_is_said_once_in_a_reason() -> None:
    assert not name(Evidence(KILLED, "the chat server is hung: it is stopped")).says_more
    assert name(Evidence(FAILED, lines=("error: invalid argument: --x",))).says_more
