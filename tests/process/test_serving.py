"""Serving locks between real processes: who may serve, who is told why not, and that killing leaves nothing in the way."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from supervisor import holders, identity, locks, scopes
from supervisor.errors import ServedElsewhereError, SlotError, UsageError
from supervisor.holders import Holder
from supervisor.serving import serve_lock
from tests.process.children import Child
from tests.support import wait_until

pytestmark = pytest.mark.process

RUN = "import runpy, sys; sys.argv[0] = ''; runpy.run_path('tests/process/serving_child.py', run_name='__main__')"


class Server(Child):
    """serving_child.py, and what it said so far."""

    def __init__(self, data_dir: Path, *, environment: dict[str, str] | None = None, **ways: Any) -> None:
        super().__init__(RUN, data_dir, json.dumps(ways), environment={**os.environ, **(environment or {})})
        self.said: list[str] = []

    def wait(self, what: str) -> dict[str, Any]:
        """The next thing of that name; what it says meanwhile is kept."""
        while True:
            found: dict[str, Any] = json.loads(self.hear())
            if found["did"] == what:
                return found
            assert found["did"] == "said", found
            self.said.append(found["text"])

    def wait_said(self, text: str) -> None:
        """Until it said something with this in it."""
        while not any(text in line for line in self.said):
            found = json.loads(self.hear())
            assert found["did"] == "said", found
            self.said.append(found["text"])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of the test's own, and no scope from outside."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in scopes.SCOPE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "state"


def sidecar(data: Path) -> Path:
    return scopes.of_data(data).sidecar


def test_a_second_server_exits_3_and_names_the_first__lemonade_2255_ollama_707(data: Path) -> None:
    with Server(data, listens=True, program="lilbee serve") as first:
        url = first.wait("listening")["url"]
        with Server(data, wait_s=0.3) as second:
            error = second.wait("error")
            assert second.end() == error["exit_code"] == 3
        assert error["error"] == "ServedElsewhereError"
        assert f"lilbee serve (pid {first.pid}, since " in error["what"]
        assert url in error["what"]
        assert f"kill {first.pid}" in error["next_step"]
        assert url in error["next_step"]
        assert (error["holder"]["pid"], error["holder"]["url"]) == (first.pid, url)
        assert "token_file" not in error["holder"]
        assert first.process.poll() is None


def test_it_says_at_once_whom_it_waits_for_and_serves_after_the_hand_off(data: Path) -> None:
    with Server(data, program="the old one") as first:
        first.wait("held")
        with Server(data, program="the new one") as second:
            second.wait_said(f"the old one (pid {first.pid}")
            assert "15 s" in second.said[0]
            first.say()
            second.wait("held")
            assert first.end() == 0
            found = holders.find(scopes.of_data(data))
            assert found is not None
            assert (found.pid, found.program) == (second.pid, "the new one")
            second.say()
            assert second.end() == 0
    assert not sidecar(data).exists()
    assert not (data / "server.token").exists()


def test_what_names_the_holder_is_for_its_user_alone(data: Path) -> None:
    with serve_lock(data, program="here", token="secret") as lock:
        lock.announce("http://127.0.0.1:1")
        for path in (sidecar(data), lock.token_file):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert lock.token_file.read_text() == "secret"
        assert "secret" not in sidecar(data).read_text()
        found = holders.find(scopes.of_data(data))
        assert found is not None
        assert (found.pid, found.url) == (os.getpid(), "http://127.0.0.1:1")
    with pytest.raises(ValueError, match="without the lock"):
        lock.announce("http://127.0.0.1:2")


@pytest.mark.parametrize("how", ["SIGKILL", "_exit"])
def test_a_killed_server_leaves_its_files_and_is_in_nobodys_way__hermes_13655(data: Path, how: str) -> None:
    with Server(data, url="http://127.0.0.1:1") as first:
        first.wait("held")
        if how == "SIGKILL":
            first.kill()
        else:
            first.say("_exit")
            assert first.end() == 7
    assert sidecar(data).exists()
    assert (data / "server.token").exists()
    assert holders.find(scopes.of_data(data)) is None
    said: list[str] = []
    with serve_lock(data, program="next", wait_s=0, say=said.append):
        found = holders.find(scopes.of_data(data))
        assert found is not None
        assert found.pid == os.getpid()
    assert said == []


def test_a_dead_holders_name_is_not_believed_of_a_lock_that_somebody_holds(data: Path) -> None:
    with Server(data, program="the killed one", url="http://127.0.0.1:1") as first:
        first.wait("held")
        first.kill()
    with locks.acquire(scopes.of_data(data).lock, timeout=0), pytest.raises(ServedElsewhereError) as caught:
        serve_lock(data, program="next", wait_s=0, take_over=True).__enter__()
    assert "killed" not in caught.value.what
    assert f"pid {os.getpid()}" in caught.value.what
    assert caught.value.holder is None


def test_a_living_process_that_does_not_hold_the_lock_is_not_its_holder(data: Path) -> None:
    place = scopes.of_data(data)
    data.mkdir()
    with Child("import sys; print('up'); sys.stdin.readline()") as other:
        other.hear()
        who = identity.of(other.pid)
        assert who is not None
        holders.write(place.sidecar, Holder(who, "liar", 0.0, str(data), None, ""))
        with locks.acquire(place.lock, timeout=0):
            assert holders.find(place) is None


def test_another_users_word_is_not_the_holders(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_lock(data, program="here"):
        assert holders.find(scopes.of_data(data)) is not None
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert holders.find(scopes.of_data(data)) is None
        monkeypatch.undo()


@pytest.mark.parametrize("content", [b"", b"{", b'{"data_dir": "/x"}', b"\xff" * 70000, None])
def test_a_name_that_cannot_be_read_is_no_obstacle(data: Path, content: bytes | None) -> None:
    data.mkdir()
    if content is None:
        os.mkfifo(sidecar(data))
    else:
        sidecar(data).write_bytes(content)
    with locks.acquire(scopes.of_data(data).lock, timeout=0), pytest.raises(ServedElsewhereError, match="pid"):
        serve_lock(data, program="x", wait_s=0).__enter__()
    with serve_lock(data, program="x", wait_s=0):
        assert holders.find(scopes.of_data(data)) is not None


# --- scopes -------------------------------------------------------------------------------------------------------------


def test_one_server_for_a_scope_over_two_data_directories(tmp_path: Path) -> None:
    environment = {"QUEENRIGHT_EXCLUSIVE_SCOPE": "plugin"}
    with Server(tmp_path / "a", environment=environment) as first:
        first.wait("held")
        with Server(tmp_path / "b", environment=environment, wait_s=0.2) as second:
            error = second.wait("error")
            assert second.end() == 3
            assert "the scope plugin" in error["what"]
            assert error["holder"]["data_dir"] == str(tmp_path / "a")
        # Nothing of the refused one is held; without the scope the directory is free.
        with serve_lock(tmp_path / "b", program="alone", wait_s=0):
            pass


def test_a_scope_may_be_a_directory_and_be_named_as_lilbee_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LILBEE_EXCLUSIVE_SCOPE", str(tmp_path / "shared"))
    with serve_lock(tmp_path / "a", program="one"):
        assert locks.is_held(tmp_path / "shared" / "server.scope.lock") is True
        with pytest.raises(ServedElsewhereError, match="the scope /"):
            serve_lock(tmp_path / "b", program="two", wait_s=0).__enter__()


def test_our_variable_wins_and_scopes_are_apart(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEENRIGHT_EXCLUSIVE_SCOPE", "ours")
    monkeypatch.setenv("LILBEE_EXCLUSIVE_SCOPE", "theirs")
    with serve_lock(tmp_path / "a", program="one"):
        assert locks.is_held(state / "queenright" / "scopes" / "ours.lock") is True
        assert not (state / "queenright" / "scopes" / "theirs.lock").exists()
        with serve_lock(tmp_path / "b", program="two", scope="another", wait_s=0):
            pass
    assert not (state / "queenright" / "scopes" / "ours.owner.json").exists()


def test_who_gets_only_the_scope_gives_it_back(tmp_path: Path) -> None:
    refused = serve_lock(tmp_path / "a", program="two", scope="s", wait_s=0)  # kept: dropping it would release, too
    with serve_lock(tmp_path / "a", program="one"), pytest.raises(ServedElsewhereError, match="data directory"):
        refused.__enter__()
    assert not refused.is_held
    assert locks.is_held(scopes.of_scope("s").lock) is False
    assert not scopes.of_scope("s").sidecar.exists()


def test_every_server_takes_the_scope_first() -> None:
    lock = serve_lock(Path("/x"), program="one", scope="s")
    assert [place.lock.name for place in lock._places] == ["s.lock", "server.lock"]


@pytest.mark.parametrize("scope", ["../up", "a/b", ".hidden", "a b", "x" * 65])
def test_a_scope_that_is_none_is_refused(tmp_path: Path, scope: str) -> None:
    with pytest.raises(UsageError, match="neither"):
        serve_lock(tmp_path, program="one", scope=scope)


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SlotError, match="file cannot be used"):
        serve_lock(tmp_path / "file", program="one").__enter__()


# --- taking over --------------------------------------------------------------------------------------------------------


def test_taking_over_asks_with_the_holders_token_and_waits_for_the_lock(data: Path) -> None:
    with Server(data, listens=True, program="old") as first:
        first.wait("listening")
        # A proxy for everything must not see the token.
        proxies = {"HTTP_PROXY": "http://127.0.0.1:1", "ALL_PROXY": "http://127.0.0.1:1", "NO_PROXY": ""}
        with Server(data, take_over=True, environment=proxies) as second:
            second.wait("held")
            assert any("answered 202" in line for line in second.said), second.said
            assert first.end() == 0  # by its own handler of SIGTERM: nobody's signal killed it
            second.say()
            assert second.end() == 0


@pytest.mark.long  # tests/unit/test_takeover.py has every refusal
def test_a_wrong_token_takes_nothing_over(data: Path) -> None:
    with Server(data, listens=True) as first:
        first.wait("listening")
        (data / "server.token").write_text("wrong")
        with Server(data, take_over=True, wait_s=0.5) as second:
            error = second.wait("error")
            assert second.end() == 3
        assert "refused to shut down: 401" in error["what"]
        assert str(first.pid) in error["what"]
        assert first.process.poll() is None


@pytest.mark.long
def test_a_holder_that_hangs_is_not_waited_for_longer_than_said(data: Path) -> None:
    with Server(data, listens=True, hangs=True) as first:
        first.wait("listening")
        with Server(data, take_over=True, wait_s=0.5) as second:
            error = second.wait("error")
            assert second.end() == 3
        assert "did not answer the request to shut down in 2 s" in error["what"]
        assert first.process.poll() is None


# --- leaving ------------------------------------------------------------------------------------------------------------


def test_the_lock_falls_only_after_what_was_entered_is_ended(data: Path) -> None:
    with Server(data, cleanup="slow") as first:
        first.wait("held")
        first.say()
        first.wait("cleaning")
        assert locks.is_held(scopes.of_data(data).lock) is True
        assert sidecar(data).exists()
        first.say()
        first.wait("cleaned")
        assert first.end() == 0
    assert not sidecar(data).exists()


def test_an_ending_that_takes_too_long_is_said_and_the_lock_goes_with_the_process(data: Path) -> None:
    with Server(data, cleanup="slow", cleanup_s=0.2, lingers=True) as first:
        first.wait("held")
        first.say()
        first.wait("cleaning")
        first.wait("left")
        assert any("not all was ended within 0.2 s" in line for line in first.said)
        assert locks.is_held(scopes.of_data(data).lock) is True
        first.kill()
        assert locks.is_held(scopes.of_data(data).lock) is False


def test_an_ending_that_fails_is_raised_and_the_lock_goes_with_the_process(data: Path) -> None:
    with Server(data, cleanup="fails") as first:
        first.wait("held")
        first.say()
        first.wait("raised")
        assert any("ending failed: division by zero" in line for line in first.said)
        assert locks.is_held(scopes.of_data(data).lock) is True
        first.say()
        assert first.end() == 1
        assert locks.is_held(scopes.of_data(data).lock) is False


def test_a_process_that_kept_its_lock_may_serve_again(data: Path) -> None:
    said: list[str] = []
    lock = serve_lock(data, program="one", say=said.append)
    with pytest.raises(ZeroDivisionError), lock:
        lock.callback(lambda: 1 / 0)
    assert locks.is_held(scopes.of_data(data).lock) is True
    with serve_lock(data, program="one", wait_s=0):
        pass
    assert locks.is_held(scopes.of_data(data).lock) is False


def test_an_error_of_the_body_passes_and_the_locks_are_released(data: Path) -> None:
    done: list[str] = []

    def serve() -> None:
        with serve_lock(data, program="one") as lock:
            lock.callback(done.append, "ended")
            raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        serve()
    assert done == ["ended"]
    assert locks.is_held(scopes.of_data(data).lock) is False


def test_another_thread_may_release(data: Path) -> None:
    with Server(data) as first:
        first.wait("held")
        first.say("thread")
        first.wait("released")
        assert locks.is_held(scopes.of_data(data).lock) is False
        first.say()


def test_a_forked_child_neither_releases_nor_keeps_it_nor_ends_what_is_its_parents(data: Path) -> None:
    with Server(data, cleanup="tells") as first:
        first.wait("held")
        first.say("fork")
        assert first.wait("forked")["held"] is False
        assert locks.is_held(scopes.of_data(data).lock) is True
        assert sidecar(data).exists()
        first.kill()
        wait_until(lambda: locks.is_held(scopes.of_data(data).lock) is False, what="the lock is free")


def test_a_clock_that_is_set_changes_nothing__w10(data: Path) -> None:
    """The time of day is written down for people; no decision reads it."""
    with Server(data, program="old") as first:
        first.wait("held")
        found = holders.read(sidecar(data))
        assert found is not None
        for since in (0.0, found.since + 1e6):
            holders.write(sidecar(data), found._replace(since=since))
            assert holders.find(scopes.of_data(data)) == found._replace(since=since)
        first.say()
