"""The control socket from both ends: the real client against the real server, with a keeper that the test plays."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from supervisor import control, control_server
from supervisor.control import MAX_LINE, ControlError, ask, converse
from supervisor.control_server import serve
from supervisor.errors import ExitCode, UsageError
from supervisor.slot import SOCKET_PATH_LIMIT, Slot, connectable
from tests.support import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from supervisor.draining import InFlight

WARDEN = {"pid": 7, "ticks": 100}
LIMIT = 20.0
"""Seconds: only a hang takes so long."""


class FakeKeeper:
    """What the server serves. Used on the server's thread alone, by way of `Server.do`."""

    acts: ClassVar = {"retry": None}

    def __init__(self) -> None:
        self.change = trio.Event()
        self.number = 0
        self.up: set[str] = set()
        self.stopped = ""
        self.padding = ""
        self.is_at_rest = True
        self.draining = ""
        self.owes = 1

    async def act(self, op: str, question: dict[str, Any]) -> None:
        if not question["groups"]:
            raise UsageError("nothing to retry", "name one")
        self.number += 100

    def snapshot(self) -> dict[str, Any]:
        return {"number": self.number, "stopped": self.stopped, "padding": self.padding}

    def brief(self) -> dict[str, Any]:
        return {"number": self.number, "warden": WARDEN}

    def is_settled(self, groups: list[str]) -> bool:
        return set(groups) <= self.up

    def begin_stop(self, why: str) -> None:
        self.stopped = why
        self.tell()

    def drains(self, who: str) -> None:
        self.draining = who

    def in_flight(self) -> InFlight:
        return {"chat": self.owes}

    def tell(self) -> None:
        """Something changed."""
        self.number += 1
        self.change.set()
        self.change = trio.Event()


class Server:
    """`serve` on a thread of its own, as a keeper would run it."""

    def __init__(self, slot: Slot) -> None:
        self.slot, self.keeper = slot, FakeKeeper()
        self.failure: BaseException | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        with connectable(slot.control_socket) as path:
            self._listener.bind(path)
        self._listener.listen(8)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper")

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(LIMIT)
        return self

    def __exit__(self, *_: object) -> None:
        if self.failure is None:
            with suppress(trio.RunFinishedError):
                trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)
        self._thread.join(LIMIT)
        self._listener.close()
        assert not self._thread.is_alive()
        assert self.failure is None, f"the keeper died of it: {self.failure!r}"

    def _run(self) -> None:
        async def main() -> None:
            self._token = trio.lowlevel.current_trio_token()
            with trio.CancelScope() as self._scope:
                self._ready.set()
                await serve(self.keeper, self._listener.dup().detach())

        try:
            trio.run(main)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test says so
            self.failure = error

    def do(self, function: Any, *arguments: Any) -> None:
        """Have the keeper do something, and wait until everything that follows from it is done."""

        async def act() -> None:
            function(*arguments)
            await wait_all_tasks_blocked()

        trio.from_thread.run(act, trio_token=self._token)

    def settle(self) -> None:
        self.do(lambda: None)

    @contextmanager
    def caller(self, question: bytes = b"") -> Iterator[socket.socket]:
        """A caller by hand."""
        with socket.socket(socket.AF_UNIX) as made:
            made.settimeout(LIMIT)
            with connectable(self.slot.control_socket) as path:
                made.connect(path)
            made.sendall(question)
            yield made


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    made = Slot(tmp_path / "slot")
    made.prepare()
    return made


@pytest.fixture
def server(slot: Slot) -> Iterator[Server]:
    with Server(slot) as running:
        yield running


def lines_of(caller: socket.socket) -> Iterator[dict[str, Any]]:
    with caller.makefile("rb") as file:
        for line in file:
            yield json.loads(line)


def follow(server: Server, op: str = "follow", **arguments: Any) -> Iterator[dict[str, Any]]:
    return converse(server.slot, op, limit=LIMIT, **arguments)


def test_a_question_is_answered(server: Server) -> None:
    assert ask(server.slot, "status") == {"number": 0, "stopped": "", "padding": ""}


def test_a_brief_answer_has_what_binding_needs_and_does_not_look_at_members(server: Server) -> None:
    assert ask(server.slot, "status", brief=True) == {"number": 0, "warden": WARDEN}
    assert ask(server.slot, "status", brief="yes") == {"number": 0, "stopped": "", "padding": ""}


def test_what_the_keeper_does_is_answered_with_how_it_stands_then_or_why_not(server: Server) -> None:
    assert ask(server.slot, "retry", groups=["chat"])["number"] == 100
    with pytest.raises(ControlError, match="nothing to retry") as refused:
        ask(server.slot, "retry")
    assert (refused.value.exit_code, refused.value.next_step) == (ExitCode.USAGE, "name one")
    assert ask(server.slot, "status")["number"] == 100


