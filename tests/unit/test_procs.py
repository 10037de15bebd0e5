"""The keeper's side of the link, over a real socket pair: the test is the warden."""

from __future__ import annotations

import json
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from supervisor import budgets
from supervisor.contract import Exit
from supervisor.errors import LinkError
from supervisor.procs import Exited, Gone, Hello, Procs, Row, Spawned, SpawnRefusedError, Unkillable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LIMIT = 20.0
"""Seconds: only a hang takes so long."""

HELLO = {
    "ev": "hello",
    "protocol": 1,
    "pid": 41,
    "ticks": 7,
    "incarnation": 3,
    "crashes": 2,
    "last_keeper": {"code": 2, "status": 9},
}
ROW = {
    "ev": "row",
    "gen": "0a",
    "group": "chat",
    "pid": 51,
    "ticks": 8,
    "state": "running",
    "code": 0,
    "status": 0,
    "since_ns": 1,
    "note": {"ports": {"proxy": 20000}},
}
BEAT = {"op": "beat"}
LISTED = {"ev": "listed", "id": None, "notes": {"intent": {"stop": "é\u2028"}}, "strays": [[61, 9]]}


def lines(*messages: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


class Warden:
    """The other end of the link."""

    def __init__(self, end: trio.SocketStream) -> None:
        self.end = end
        self._pending, self.beats = b"", 0

    async def say(self, *messages: dict[str, Any]) -> None:
        await self.end.send_all(lines(*messages))

    async def hear(self) -> dict[str, Any]:
        """The keeper's next command; beats are passed over."""
        while (found := await self.hear_anything()) == BEAT:
            self.beats += 1
        return found

    async def hear_anything(self) -> dict[str, Any]:
        while b"\n" not in self._pending:
            data = await self.end.receive_some()
            assert data, "the keeper hung up"
            self._pending += bytes(data)
        line, _, self._pending = self._pending.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


@asynccontextmanager
async def link() -> AsyncIterator[tuple[Procs, Warden]]:
    """A link that nobody has said anything on yet. `run` is the test's to start."""
    ours, theirs = socket.socketpair()
    procs = Procs(ours.detach())
    warden = Warden(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)))
    try:
        with trio.fail_after(LIMIT):
            yield procs, warden
    finally:
        await trio.aclose_forcefully(warden.end)
        await trio.aclose_forcefully(procs._stream)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Procs, Warden]]:
    """A link over which the warden has introduced itself."""
    async with link() as (procs, warden), trio.open_nursery() as nursery:
        await warden.say(HELLO, ROW, LISTED)
        await nursery.start(procs.run)
        yield procs, warden
        nursery.cancel_scope.cancel()


async def spawn(procs: Procs, gen: str = "0b") -> Spawned:
    return await procs.spawn(
        gen=gen,
        group="chat",
        argv=["/bin/proxy", "-x"],
        env={"PATH": "/bin"},
        lock=Path("/slot/groups/chat.0b.lock"),
        log=Path("/slot/logs/chat.log"),
        note={"ready": False},
    )


@pytest.mark.trio
async def test_what_the_warden_has_is_there_when_the_link_has_started() -> None:
    async with running() as (procs, _):
        assert procs.hello == Hello(41, 7, 3, 2, Exit(2, 9))
        assert procs.rows == {"0a": Row("0a", "chat", 51, 8, "running", Exit(0, 0), {"ports": {"proxy": 20000}})}
        assert procs.notes == {"intent": {"stop": "é\u2028"}}
        assert procs.strays == [(61, 9)]


@pytest.mark.trio
async def test_the_first_keeper_of_a_slot_finds_nothing() -> None:
    async with link() as (procs, warden), trio.open_nursery() as nursery:
        await warden.say({**HELLO, "last_keeper": None}, {**LISTED, "notes": {}, "strays": []})
        await nursery.start(procs.run)
        assert (procs.hello.last_keeper, procs.rows, procs.notes) == (None, {}, {})
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_the_link_has_not_started_before_the_list_is_whole() -> None:
    async with link() as (procs, warden), trio.open_nursery() as nursery:
        started = trio.Event()

        async def start() -> None:
            await nursery.start(procs.run)
            started.set()

        nursery.start_soon(start)
        await warden.say(HELLO, ROW)
        await wait_all_tasks_blocked()
        assert not started.is_set()
        await warden.say(LISTED)
        await started.wait()
        nursery.cancel_scope.cancel()


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_lines_are_put_together_however_they_arrive(data: st.DataObject) -> None:
    notes = data.draw(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3))
    said = lines(HELLO, ROW, {**LISTED, "notes": notes}, {"ev": "gone", "gen": "0a", "killed": 1, "ms": 0.5})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said)), max_size=12)))

    async def play() -> None:
        async with link() as (procs, warden), trio.open_nursery() as nursery:
            news = procs.follow("0a")
            nursery.start_soon(procs.run)
            for start, end in zip([0, *cuts], [*cuts, len(said)], strict=True):
                await warden.end.send_all(said[start:end])
                await wait_all_tasks_blocked()
            assert await news.receive() == Gone(1, 0.5)
            assert procs.notes == notes
            assert list(procs.rows) == ["0a"]
            nursery.cancel_scope.cancel()

    trio.run(play)


