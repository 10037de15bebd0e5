"""What `queenright status` says of a snapshot, and what it advises. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor import wording
from supervisor.advice import NEXT, troubles
from supervisor.budgets import FORGOTTEN, STUCK_LOAD
from supervisor.commands import ps
from supervisor.gateway.upkeep import GatewayState
from supervisor.screen import fitted, gateway_words, lines, news, plain
from supervisor.telling import sentence

NOW = 1_800_000_000.0


def snapshot(**changes: Any) -> dict[str, Any]:
    return {
        "slot": "/s", "state": "running", "reason": "", "lifetime": "members", "held": None, "warm": [],
        "keeper": {"pid": 2, "version": "1", "since": NOW - 60}, "warden": {"pid": 1, "cgroup": "/"},
        "groups": [], "members": [],
    } | changes  # fmt: skip


def server(**changes: Any) -> dict[str, Any]:
    return {
        "role": "chat", "model": "smol", "pid": 4, "port": 9001, "state": "ready", "rss_bytes": 3 << 30, "health": None,
        "loading": None,
    } | changes  # fmt: skip


def group(*servers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "name": "chat", "state": "running", "reason": "", "since": NOW - 7200, "restarts": 0, "reloads": 0,
        "proxy": {"pid": 3, "port": 9000, "health": None}, "servers": list(servers), "cause": None, "unwatched": None,
        "unwritten": None, "log_tail": [],
    } | changes  # fmt: skip


LOADING = {"bytes": 1_288_490_188, "of": 3_006_477_107, "moved": NOW - 2}
STILL = LOADING | {"moved": NOW - STUCK_LOAD}
WARMING = STILL | {"bytes": LOADING["of"]}
HUNG = {"verdict": "stalled", "evidence": "no request moved on for 9 s", "in_flight": 1}
QUIET = {"name": "agent", "pid": 9, "since": NOW - 2 * FORGOTTEN, "last_use": NOW - FORGOTTEN}

CACHE = {"place": "host", "what": "keys and values", "modelled": 2**30, "estimated": 2**31, "differs": True}
BOUND = {"place": "host", "what": "compute buffer", "modelled": 2**30, "estimated": 2**29, "differs": True}
TWO_ACCOUNTS = {"by": "llama-fit-params", "compared": [CACHE, BOUND]}

ABSENT = {"what": "memory of GPU-a", "planned": 20 << 20, "verdict": "absent"}

TROUBLE: dict[str, dict[str, Any]] = {
    "failed": {"groups": [group(state="failed", reason="bad flag")]},
    "held": {"held": "held by me"},
    "failing": {"state": "failing", "reason": "the keeper died 7 times in a row", "keeper": None},
    "restarting": {"state": "restarting", "reason": "the keeper died once", "keeper": None},
    "silent": {"state": "degraded", "reason": "the keeper, pid 2, is stopped", "keeper": None},
    "unkillable": {"groups": [group(state="stopping", reason="cannot be killed: pids 4")]},
    "left over": {"state": "down", "reason": "no engine runs; processes of an earlier one are still alive: chat.x"},
    "unwritten": {"groups": [group(unwritten="No space left on device")]},
    "unwatched": {"groups": [group(unwatched="the engine kind static has a bug: its watch raised KeyError: 'a'")]},
    "stalled": {"groups": [group(server(health=HUNG))]},
    "stuck load": {"groups": [group(server(state="loading", loading=STILL))]},
    "payload": {"groups": [group(state="fetching", reason="HTTP 503", fetching={"of": 0, "trouble": "PayloadError"})]},
    "held group": {"held_groups": {"chat": "held by ann: benchmark"}},
    "outside": {"outside": [{"group": "web", "generation": "ab12", "file": "/s/groups/web.ab12.undo"}]},
    "gateway": {"gateway": {"url": None, "state": "failed", "reason": "port 8080 is taken"}},
    "memory": {"groups": [group(server(memory={"warnings": ["sequences: 4 asked for, 2 in effect"]}))]},
    "two accounts": {"groups": [group(server(memory={"estimate": TWO_ACCOUNTS}))]},
    "off device": {
        "state": "degraded",
        "reason": "chat runs without its device: memory of GPU-a: 20 MiB planned, and it has none",
        "groups": [group(server(memory={"compared": [ABSENT]}))],
    },
    "model file": {"groups": [group(server(deleted_model="/models/smol.gguf"))]},
    "gone quiet": {"members": [QUIET]},
}


@pytest.mark.parametrize("kind", NEXT)
def test_each_kind_of_trouble_is_found_and_said_with_a_next_step(kind: str) -> None:
    found = snapshot(**TROUBLE[kind])
    assert [trouble.kind for trouble in troubles(found, NOW)] == [kind]
    (trouble,) = troubles(found, NOW)
    assert f"wrong     {trouble.about}: {trouble.text}\n          -> {trouble.next_step}" in plain(found, NOW)
    assert "{" not in trouble.next_step


def test_an_upper_bound_above_the_engines_estimate_is_no_trouble() -> None:
    bound = {"by": "llama-fit-params", "compared": [BOUND, {**CACHE, "differs": False}]}
    assert troubles(snapshot(groups=[group(server(memory={"estimate": bound}))]), NOW) == []
    none: dict[str, Any] = {"by": None, "compared": []}
    assert troubles(snapshot(groups=[group(server(memory={"estimate": none}))]), NOW) == []
    (told,) = troubles(snapshot(**TROUBLE["two accounts"]), NOW)
    assert told.text == "chat: by its file's header it takes keys and values 1.0 GiB, and 2.0 GiB by llama-fit-params"


def test_a_healthy_engine_has_no_trouble_and_each_line_says_what_is_asked_for() -> None:
    member = {"name": "lilbee", "pid": 7, "since": NOW - 3600, "last_use": NOW - 12}
    unseen = {"name": "exec curl", "pid": 8, "since": NOW - 30, "last_use": None}
    loading = server(role="embed", state="loading", loading=LOADING)
    found = snapshot(
        groups=[group(server(), loading, queue={"chat": {"running": 1, "waiting": 3, "oldest_s": 2.4}}, restarts=2)],
        members=[member, unseen],
        gateway={"url": "http://127.0.0.1:8080", "state": "serving", "reason": ""},
    )
    assert troubles(found, NOW) == []
    assert plain(found, NOW).splitlines() == [
        "engine    running",
        "slot      /s",
        "gateway   http://127.0.0.1:8080/v1, for every OpenAI client",
        "keeper    pid 2, version 1, up 1 min",
        "chat      running for 2 h, 2 restarts",
        "          proxy  pid 3, port 9000",
        "          chat   smol: ready, pid 4, port 9001, 3.0 GiB, 1 running, 3 waiting (the first for 2 s)",
        "          embed  smol: loading 42 %, 1.2 of 2.8 GiB, pid 4, port 9001, 3.0 GiB",
        "members   lilbee (pid 7, 1 h, used 12 s ago), exec curl (pid 8, 30 s)",
    ]
    assert [line.mood for line in lines(found, NOW)][::4] == ["good", "good", ""]


def test_what_the_gateway_does_is_said_in_words_in_each_state() -> None:
    for state in GatewayState:
        said = gateway_words({"url": "http://127.0.0.1:1", "state": state.value, "reason": "why"})
        assert said.endswith(": why")
        assert said != f"{state.value}: why", "it is not just the state's name"
    assert (
        gateway_words({"url": None, "state": "failed", "reason": "port 1 is taken"}) == "serves nobody: port 1 is taken"
    )


def test_a_load_that_only_warms_is_not_stuck() -> None:
    assert troubles(snapshot(groups=[group(server(state="loading", loading=WARMING))]), NOW) == []


def test_a_snapshot_of_an_older_keeper_is_shown_too() -> None:
    old = server()
    del old["loading"]
    found = snapshot(groups=[group(old)], members=[{"name": "x", "pid": 1, "since": NOW}])
    assert "members   x (pid 1, 0 s)" in plain(found, NOW)


def test_what_is_held_is_not_said_to_be_held_twice() -> None:
    held = "held by user id 7 (pid 1): a driver"
    found = snapshot(state="held", reason=held, held=held, groups=[group(state="held", reason=held)])
    texts = [line.text for line in lines(found, NOW)]
    assert texts[0] == "engine    held: by user id 7 (pid 1): a driver"
    assert "chat      held for 2 h: by user id 7 (pid 1): a driver" in texts
    assert "engine: held: by user id 7 (pid 1): a driver" in news(None, found)
    event = {"what": "state", "group": "chat", "state": "held", "reason": held}
    assert sentence(event) == "chat: held: by user id 7 (pid 1): a driver"


def test_news_are_what_changed() -> None:
    before = snapshot(groups=[group(server(state="loading", loading=LOADING))], members=[QUIET])
    after = snapshot(groups=[group(server())])
    assert news(None, before) == [
        "engine: running",
        "group chat: running",
        "server chat: loading 42 %, 1.2 of 2.8 GiB",
        "member agent (pid 9) uses it",
    ]
    assert news(before, after) == ["server chat: ready", "member agent (pid 9) gone"]
    assert news(after, after) == []


@pytest.mark.parametrize(("columns", "rows"), [(60, 40), (60, 20), (40, 10), (20, 4), (1, 2)])
def test_a_watch_shows_what_is_wrong_in_every_terminal(columns: int, rows: int) -> None:
    tail = [f"line {number} of its log" for number in range(20)]
    one = group(server(), state="failed", reason="given up after 3 starts that never became ready", log_tail=tail)
    shown = fitted(lines(snapshot(state="failed", groups=[one, group(server(), name="embed")]), NOW), columns, rows)
    texts = [line.text for line in shown]
    assert len(shown) <= rows
    assert all(len(text) <= max(columns, 24) for text in texts)
    assert any(text.startswith("wrong ") for text in texts)
    if columns == 60:
        assert "retry chat" in " ".join(" ".join(texts).split()), "what to do"
        assert any(text.startswith("embed ") for text in texts)
        assert ("          | line 0 of its log" in texts) == (rows == 40), "a log goes before anything else does"
    assert rows != 40 or "..." not in texts


def test_nothing_that_a_terminal_would_act_upon_is_shown() -> None:
    """Reasons and last words are quoted from the logs of servers, names are what programs call themselves."""
    bad = "\x1b]0;mine\x07 \x9b2J\n\tx"
    member = {"name": bad, "pid": 1, "since": NOW}
    found = snapshot(reason=bad, groups=[group(reason=bad, state="failed", log_tail=[bad])], members=[member])
    said = [line.text for line in lines(found, NOW)]
    assert all(line.isprintable() for line in [*said, *news(None, found)])
    assert "          | ?]0;mine? ?2J? x" in said
    assert sentence({"what": "held", "why": bad}) == "held: ?]0;mine? ?2J? x"
    assert sentence({"what": bad}).isprintable()
    assert (
        ps.table([member | {"slot": "/s", "last_use": None, "tty": ""}], "/s")
        .splitlines()[1]
        .endswith("  ?]0;mine? ?2J? x")
    )


@pytest.mark.parametrize(
    ("seconds", "said"), [(-5, "0 s"), (59.9, "59 s"), (60, "1 min"), (7199, "1 h"), (200_000, "2 d")]
)
def test_times_are_said_in_one_unit(seconds: float, said: str) -> None:
    assert wording.ago(NOW - seconds, NOW) == said