def test_one_caller_does_not_wait_for_another(server: Server) -> None:
    with server.caller(b'{"op": "st'), server.caller(b'{"op": "follow"}\n'), server.caller():
        assert ask(server.slot, "status")["number"] == 0


def test_a_follower_hears_of_each_change(server: Server) -> None:
    heard = follow(server)
    assert next(heard)["number"] == 0
    for number in (1, 2, 3):
        server.do(server.keeper.tell)
        assert next(heard)["number"] == number


def test_changes_in_a_row_make_one_answer(server: Server) -> None:
    def tell_thrice() -> None:
        for _ in range(3):
            server.keeper.tell()

    heard = follow(server)
    next(heard)
    server.settle()
    server.do(tell_thrice)
    assert next(heard)["number"] == 3
    server.do(server.keeper.tell)
    assert next(heard)["number"] == 4


def test_a_change_while_an_answer_is_being_sent_is_not_missed(server: Server) -> None:
    """The follower reads slowly: the server waits in the middle of a large answer, and the world goes on."""
    server.do(setattr, server.keeper, "padding", "x" * 4_000_000)
    with server.caller(b'{"op": "follow"}\n') as slow:
        server.settle()  # it is sending, and the socket is full
        server.do(server.keeper.tell)
        answers = lines_of(slow)
        assert next(answers)["number"] == 0
        assert next(answers)["number"] == 1


def test_a_wait_ends_when_the_groups_are_up(server: Server) -> None:
    result: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: result.append(ask(server.slot, "wait", limit=LIMIT, groups=["chat"])))
    waiting.start()
    server.do(server.keeper.tell)
    server.do(server.keeper.up.add, "embed")
    server.do(server.keeper.tell)
    assert result == []
    server.do(server.keeper.up.add, "chat")
    server.do(server.keeper.tell)
    waiting.join(LIMIT)
    assert result[0]["number"] == 3
    assert ask(server.slot, "wait", groups=[]) == result[0]
    assert ask(server.slot, "wait") == result[0]


def test_a_stop_is_passed_on_with_who_asked_and_followed_to_its_end(slot: Slot) -> None:
    with Server(slot) as server:
        heard = follow(server, "stop", who="a test")
        assert next(heard)["stopped"] == ""
        assert next(heard)["stopped"] == "asked by a test"
        server.do(server.keeper.tell)
        assert next(heard)["number"] == 2
    assert list(heard) == []


def test_a_stop_without_a_name_and_one_with_a_long_one(server: Server) -> None:
    for who, shown in (({}, "asked by an unnamed caller"), ({"who": "x" * 999}, f"asked by {'x' * 200}")):
        heard = follow(server, "stop", **who)
        next(heard)
        assert next(heard)["stopped"] == shown


def test_a_stop_that_is_meant_for_one_warden_stops_no_other_ones_engine(server: Server) -> None:
    for other in ({"pid": 7, "ticks": 99}, {"pid": 8, "ticks": 100}, {}):
        with pytest.raises(ControlError, match="this is another one"):
            next(follow(server, "stop", who="a test", warden=other))
        assert server.keeper.stopped == ""
    heard = follow(server, "stop", who="a test", warden=WARDEN)
    assert [next(heard)["stopped"] for _ in range(2)] == ["", "asked by a test"]


def test_a_stop_that_drains_comes_when_that_is_over_and_says_what_came_of_it(server: Server) -> None:
    heard = follow(server, "stop", who="a test", drain_s=30)
    assert [next(heard)["stopped"] for _ in range(2)] == ["", ""]
    assert server.keeper.draining == "asked by a test; it waits for requests in flight, 30 s at most"
    server.do(setattr, server.keeper, "owes", 0)
    assert next(heard)["stopped"].startswith("asked by a test; nothing was in flight after ")
    assert server.keeper.draining == ""


def test_where_somebody_drains_it_already_a_second_stop_is_at_once(server: Server) -> None:
    first, second = follow(server, "stop", who="one", drain_s=30), follow(server, "stop", who="two", drain_s=30)
    assert [next(first)["stopped"] for _ in range(2)] == ["", ""]
    assert [next(second)["stopped"] for _ in range(2)] == ["", "asked by two"]


def test_a_caller_who_hangs_up_while_it_drains_calls_the_stop_off(server: Server) -> None:
    heard = follow(server, "stop", drain_s=30)
    next(heard), next(heard)
    assert server.keeper.draining
    heard.close()  # type: ignore[attr-defined]
    wait_until(lambda: not server.keeper.draining, what="called off")
    server.do(setattr, server.keeper, "owes", 0)
    assert ask(server.slot, "status")["stopped"] == ""