@pytest.mark.trio
async def test_a_line_of_a_mebibyte_arrives() -> None:
    async with running() as (procs, warden):
        news = procs.follow("0a")
        await warden.say({"ev": "unkillable", "gen": "0a", "pids": list(range(150_000))})
        told = await news.receive()
        assert isinstance(told, Unkillable)
        assert len(told.pids) == 150_000


@pytest.mark.trio
async def test_news_is_kept_until_somebody_follows() -> None:
    async with running() as (procs, warden):
        await warden.say(
            {"ev": "exit", "gen": "0c", "code": 2, "status": 9, "at_ns": 1},
            {"ev": "unkillable", "gen": "0c", "pids": [5]},
            {"ev": "gone", "gen": "0c", "killed": 2, "ms": 1.5},
            {"ev": "gone", "gen": "0d", "killed": 0, "ms": 0.5},
        )
        await wait_all_tasks_blocked()
        news = procs.follow("0c")
        assert [await news.receive() for _ in range(3)] == [Exited(Exit(2, 9)), Unkillable((5,)), Gone(2, 1.5)]
        assert await procs.follow("0d").receive() == Gone(0, 0.5)


@pytest.mark.trio
async def test_a_spawn_is_asked_for_and_answered() -> None:
    async with running() as (procs, warden), trio.open_nursery() as nursery:
        result: list[Spawned] = []

        async def start() -> None:
            result.append(await spawn(procs))

        nursery.start_soon(start)
        asked = await warden.hear()
        assert asked == {
            "op": "spawn",
            "id": asked["id"],
            "gen": "0b",
            "group": "chat",
            "argv": ["/bin/proxy", "-x"],
            "env": {"PATH": "/bin"},
            "lock": "/slot/groups/chat.0b.lock",
            "log": "/slot/logs/chat.log",
            "note": {"ready": False},
            "cwd": "/",
        }
        await warden.say({"ev": "spawned", "id": asked["id"], "gen": "0b", "pid": 77, "ticks": 12})
        await wait_all_tasks_blocked()
        assert result == [Spawned(77, 12)]


@pytest.mark.trio
@pytest.mark.parametrize(
    "answer", [{"ev": "error", "errno": 2, "why": "No such file"}, {"ev": "error", "why": "No such file"}]
)
async def test_a_spawn_that_is_refused_names_program_and_reason(answer: dict[str, Any]) -> None:
    async with running() as (procs, warden), trio.open_nursery() as nursery:

        async def refuse() -> None:
            await warden.say({**answer, "id": (await warden.hear())["id"]})

        nursery.start_soon(refuse)
        with pytest.raises(SpawnRefusedError, match="cannot start /bin/proxy: No such file"):
            await spawn(procs)


@pytest.mark.trio
async def test_answers_find_their_questions_in_any_order() -> None:
    async with running() as (procs, warden), trio.open_nursery() as nursery:
        results: dict[str, Spawned] = {}

        async def start(gen: str) -> None:
            results[gen] = await spawn(procs, gen)

        for gen in ("0b", "0c", "0d"):
            nursery.start_soon(start, gen)
        asked = [await warden.hear() for _ in range(3)]
        for number, question in enumerate(reversed(asked)):
            await warden.say({"ev": "spawned", "id": question["id"], "gen": question["gen"], "pid": number, "ticks": 1})
        await wait_all_tasks_blocked()
        assert results == {question["gen"]: Spawned(n, 1) for n, question in enumerate(reversed(asked))}


@pytest.mark.trio
async def test_commands_go_out_in_order_and_at_once() -> None:
    """A note that is posted before a kill must be with the warden before it: the next keeper reads it."""
    async with running() as (procs, warden):
        procs.note_slot("intent", {"stop": "why"})
        procs.note_generation("0a", {"ready": True})
        procs.kill("0a", 15)
        procs.kill("0a", 9, everybody=True)
        procs.forget("0a")
        assert [await warden.hear() for _ in range(5)] == [
            {"op": "note", "key": "intent", "value": {"stop": "why"}},
            {"op": "note", "gen": "0a", "value": {"ready": True}},
            {"op": "kill", "id": 0, "gen": "0a", "sig": 15, "scope": "leader"},
            {"op": "kill", "id": 0, "gen": "0a", "sig": 9, "scope": "all"},
            {"op": "forget", "gen": "0a"},
        ]
        assert procs.rows == {}
        assert procs.notes["intent"] == {"stop": "why"}


