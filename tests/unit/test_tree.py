"""The tree of groups by itself: what an earlier engine left to a group that does not start at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from supervisor import undoing
from supervisor.contract import EngineSpec, Exit, State
from supervisor.procs import Row
from supervisor.slot import Slot
from supervisor.tree import Tree, latest_rows
from tests.unit import group_bench
from tests.unit.group_bench import SPEC, FakeKind, FakeWarden, jumping

if TYPE_CHECKING:
    from pathlib import Path

    from supervisor.procs import Procs


@pytest.mark.parametrize(
    ("states", "chosen"),
    [
        (["running", "gone"], "g0"),  # the one that follows died at once, or is told late: what lives is not given away
        (["gone", "running"], "g1"),
        (["gone", "gone"], "g1"),
        (["gone", "stopping", "gone"], "g1"),
    ],
)
def test_the_generation_that_is_taken_up_is_the_one_that_lives_else_the_last(states: list[str], chosen: str) -> None:
    rows = [Row(f"g{number}", "chat", 1, 1, state, Exit(0, 0), None) for number, state in enumerate(states)]
    other = Row("x0", "embed", 1, 1, "gone", Exit(0, 0), None)
    found = latest_rows([*rows, other])
    assert {name: row.gen for name, row in found.items()} == {"chat": chosen, "embed": "x0"}


@jumping
async def test_a_group_that_is_released_stays_down_while_the_slot_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_bench.prepare(monkeypatch)
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    tree = Tree(
        EngineSpec((SPEC,)), slot, lambda _: FakeKind(), cast("Procs", FakeWarden()),
        tell=lambda *_: None, tell_end=lambda _: None, changed=trio.lowlevel.checkpoint,
    )  # fmt: skip

    def state() -> State:
        return tree.groups["chat"].state

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: tree.run(held="held by bob", held_groups={"chat": "held by ann"}))
        await trio.sleep(60)
        tree.release_groups(["chat"])
        await trio.sleep(60)
        assert state() is State.HELD
        tree.release()
        await trio.sleep(60)
        assert state() is State.RUNNING
        nursery.cancel_scope.cancel()


@jumping
@pytest.mark.process
async def test_a_group_that_was_held_waits_for_what_an_earlier_engine_left_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_bench.prepare(monkeypatch)
    slot = Slot(tmp_path / "slot")
    slot.prepare()
    back = tmp_path / "the container engine is back"
    left = slot.generation_undo("chat", "ab12")
    left.write_text(undoing.text_of(["/usr/bin/test", "-e", str(back)], {}))
    warden = FakeWarden()
    tree = Tree(
        EngineSpec((SPEC,)), slot, lambda _: FakeKind(), cast("Procs", warden),
        tell=lambda *_: None, tell_end=lambda _: None, changed=trio.lowlevel.checkpoint,
    )  # fmt: skip

    def state() -> State:
        return tree.groups["chat"].state

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: tree.run(held_groups={"chat": "held by ann"}))
        await trio.sleep(60)
        assert state() is State.HELD
        tree.release_groups(["chat"])
        await trio.sleep(60)
        assert (state(), warden.spawned) == (State.STARTING, [])
        assert "of an earlier engine" in tree.groups["chat"].reason
        back.touch()
        await trio.sleep(60)
        await wait_all_tasks_blocked()
        assert (state(), left.exists()) == (State.RUNNING, False)
        nursery.cancel_scope.cancel()