@pytest.mark.parametrize("drain_s", [-1, 3601, "5", True, None, float("nan")])
def test_a_drain_that_is_no_time_is_refused_and_nothing_is_stopped(server: Server, drain_s: object) -> None:
    with pytest.raises(ControlError, match="no number of seconds from 0 to 3600") as refused:
        next(follow(server, "stop", drain_s=drain_s))
    assert refused.value.exit_code is ExitCode.USAGE
    assert ask(server.slot, "status")["stopped"] == ""


GARBAGE = [
    b"\n",
    b"status\n",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b"5\n",
    b'"status"\n',
    b'{"op": "restart"}\n',
    b'{"op": null}\n',
    b'{"op": ["status"]}\n',
    b'{"op": {"a": 1}}\n',
    b'{"op": "status"\n',
    b'{"op": "status"} {}\n',
    b'{"op": "status"}\n{"op": "status"}\n',
    b"\xff\xfe\n",
    b"GET /status HTTP/1.1\r\n",
    b"1" * 10_000 + b"\n",
    b"[" * 100_000 + b"\n",
    b'{"a":' * 100_000 + b"\n",
    b'{"op": "wait", "groups": 5}\n',
    b'{"op": "wait", "groups": null}\n',
    b'{"op": "wait", "groups": [["chat"]]}\n',
    b'{"op": "wait", "groups": [{}]}\n',
]


@pytest.mark.parametrize("question", GARBAGE, ids=lambda question: repr(question[:30]))
def test_garbage_gets_an_answer_and_harms_nothing(server: Server, question: bytes) -> None:
    with server.caller(question) as caller:
        answer = next(lines_of(caller))
    assert answer == {
        "error": "not a question of this protocol",
        "next_step": "known: follow, rest, retry, status, stop, wait",
    }
    assert ask(server.slot, "status")["number"] == 0


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists).map(json.dumps).map(str.encode)
)
@settings(max_examples=30, deadline=None)
def test_no_bytes_end_the_keeper(tmp_path_factory: pytest.TempPathFactory, said: bytes) -> None:
    slot = Slot(tmp_path_factory.mktemp("s") / "slot")
    slot.prepare()
    with Server(slot) as server:
        with server.caller(said + b"\n") as caller:
            assert "error" in next(lines_of(caller))
        assert ask(slot, "status")["number"] == 0


def test_an_error_reaches_the_caller_as_one(server: Server) -> None:
    with pytest.raises(ControlError, match="not a question of this protocol") as raised:
        ask(server.slot, "restart")
    assert raised.value.next_step == "known: follow, rest, retry, status, stop, wait"
    assert raised.value.listening


def test_a_line_that_is_too_long_is_not_read_to_its_end(server: Server) -> None:
    with server.caller() as caller:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            caller.sendall(b"x" * (10 * MAX_LINE))
        with pytest.raises(ControlError):
            ask(server.slot, "status", limit=LIMIT, padding="x" * (2 * MAX_LINE))
    assert ask(server.slot, "status")["number"] == 0


@pytest.mark.parametrize("op", ["status", "follow", "wait", "stop"])
@pytest.mark.parametrize("reads", ["nothing", "some"])
def test_a_caller_who_hangs_up_harms_nobody(server: Server, op: str, reads: str) -> None:
    """Also in the middle of an answer: what he has not read makes the kernel say ECONNRESET to the keeper."""
    server.do(setattr, server.keeper, "padding", "x" * 4_000_000)
    question = json.dumps({"op": op, "groups": ["never"] if op == "wait" else []}).encode() + b"\n"
    with server.caller(question) as caller:
        server.settle()
        if reads == "some" and op != "wait":
            assert caller.recv(1000)
    server.settle()
    for _ in range(3):
        server.do(server.keeper.tell)
    server.do(setattr, server.keeper, "padding", "")
    assert ask(server.slot, "status", limit=LIMIT)["number"] >= 3


def test_a_caller_who_leaves_before_he_asked_anything(server: Server) -> None:
    for said in (b"", b'{"op"', b"x" * 1000):
        with server.caller(said):
            pass
    assert ask(server.slot, "status")["number"] == 0


def test_a_keeper_that_is_silent_is_not_waited_for_any_longer_than_asked(slot: Slot) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(slot.control_socket))
        listener.listen(8)
        began = time.monotonic()
        with pytest.raises(ControlError, match=r"the keeper of .* did not answer in time") as raised:
            ask(slot, "status", limit=0.1)
        assert 0.1 <= time.monotonic() - began < LIMIT
        assert raised.value.listening, "somebody listens there, who may answer yet"


