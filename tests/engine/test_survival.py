"""Nothing kills it: each process of the engine is killed with -9, and what must go on goes on."""

from __future__ import annotations

import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from supervisor import control, identity, records, resolving
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, Family, kill
from tests.fakes.llama_server import story
from tests.support import wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process

RATE = 20
PROMPT = "tell me of bees"


def whole(tokens: int) -> str:
    """The answer that a server that nobody kills gives: a function of the prompt."""
    return "".join(story(PROMPT, 0, tokens))


def slow(place: Place) -> None:
    """Configure a chat server that takes its time, and an embed group that nobody may touch."""
    place.configure({"chat": (Launch("chat", knobs={"rate": RATE}),), "embed": (Launch("embed", place.kit.embed),)})


def untouched(before: Family, after: Family, *names: str) -> None:
    """These processes are the same, by pid and start ticks."""
    assert {name: after.engine[name] for name in names} == {name: before.engine[name] for name in names}


def test_a_killed_server_is_replaced_and_no_request_is_lost(place: Place) -> None:
    slow(place)
    front = place.member()
    before = place.family()
    generation = place.group()["generation"]
    held = front.begin("ask", role="chat", prompt=PROMPT, tokens=RATE)
    stream = front.begin("stream", role="chat", prompt=PROMPT, tokens=10 * RATE)
    front.first(stream)
    wait_until(lambda: place.receipts() == 2, what="both requests are being answered")

    kill(before.servers["chat"])
    late = front.begin("ask", role="chat", prompt=PROMPT, tokens=3)

    # Its first byte was not delivered: it is sent again, and the caller never knows.
    assert front.result(held)["text"] == whole(RATE)
    assert front.result(late)["text"] == whole(3)
    # This one was cut, and is never shown as whole, nor sent a second time.
    cut = front.result(stream)
    assert cut["interrupted"]
    assert not cut["finished"]
    assert whole(10 * RATE).startswith(cut["text"])
    assert len(cut["text"]) < len(whole(10 * RATE))
    assert place.receipts() == 4

    after = place.family()
    untouched(before, after, "proxy chat", "proxy embed", "embed")
    assert after.servers["chat"] != before.servers["chat"]
    assert (after.keeper, after.warden) == (before.keeper, before.warden)
    assert place.group()["generation"] == generation
    assert len(place.spawns("chat")) == 2


def test_a_killed_proxy_is_replaced_on_the_same_port_with_its_servers(place: Place) -> None:
    slow(place)
    front = place.member()
    before, was = place.family(), place.group()
    newcomer = place.front("newcomer")
    newcomer.do("warm_up")
    held = front.begin("ask", role="chat", prompt=PROMPT, tokens=RATE)
    wait_until(lambda: place.receipts() == 1, what="the request is being answered")

    most = 0

    def rebuilt() -> bool:
        nonlocal most
        most = max(most, len(live_servers(place, "chat")))
        return len(place.spawns("chat")) == 2

    with Deaths([before.servers["chat"]]) as deaths:
        kill(before.proxies["chat"])
        joining = newcomer.begin("open", config=str(place.config), program="newcomer")
        wait_until(rebuilt, what="another server")
        assert deaths.alive() == []
    assert most == 1, "the old server must be gone before the new one starts"

    assert front.result(held)["text"] == whole(RATE)
    assert newcomer.result(joining)["how"] == "bind"
    after, now = place.family(), place.group()
    untouched(before, after, "proxy embed", "embed")
    assert now["proxy"]["port"] == was["proxy"]["port"]
    assert now["generation"] != was["generation"]
    assert now["restarts"] == 1
    assert len(place.spawns("chat")) == 2
    assert place.receipts() == 2
    assert not place.slot.generation_lock("chat", was["generation"]).exists()
    assert not place.slot.generation_config("chat", was["generation"]).exists()


