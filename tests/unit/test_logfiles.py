"""Log files: a cap under living writers, and the one line that says why. The excerpts are from real llama-servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import budgets, logfiles
from supervisor.logfiles import TAIL_BYTES, cap, last_lines, last_words, size, tail

if TYPE_CHECKING:
    from pathlib import Path

MISSING_MODEL = """\
0.00.005.889 W srv  llama_server: more info: https://github.com/ggml-org/llama.cpp/pull/25655
0.00.005.889 W srv  llama_server: -----------------
0.00.007.332 I srv    load_model: loading model '/nope.gguf'
0.00.007.467 E gguf_init_from_file: failed to open GGUF file '/nope.gguf' (No such file or directory)
0.00.007.571 E llama_model_load: error loading model: llama_model_loader: failed to load model from /nope.gguf
0.00.007.594 E llama_model_load_from_file_impl: failed to load model
0.00.007.689 E cmn  common_init_: failed to load model '/nope.gguf'
0.00.007.695 I srv    operator(): operator(): cleaning up before exit...
0.00.008.294 E srv  llama_server: exiting due to model loading error
[WARN] group: starting chat failed: upstream command exited prematurely
"""
TRUNCATED_MODEL = """\
0.00.008.274 I srv    load_model: loading model '/m/trunc.gguf'
0.00.014.239 E llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the file bounds, model is corrupted or incomplete
0.00.014.296 E llama_model_load_from_file_impl: failed to load model
0.00.021.798 E srv  llama_server: exiting due to model loading error
"""
BAD_FLAG = "error: invalid argument: --no-such-flag\n"
PORT_TAKEN = """\
0.00.006.968 W srv  llama_server: -----------------
0.00.007.217 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 28112
0.00.007.239 I srv    operator(): operator(): cleaning up before exit...
0.00.007.406 E srv  llama_server: exiting due to HTTP server error
"""
ILLEGAL_INSTRUCTION = """\
0.00.005.597 I cmn  common_param: common_params_print_info: verbosity = 3 (adjust with the `-lv N` CLI arg)
[WARN] <chat> upstream process exited unexpectedly (-4)
"""
ILLEGAL_INSTRUCTION_UNDER_LLAMA_SWAP = """\
0.00.005.597 I cmn  common_param: common_params_print_info: verbosity = 3 (adjust with the `-lv N` CLI arg)
[WARN] group: starting chat failed: upstream command exited prematurely
"""
HEALTHY = """\
0.00.005.731 W srv  llama_server: setting n_batch = n_ubatch = 512 to avoid assertion failure
0.00.115.157 W load: special_eos_id is not in special_eog_ids - the tokenizer config may be incorrect
0.00.132.487 W srv    load_model: the slot context (4096) exceeds the training context of the model (512) - capping
"""

# Appends as a server does: O_APPEND, a line at a time, numbered.
WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
number = 0
while True:
    os.write(fd, b"%09d %s\\n" % (number, b"x" * 89))
    number += 1
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "chat.log"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MISSING_MODEL, "failed to open GGUF file '/nope.gguf' (No such file or directory)"),
        (TRUNCATED_MODEL, "data is not within the file bounds, model is corrupted or incomplete"),
        (BAD_FLAG, "error: invalid argument: --no-such-flag"),
        (PORT_TAKEN, "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 28112"),
        (ILLEGAL_INSTRUCTION, "[WARN] <chat> upstream process exited unexpectedly (-4)"),
        (ILLEGAL_INSTRUCTION_UNDER_LLAMA_SWAP, "starting chat failed: upstream command exited prematurely"),
        (HEALTHY, ""),
        (HEALTHY + "Segmentation violation\n", "Segmentation violation"),
        ("", ""),
        ("\n\n  \n", ""),
    ],
)
def test_the_last_words_say_why(log: Path, text: str, words: str) -> None:
    log.write_text("0.00.001 E of an earlier generation: error\n" + text)
    since = log.stat().st_size - len(text)
    found = last_words(tail(log, lines=20, since=since))
    assert found.endswith(words)
    assert bool(found) == bool(words)


def test_last_words_are_short() -> None:
    assert len(last_words(["error: " + "x" * 10_000])) == 300


@given(st.lists(st.text(max_size=40), max_size=8))
def test_last_words_are_words_that_were_said(lines: list[str]) -> None:
    words = last_words(lines)
    assert words == "" or any(words == line[:300] for line in lines)


def test_a_tail_has_the_last_lines_of_this_generation(log: Path) -> None:
    log.write_text("of another\n" * 5)
    since = size(log)
    assert tail(log, lines=3, since=since) == []
    with log.open("a") as file:
        file.write("one\n\ntwo  \nthree\nfour")
    assert tail(log, lines=3, since=since) == ["two", "three", "four"]
    assert tail(log, lines=99, since=since) == ["one", "two", "three", "four"]


def test_no_lines_are_none(log: Path) -> None:
    log.write_text("one\ntwo\n")
    assert tail(log, lines=0) == last_lines(log, 0) == []


def test_who_reads_a_log_gets_as_many_lines_as_he_wants(log: Path) -> None:
    """However long they are, and right after a cut too."""
    wanted = [f"{number} {'x' * 1000}" for number in range(200)]
    log.write_text("".join(f"{line}\n" for line in wanted))
    assert len("".join(wanted)) > TAIL_BYTES
    assert last_lines(log, 1000) == wanted
    assert last_lines(log, 150) == wanted[-150:]
    assert cap(log, limit=1)
    with log.open("a") as file:
        file.write("after the cut\n")
    assert last_lines(log, 3) == [*wanted[-2:], "after the cut"]


def test_a_tail_of_a_file_that_was_truncated_meanwhile(log: Path) -> None:
    log.write_text("x" * 1000)
    since = size(log)
    log.write_text("after the cap\n")
    assert tail(log, lines=3, since=since) == ["after the cap"]


def test_a_tail_of_a_huge_file_reads_its_end_only(log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(1 << 40)  # a hole of a tebibyte
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe end\n")
    assert tail(log, lines=1) == ["the end"]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\n", b"\x00" * 100, "é".encode()[:1], b"\r\r\n", b"a\x1b[31mb"])
def test_no_bytes_make_a_tail_fail(log: Path, content: bytes) -> None:
    log.write_bytes(content)
    assert all(isinstance(line, str) for line in tail(log, lines=5))


def test_a_tail_that_begins_in_the_middle_of_a_character(log: Path) -> None:
    log.write_text("é" * TAIL_BYTES + "\nlast\n", encoding="utf-8")
    assert tail(log, lines=1) == ["last"]


def test_there_is_no_tail_where_there_is_no_file(log: Path) -> None:
    assert tail(log, lines=5) == []
    assert size(log) == 0
    assert tail(log.parent, lines=5) == []


def test_a_file_below_its_limit_is_left_alone(log: Path) -> None:
    log.write_text("x" * 100)
    assert not cap(log, 100)
    assert log.read_text() == "x" * 100
    assert not cap(log.with_name("none.log"), 100)


def test_a_file_above_its_limit_is_kept_once_and_emptied(log: Path) -> None:
    for text in ("first", "second"):
        log.write_text(text)
        assert cap(log, 3)
        assert size(log) == 0
        assert log.with_name("chat.log.1").read_text() == text


def test_of_a_flood_only_the_end_is_kept__w18(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy stays until the next cut: it must not be as long as whatever was written between two looks."""
    monkeypatch.setattr(logfiles, "COPY_MOST_BYTES", 50)
    log.write_text("x" * 1000 + "y" * 50)
    assert cap(log, 10)
    assert size(log) == 0
    assert log.with_name("chat.log.1").read_text() == "y" * 50


