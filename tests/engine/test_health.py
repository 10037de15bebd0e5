"""What lives and does nothing is found and rebuilt, alone; what computes is left alone. Real processes, fake servers."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.kit import Launch
from tests.fakes.llama_server import story
from tests.support import measured, wait_until

if TYPE_CHECKING:
    from tests.engine.place import Place

pytestmark = pytest.mark.process

PROMPT = "tell me of bees"
NOTICED = 3 * 5.0
"""budget: HANG_NOTICED, with slack for a loaded machine."""


def whole(tokens: int) -> str:
    """The answer that a server that nobody disturbs gives."""
    return "".join(story(PROMPT, 0, tokens))


def configure(place: Place, *, wedge_limit_s: float = 60.0, **knobs: object) -> None:
    """A chat server that behaves as told, and an embed group beside it, whose server streams slowly if asked to."""
    neighbour = Launch("embed", place.kit.embed, knobs={"rate": 10})
    place.configure({"chat": (Launch("chat", knobs=knobs),), "embed": (neighbour,)}, wedge_limit_s=wedge_limit_s)


def health(place: Place, role: str = "chat") -> dict[str, Any]:
    """What `status` says of a role's server."""
    (server,) = place.group(role)["servers"]
    return server["health"] or {"verdict": None, "evidence": "", "in_flight": None}


def wait_verdict(place: Place, *verdicts: str, within: float = 30.0) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        found = health(place)
        return found if found["verdict"] in verdicts else None

    found = place.until(there, within=within, what=f"the chat server is {' or '.join(verdicts)}")
    assert found is not None
    return found


def causes(place: Place) -> str:
    """Everything the journal says of the group."""
    return place.slot.events.read_text() if place.slot.events.exists() else ""


def assert_rebuilt_alone(place: Place, before: Any, cause: str) -> None:
    """The chat group is a new generation, the neighbours are who they were, and the journal has the cause."""
    after = place.family()
    assert after.proxies["chat"] != before.proxies["chat"]
    assert after.servers["chat"] != before.servers["chat"]
    assert (after.proxies["embed"], after.servers["embed"]) == (before.proxies["embed"], before.servers["embed"])
    assert (after.keeper, after.warden) == (before.keeper, before.warden)
    assert cause in causes(place)
    assert place.group("chat")["restarts"] == 1
    assert place.group("embed")["restarts"] == 0


def test_a_stopped_proxy_is_noticed_and_its_group_rebuilt_alone(place: Place) -> None:
    """W3: the request that it held is answered by the next generation, and a neighbour's stream goes on."""
    configure(place, rate=20)
    front = place.member()
    before = place.family()
    stream = front.begin("stream", role="embed", prompt=PROMPT, tokens=50)
    front.first(stream)
    held = front.begin("ask", role="chat", prompt=PROMPT, tokens=60)
    wait_until(lambda: place.receipts() == 1, what="the request is being answered")
    began = time.monotonic()
    os.kill(before.proxies["chat"].pid, signal.SIGSTOP)
    place.until(lambda: place.family().proxies["chat"] != before.proxies["chat"], within=NOTICED, what="a new proxy")
    noticed = time.monotonic() - began
    assert front.result(held)["text"] == whole(60)
    measured("W3", f"a new proxy {noticed:.1f} s after SIGSTOP, the held request answered whole, no second engine")
    assert front.result(stream)["text"] == whole(50)
    assert_rebuilt_alone(place, before, "its proxy is hung: it is stopped")


@pytest.mark.long
def test_a_stopped_server_is_noticed_and_its_group_rebuilt_alone(place: Place) -> None:
    configure(place, rate=20)
    front = place.member()
    before = place.family()
    held = front.begin("ask", role="chat", prompt=PROMPT, tokens=60)
    wait_until(lambda: place.receipts() == 1, what="the request is being answered")
    os.kill(before.servers["chat"].pid, signal.SIGSTOP)
    place.until(lambda: place.family().proxies["chat"] != before.proxies["chat"], within=NOTICED, what="a new proxy")
    assert front.result(held)["text"] == whole(60)
    assert_rebuilt_alone(place, before, "the chat server is hung: it is stopped")