@pytest.mark.trio
async def test_a_command_that_was_not_taken_is_said_and_harms_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    async with running() as (procs, warden):
        await warden.say({"ev": "error", "id": 0, "why": "KeyError: '0z'"}, {"ev": "error", "id": None, "why": "x"})
        await warden.say({"ev": "reaped", "pid": 9, "code": 1, "status": 0}, {"ev": "of a newer warden"})
        await warden.say({"ev": "signal", "sig": 15})
        assert await procs.signals.receive() == 15
    assert "the warden did not take a command: KeyError: '0z'" in capfd.readouterr().err


@pytest.mark.trio
async def test_the_keeper_beats_from_its_first_moment_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the warden has said anything, and while nobody asks for anything."""
    monkeypatch.setattr(budgets, "KEEPER_BEAT", 0.01)
    async with link() as (procs, warden), trio.open_nursery() as nursery:
        nursery.start_soon(procs.run)
        assert [await warden.hear_anything() for _ in range(3)] == [BEAT] * 3
        nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("argv", [None, ["/new/python", "-P", "keeper.py"]])
@pytest.mark.parametrize(
    ("answer", "result"), [({"ev": "done"}, ""), ({"ev": "error", "why": "No such file"}, "No such file")]
)
async def test_a_successor_is_granted_or_refused_with_a_reason(
    argv: list[str] | None, answer: dict[str, Any], result: str
) -> None:
    async with running() as (procs, warden), trio.open_nursery() as nursery:

        async def reply() -> None:
            asked = await warden.hear()
            assert (asked["op"], asked["argv"]) == ("replace", argv)
            await warden.say({**answer, "id": asked["id"]})

        nursery.start_soon(reply)
        assert await procs.replace(argv) == result


@pytest.mark.trio
@pytest.mark.parametrize(
    ("answer", "result"), [({"ev": "done"}, ""), ({"ev": "error", "why": "still alive: 0a"}, "still alive: 0a")]
)
async def test_quitting_is_granted_or_refused_with_a_reason(answer: dict[str, Any], result: str) -> None:
    async with running() as (procs, warden), trio.open_nursery() as nursery:

        async def reply() -> None:
            asked = await warden.hear()
            assert asked["op"] == "quit"
            await warden.say({**answer, "id": asked["id"]})

        nursery.start_soon(reply)
        assert await procs.quit() == result


@pytest.mark.trio
@pytest.mark.parametrize("introduced", [True, False])
async def test_the_end_of_the_link_is_an_error_that_ends_the_keeper(introduced: bool) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(LinkError, match="the warden is gone"), flatten_subgroups=True):
        async with link() as (procs, warden), trio.open_nursery() as nursery:
            if introduced:
                await warden.say(HELLO, LISTED)
            nursery.start_soon(procs.run)
            await wait_all_tasks_blocked()
            await warden.end.aclose()
            await trio.sleep_forever()


@pytest.mark.trio
async def test_a_question_that_is_open_when_the_warden_goes_does_not_wait_for_ever() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(LinkError, match="the warden is gone"), flatten_subgroups=True):
        async with running() as (procs, warden), trio.open_nursery() as nursery:
            nursery.start_soon(spawn, procs)
            await warden.hear()
            await warden.end.aclose()
            await trio.sleep_forever()


@pytest.mark.trio
async def test_a_protocol_that_is_not_ours_is_refused() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(LinkError, match="protocol 2, we speak 1"), flatten_subgroups=True):
        async with link() as (procs, warden):
            await warden.say({**HELLO, "protocol": 2})
            await procs.run()


@pytest.mark.trio
async def test_a_keeper_that_ends_is_not_held_up_by_its_writer() -> None:
    """Its shield covers the line being sent, not the wait for the next one."""
    async with running() as (_, _):
        pass  # `link` fails after LIMIT


@pytest.mark.trio
async def test_a_line_is_never_cut_short_by_a_cancellation() -> None:
    """The warden reads slowly, the keeper ends in the middle of a large line: it arrives whole or not at all."""
    async with link() as (procs, warden), trio.open_nursery() as outer:
        await warden.say(HELLO, LISTED)
        scope = trio.CancelScope()

        async def keeper() -> None:
            with scope:
                await procs.run()

        outer.start_soon(keeper)
        await wait_all_tasks_blocked()
        procs.note_slot("big", "x" * 4_000_000)
        await wait_all_tasks_blocked()  # the socket is full by now
        scope.cancel()
        assert (await warden.hear())["value"] == "x" * 4_000_000