@pytest.mark.process
def test_a_living_writer_goes_on_at_the_new_end(log: Path) -> None:
    """What is lost lies between copy and truncation; no line is torn but there, and no hole of zeros is left."""
    log.touch()
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", WRITER, str(log)]) as writer:
        try:
            capped = 0
            deadline = time.monotonic() + 20
            while capped < 5 and time.monotonic() < deadline:
                if cap(log, 200_000):
                    capped += 1
                    text = log.with_name("chat.log.1").read_bytes()
                    assert b"\0" not in text
                    lines = text.split(b"\n")[1:-1]  # the first may have been cut by the truncation before
                    assert all(len(line) == 99 for line in lines)
                    numbers = [int(line[:9]) for line in lines]
                    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert capped == 5
        finally:
            writer.send_signal(signal.SIGKILL)
    assert b"\0" not in log.read_bytes()


def test_a_copy_that_cannot_be_made_does_not_keep_the_file_growing(log: Path) -> None:
    log.write_text("x" * 100)
    log.with_name("chat.log.1").mkdir()
    assert cap(log, 10)
    assert size(log) == 0


def test_what_cannot_be_emptied_harms_nothing(log: Path) -> None:
    log.mkdir()
    assert not cap(log, 1)


def test_the_default_limit_is_the_budget(log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(budgets.LOG_CAP_BYTES)
    assert not cap(log)


def test_start_logs_are_those_of_one_group_or_of_all_the_newest_last(tmp_path: Path) -> None:
    for age, name in enumerate(
        ("chat.2.start.log", "embed.1.start.log", "chat.1.start.log", "chat.log", "chatter.1.start.log")
    ):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (100 - age, 100 - age))
    assert [path.name for path in logfiles.start_logs(tmp_path, "chat")] == ["chat.1.start.log", "chat.2.start.log"]
    assert len(logfiles.start_logs(tmp_path)) == 4
    assert logfiles.start_logs(tmp_path / "nowhere") == []