def test_the_limit_is_for_the_whole_conversation(server: Server) -> None:
    """A keeper that always has something more to say does not make it longer."""

    def talk() -> None:
        for _ in converse(server.slot, "follow", limit=0.2):
            server.do(server.keeper.tell)

    with pytest.raises(ControlError, match="did not answer in time"):
        talk()


def test_a_keeper_that_hangs_up_without_a_word(slot: Slot) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(slot.control_socket))
        listener.listen(8)
        hangs_up = threading.Thread(target=lambda: listener.accept()[0].close())
        hangs_up.start()
        with pytest.raises(ControlError, match=r"closed the connection without an answer|control\.sock") as raised:
            ask(slot, "status", limit=LIMIT)
        hangs_up.join(LIMIT)
        assert raised.value.listening


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\n", b"[1]\n", b"\xff\n", b"5\n", b'{"number": 1\n'])
def test_an_answer_that_is_none_is_an_error_of_ours(slot: Slot, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(slot.control_socket))
        listener.listen(8)

        def reply() -> None:
            connection = listener.accept()[0]
            with connection:
                connection.recv(100)
                connection.sendall(said)

        replies = threading.Thread(target=reply)
        replies.start()
        with pytest.raises(ControlError, match="is not a keeper's"):
            ask(slot, "status", limit=LIMIT)
        replies.join(LIMIT)


def test_nobody_listens(slot: Slot) -> None:
    with pytest.raises(ControlError, match="nothing listens on") as raised:
        ask(slot, "status")
    assert not raised.value.listening
    with socket.socket(socket.AF_UNIX) as dead:  # a socket's file whose owner is gone
        dead.bind(str(slot.control_socket))
    with pytest.raises(ControlError, match="nothing listens on") as raised:
        ask(slot, "status")
    assert not raised.value.listening


def test_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    slot = Slot(tmp_path / ("d" * 100) / ("e" * 100))
    slot.prepare()
    assert len(str(slot.control_socket)) > SOCKET_PATH_LIMIT
    with Server(slot) as server:
        assert ask(server.slot, "status")["number"] == 0


def test_an_error_survives_pickling() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(ControlError("what", "next", listening=True)))  # noqa: S301 - our own
    assert (error.what, error.next_step, error.listening) == ("what", "next", True)


@pytest.mark.process
def test_the_client_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    script = (
        "import sys, supervisor.control; print([m for m in ('trio', 'cattrs', 'httpx', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert control.MAX_LINE == 1 << 20


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_users_process_is_not_answered__ra_multiplex_42(slot: Slot) -> None:
    """Modes would keep it out already: they are opened here, as a descriptor that was passed on would be."""
    server = Server(slot)
    os.chmod(slot.path, 0o711)  # noqa: S103 - what the test is about
    os.chmod(slot.control_socket, 0o666)  # noqa: S103 - the same
    folder, (told, tell) = os.open(slot.path, os.O_PATH | os.O_DIRECTORY), os.pipe()
    stranger = os.fork()  # before there are threads
    if stranger == 0:
        try:
            os.setuid(65534)
            os.read(told, 1)
            with socket.socket(socket.AF_UNIX) as made:
                made.settimeout(LIMIT)
                made.connect(f"/proc/self/fd/{folder}/{slot.control_socket.name}")
                with suppress(BrokenPipeError):
                    made.sendall(b'{"op":"status"}\n')
                with suppress(ConnectionResetError):
                    os._exit(1 if made.recv(4096) else 0)
                os._exit(0)
        finally:
            os._exit(2)
    try:
        with server:
            os.write(tell, b"!")
            assert os.waitstatus_to_exitcode(os.waitpid(stranger, 0)[1]) == 0
            assert ask(slot, "status")["number"] == 0
    finally:
        for descriptor in (folder, told, tell):
            os.close(descriptor)


def test_callers_beyond_the_most_are_told_so(slot: Slot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_server, "CONNECTIONS_MOST", 2)
    with Server(slot) as server:
        with server.caller(b'{"op":"follow"}\n') as one, server.caller(b'{"op":"follow"}\n') as two:
            assert one.recv(4096)
            assert two.recv(4096)
            with pytest.raises(ControlError, match="2 connections already"):
                ask(slot, "status")
        wait_until(lambda: _is_answered(slot), within=LIMIT, what="there is room again")


def _is_answered(slot: Slot) -> bool:
    with suppress(ControlError):
        return "number" in ask(slot, "status")
    return False