@pytest.mark.long
def test_a_process_that_is_stopped_while_it_loads_is_noticed(place: Place) -> None:
    place.configure({"chat": (Launch("chat", knobs={"load": 3}),)})
    front = place.front()
    front.open(wait=False)
    wait_until(lambda: place.spawns(), what="a server loads")
    (first,) = place.started()
    os.kill(first.pid, signal.SIGSTOP)
    place.until(lambda: len(place.spawns()) == 2, within=NOTICED, what="another server")
    place.wait_state("running")
    assert "is hung: it is stopped" in causes(place)


@pytest.mark.long
def test_a_server_that_takes_requests_and_never_answers_is_found_and_rebuilt_alone(place: Place) -> None:
    """ggml-org/llama.cpp#27388 (/health well, /slots hangs, TERM ignored), with a stream of another group uncut."""
    configure(place, wedge_limit_s=4, wedge_after=0, slots="hang", term="ignore")
    front = place.member()
    before = place.family()
    stream = front.begin("stream", role="embed", prompt=PROMPT, tokens=100)
    front.first(stream)
    lost = front.begin("ask", role="chat", prompt=PROMPT, tokens=5)
    seen = wait_verdict(place, "stalled")
    assert "1 request in flight" in seen["evidence"]
    place.until(lambda: place.family().proxies["chat"] != before.proxies["chat"], within=45, what="a new proxy")
    assert_rebuilt_alone(place, before, "the chat server is wedged")
    uncut = front.result(stream)
    assert uncut["text"] == whole(100)
    assert uncut["finished"]
    # A request and its canary at each of two servers: the fake wedges at every first one, so nobody waits for it.
    assert 2 <= place.receipts() <= 4
    assert lost
    front.kill()


@pytest.mark.long
def test_a_server_that_wedges_after_a_third_client_left_is_found(place: Place) -> None:
    """oobabooga/textgen#7443: clients that give up do not hide it."""
    configure(place, wedge_limit_s=4, rate=10, wedge_after_cancel=3, slots="hang", term="ignore")
    front = place.member()
    before = place.family()
    for _ in range(3):
        gone = place.member("leaver")
        stream = gone.begin("stream", role="chat", prompt=PROMPT, tokens=1000)
        gone.first(stream)
        gone.kill()
    asked = front.begin("ask", role="chat", prompt=PROMPT, tokens=5)
    place.until(lambda: place.family().proxies["chat"] != before.proxies["chat"], within=45, what="a new proxy")
    assert front.result(asked)["text"] == whole(5)
    assert_rebuilt_alone(place, before, "the chat server is wedged")


def stays_busy(place: Place, seconds: float) -> None:
    """A server that computes with a request in flight and answers nothing meanwhile is left alone."""
    configure(place, wedge_limit_s=2, burn=seconds)
    front = place.front()
    front.open(deadline=3 * seconds + 60)
    before = place.family()
    asked = front.begin("ask", role="chat", prompt=PROMPT, tokens=5)
    began = time.monotonic()
    seen = wait_verdict(place, "busy", within=30)
    assert "it computes" in seen["evidence"]
    assert "; busy: " in place.cli("status").stdout
    answer = front.result(asked, within=seconds * 3 + 60)
    assert answer["text"] == whole(5), (answer, causes(place))
    assert time.monotonic() - began >= seconds * 0.9
    assert place.family() == before
    assert place.receipts() == 1, "no canary: it answers nothing, and it computes"
    assert place.group()["restarts"] == 0


@pytest.mark.long
def test_a_server_that_computes_and_answers_nothing_is_busy_and_left_alone(place: Place) -> None:
    """ikawrakow/ik_llama.cpp#1210, for four times the wedge limit."""
    stays_busy(place, 8)


@pytest.mark.long
def test_the_same_for_ninety_seconds(place: Place) -> None:
    stays_busy(place, 90)


@pytest.mark.long
def test_probes_load_nothing_and_reset_no_idle_time(place: Place) -> None:
    """A server with an idle time of two seconds is unloaded under the probes' eyes, and stays so."""
    place.configure({"chat": (Launch("chat", idle_ttl_s=2),)})
    place.member()
    before = place.family()
    place.until(lambda: place.group()["servers"][0]["state"] == "unloaded", within=20, what="the server is unloaded")
    until = time.monotonic() + 3  # three probes of everything there is
    wait_until(lambda: time.monotonic() > until, within=6)
    assert place.group()["servers"][0]["state"] == "unloaded"
    assert place.group()["state"] == "running"
    assert place.group()["proxy"]["pid"] == before.proxies["chat"].pid
    assert len(place.spawns()) == 1
    assert place.receipts() == 0