@pytest.mark.long
def test_every_look_during_many_rebuilds_shows_one_generation_whole(place: Place) -> None:
    place.configure({"chat": (Launch("chat"),)})
    place.member()
    path = place.slot.group_record("chat")
    enough = threading.Event()
    seen: dict[str, set[tuple[int, int]]] = {}

    def read_for_ever() -> None:
        while not enough.is_set():
            for facts in (records.read_fields(path, version=1), place.group()):
                if facts is not None and facts["generation"] is not None:
                    pair = (facts["proxy"]["pid"], facts["proxy"]["port"])
                    seen.setdefault(facts["generation"], set()).add(pair)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_for_ever)
        try:
            for _ in range(5):
                family = place.family()
                kill(family.proxies["chat"])
                wait_until(lambda old=family: place.family().proxies != old.proxies, what="a new proxy")  # type: ignore[misc]
        finally:
            enough.set()
        reading.result(30)
    assert len(seen) == 6
    assert all(len(pairs) == 1 for pairs in seen.values()), seen
    assert len(set.union(*seen.values())) == 6


@pytest.mark.long
def test_every_look_during_fifty_rebuilds_shows_one_generation_whole__hermes_1631(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebuilt on request: a group that dies so often is given up. What was launched belongs to its generation, too."""
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    rebuilds, enough = 50, threading.Event()
    seen: dict[str, set[tuple[int, int]]] = {}
    servers_of: dict[int, set[str]] = {}

    def read_for_ever() -> None:
        while not enough.is_set():
            for facts in (records.read_fields(place.slot.group_record("chat"), version=1), place.group()):
                if facts is not None and facts["generation"] is not None:
                    pair = (facts["proxy"]["pid"], facts["proxy"]["port"])
                    seen.setdefault(facts["generation"], set()).add(pair)
                    for server in facts["servers"]:
                        if server["pid"] is not None:
                            servers_of.setdefault(server["pid"], set()).add(facts["generation"])

    def configure(number: int) -> None:
        place.configure({"chat": (Launch("chat", context=1024 + number),)})

    configure(0)
    front = place.member()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_for_ever)
        try:
            for number in range(1, rebuilds + 1):
                old = place.group()["generation"]
                configure(number)
                wanted = resolving.resolve(resolving.load(place.config))
                control.ask(place.slot, "configure", contract=records.unstructure(wanted), who="test")
                wait_until(lambda old=old: place.wait_state("running")["generation"] != old, what="a new one")  # type: ignore[misc]
        finally:
            enough.set()
        reading.result(30)
    assert len(seen) == len(place.spawns()) == rebuilds + 1
    assert all(len(pairs) == 1 for pairs in seen.values()), seen
    assert len(set.union(*seen.values())) == rebuilds + 1
    assert all(len(generations) == 1 for generations in servers_of.values()), servers_of
    assert front.ask("chat", PROMPT) == whole(8)


@pytest.mark.long
def test_an_engine_that_is_stopped_and_started_at_any_moment_never_piles_up(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 0.2}),), "embed": (Launch("embed", place.kit.embed),)})
    moments = random.Random(2)
    for _ in range(20):
        run = place.run(wait=False)
        time.sleep(moments.uniform(0.0, 1.5))  # anywhere in start, load and service
        run.process.terminate()
        run.wait()
        assert live_servers(place, "chat") == live_servers(place, "embed") == []
    run = place.run()
    front = place.member()
    assert front.ask("chat", PROMPT) == whole(8)
    assert len(live_servers(place, "chat")) == 1


def test_a_killed_keeper_is_not_noticed_by_anybody_who_is_served(place: Place) -> None:
    slow(place)
    first, second = place.member("first"), place.member("second")
    before = place.family()
    tokens = 4 * RATE
    streams = [(front, front.begin("stream", role="chat", prompt=PROMPT, tokens=tokens)) for front in (first, second)]
    for front, stream in streams:
        front.first(stream)
    for _ in range(2):
        keeper = place.family().keeper
        kill(keeper)
        wait_until(lambda gone=keeper: place.family().keeper != gone, what="another keeper")  # type: ignore[misc]
    assert place.status()[0] == 0
    third = place.front("third")
    assert third.open() == "bind"
    for front, stream in streams:
        answer = front.result(stream)
        assert (answer["text"], answer["finished"], answer["interrupted"]) == (whole(tokens), True, "")
    after = place.family()
    assert after.engine == before.engine
    assert after.warden == before.warden
    assert {member["pid"] for member in place.snapshot()["members"]} == {first.pid, second.pid, third.pid}
    # The new keeper watches as the old one did.
    kill(after.servers["embed"])
    wait_until(lambda: place.family().servers["embed"] != after.servers["embed"], what="the embed server is back")
    untouched(before, place.family(), "chat", "proxy chat", "proxy embed")


@pytest.mark.long
def test_a_killed_warden_takes_everything_along_and_its_members_build_anew(place: Place) -> None:
    front, other = place.member("first"), place.member("other")
    for one in (front, other):
        assert one.ask("chat", PROMPT) == whole(8)
    before = place.family()
    with Deaths(before.everybody) as deaths:
        kill(before.warden)
        deaths.wait(within=5.0)
    assert front.ask("chat", PROMPT) == whole(8), "a request is held meanwhile"
    second = place.front("second")
    assert second.open() == "bind"
    assert other.ask("chat", PROMPT) == whole(8)
    assert {member["pid"] for member in place.snapshot()["members"]} == {front.pid, other.pid, second.pid}
    assert len(place.spawns("chat")) == len(place.spawns("embed")) == 2


def live_servers(place: Place, role: str) -> list[identity.Identity]:
    """Those of all that were ever started that still run."""
    return [one for one in place.started(role) if identity.liveness(one) is not identity.Liveness.DEAD]


@pytest.mark.parametrize("kills", [pytest.param(times, marks=pytest.mark.long) for times in (2, 5)])
def test_keepers_killed_while_the_engine_starts_leave_one_server_per_role(place: Place, kills: int) -> None:
    """Each keeper is killed a step later in its start than the one before: as soon as it is seen, once it answers,
    once a proxy is there, once a server is there, once all of it runs."""
    place.configure({"chat": (Launch("chat", knobs={"load": 0.3}),), "embed": (Launch("embed", place.kit.embed),)})
    run = place.run(wait=False)
    steps = [
        lambda: True,
        lambda: place.spawns("chat"),
        lambda: _asks(place),
        lambda: place.spawns("embed"),
        lambda: place.family(within=60),
    ]
    seen: set[identity.Identity] = set()
    for reached in steps[:kills]:
        keeper = wait_until(lambda: _keeper(run.pid, seen), within=60, what="a keeper")
        assert keeper is not None
        seen.add(keeper)
        wait_until(reached, within=60, what="its step")
        identity.signal_exact(keeper, 9)
    family = place.family()
    assert family.keeper not in seen
    for role in ("chat", "embed"):
        assert live_servers(place, role) == [family.servers[role]]
    # A keeper has a child of its own for the moment in which it asks the driver who holds what.
    wait_until(
        lambda: len(identity.descendants(run.pid)) == len(family.everybody) - 1, within=10, what="nobody else is left"
    )


def _keeper(warden: int, but_not: set[identity.Identity]) -> identity.Identity | None:
    for pid in identity.children(warden):
        who = identity.of(pid)
        if (
            who is not None
            and who not in but_not
            and (identity.marker(pid, "QUEENRIGHT_GENERATION") or "").startswith("keeper.")
        ):
            return who
    return None


def _asks(place: Place) -> bool:
    try:
        return bool(place.snapshot()["contract"])
    except Exception:  # noqa: BLE001 - it is not there yet, whatever that looks like
        return False


@pytest.mark.long
def test_an_engine_is_its_own_again_after_everything_was_killed_in_turn(place: Place) -> None:
    """Server, proxy, keeper, one right after the other: one live set at the end, and it serves."""
    slow(place)
    front = place.member()
    before = place.family()
    held = front.begin("ask", role="chat", prompt=PROMPT, tokens=4)
    kill(before.servers["chat"])
    kill(before.proxies["chat"])
    kill(before.keeper)
    assert front.result(held)["text"] == whole(4)
    after = place.family()
    untouched(before, after, "proxy embed", "embed")
    assert live_servers(place, "chat") == [after.servers["chat"]]
    assert front.ask("chat", PROMPT) == whole(8)


@pytest.mark.long
@pytest.mark.parametrize("keeper_dies", [False, True])
def test_an_engine_whose_slot_was_deleted_ends(place: Place, keeper_dies: bool) -> None:
    """Whoever deletes the directory takes the off switch away with it."""
    front = place.member()
    # What is being written while the directory is emptied would keep it from being removed.
    family = place.recorded()
    with Deaths(family.everybody) as deaths:
        shutil.rmtree(place.slot.path)
        if keeper_dies:
            kill(family.keeper)
        deaths.wait(within=15.0)
    assert front.open() == "build"
    assert front.ask("chat", PROMPT) == whole(8)
