"""Big bodies are worked on in a thread, one at a time; small ones at once."""

from __future__ import annotations

import threading

import trio

from supervisor.gateway.aside import BIG_BYTES, Aside


def test_a_small_body_is_worked_on_at_once_and_a_big_one_keeps_nobody_waiting() -> None:
    places: list[int] = []
    running: list[str] = []
    most = 0
    go_on = threading.Event()

    def big(name: str) -> str:
        nonlocal most
        running.append(name)
        most = max(most, len(running))
        places.append(threading.get_ident())
        assert go_on.wait(10)
        running.remove(name)
        return name

    async def scene() -> None:
        aside = Aside()
        done: list[str] = []

        async def one(name: str) -> None:
            done.append(await aside.do(BIG_BYTES, lambda: big(name)))

        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(one, name)
            assert await aside.do(BIG_BYTES - 1, threading.get_ident) == threading.get_ident()
            assert done == []
            go_on.set()
        assert sorted(done) == ["a", "b", "c"]

    trio.run(scene)
    assert most == 1
    assert threading.get_ident() not in places


def test_what_the_work_raises_comes_through() -> None:
    def broken() -> None:
        raise ValueError("no JSON")

    async def scene() -> list[str]:
        found = []
        for size in (0, BIG_BYTES):
            try:
                await Aside().do(size, broken)
            except ValueError as error:
                found.append(str(error))
        return found

    assert trio.run(scene) == ["no JSON", "no JSON"]
