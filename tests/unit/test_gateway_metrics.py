"""/metrics: what is counted, that nobody is asked for it, and that its page says what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from supervisor._version import __version__
from supervisor.contract import EngineSpec, GroupSpec, State
from supervisor.gateway.metrics import METRICS, Page
from supervisor.gateway.tally import Ending, Tally
from supervisor.recoveries import BOUNDS, Recoveries

ROOT = Path(__file__).resolve().parents[2]
GOOD = {"verdict": "healthy", "evidence": "", "in_flight": 0}


class FakeKeeper:
    """What a keeper's snapshot says, as the test has it."""

    def __init__(self, *names: str) -> None:
        self.spec: EngineSpec | None = EngineSpec(tuple(GroupSpec(name, "kind", (), "pin") for name in names))
        self.recoveries = Recoveries()
        self.groups: dict[str, dict[str, Any]] = {}
        self.looks = 0

    def snapshot(self) -> dict[str, Any]:
        self.looks += 1
        return {"keeper": {"since": 1234.5}, "groups": list(self.groups.values()), "members": [{"pid": 1}, {"pid": 2}]}

    def runs(self, name: str, *, state: str = "running", proxy: Any = GOOD, server: Any = GOOD) -> None:
        servers = [
            {"role": name, "rss_bytes": 1 << 20, "health": server, "loading": None},
            {"role": "off", "rss_bytes": None, "health": None, "loading": None},
        ]
        self.groups[name] = {"name": name, "state": state, "proxy": {"health": proxy}, "servers": servers}


def values(keeper: FakeKeeper, tally: Tally | None = None) -> dict[tuple[str, ...], float]:
    """Every sample: its name and the values of its labels."""
    text, _ = Page(keeper, tally or Tally()).render("")
    samples = [sample for family in parse(text.decode()) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_a_group_that_does_not_answer_is_0_and_never_absent() -> None:
    keeper = FakeKeeper("chat", "embed")
    assert values(keeper)["queenright_up", "chat"] == 0, "the keeper knows nothing of it yet"
    keeper.runs("chat")
    found = values(keeper)
    assert (found["queenright_up", "chat"], found["queenright_up", "embed"]) == (1, 0)
    assert found["queenright_group_state", "chat", "running"] == 1
    assert found["queenright_group_state", "embed", "down"] == 1
    for bad in ({**GOOD, "verdict": "stalled"}, {**GOOD, "verdict": "hung"}, {**GOOD, "verdict": "unknown"}):
        keeper.runs("chat", proxy=bad)
        assert values(keeper)["queenright_up", "chat"] == 0
        keeper.runs("chat", server=bad)
        assert values(keeper)["queenright_up", "chat"] == 0
    keeper.runs("chat", server={**GOOD, "verdict": "busy"})
    assert values(keeper)["queenright_up", "chat"] == 1, "who computes for long is no dead one"
    for state in set(State) - {State.RUNNING}:
        keeper.runs("chat", state=state.value)
        found = values(keeper)
        assert found["queenright_up", "chat"] == 0
        assert sum(found["queenright_group_state", "chat", each.value] for each in State) == 1
    keeper.groups["chat"]["proxy"] = None
    assert values(keeper)["queenright_up", "chat"] == 0


def test_memory_that_is_not_known_is_not_there() -> None:
    keeper = FakeKeeper("chat")
    keeper.runs("chat")
    found = values(keeper)
    assert found["queenright_server_resident_bytes", "chat", "chat"] == 1 << 20
    assert ("queenright_server_resident_bytes", "chat", "off") not in found
    assert found["queenright_members",] == 2
    assert found["queenright_build_info", __version__] == 1
    assert found["queenright_keeper_start_time_seconds",] == 1234.5


def test_how_far_a_load_is_is_there_while_it_loads() -> None:
    keeper = FakeKeeper("chat")
    keeper.runs("chat", state="starting")
    assert not [sample for sample in values(keeper) if "_load_" in sample[0]]
    keeper.groups["chat"]["servers"][1]["loading"] = {"bytes": 3 << 20, "of": 7 << 20, "moved": 1.0}
    found = {sample: value for sample, value in values(keeper).items() if "_load_" in sample[0]}
    assert found == {
        ("queenright_server_load_bytes", "chat", "off"): 3 << 20,
        ("queenright_server_load_size_bytes", "chat", "off"): 7 << 20,
    }


def test_restarts_and_recoveries_are_counted() -> None:
    keeper = FakeKeeper("chat")
    past = keeper.recoveries
    past.note_end({"group": "chat", "cause": "signal", "restart": True})
    past.note_end({"group": "chat", "cause": "oom_kill", "restart": False})
    for state, now in [
        ("running", 0),
        ("degraded", 10),
        ("rebuilding", 11),
        ("running", 13),
        ("rebuilding", 20),
        ("running", 3000),
    ]:
        past.see("chat", State(state), float(now))
    found = values(keeper)
    assert found["queenright_restarts_total", "signal", "chat"] == 1
    assert ("queenright_restarts_total", "oom_kill", "chat") not in found
    assert found["queenright_recovery_seconds_bucket", "chat", "2"] == 0
    assert found["queenright_recovery_seconds_bucket", "chat", "5"] == 1
    assert found["queenright_recovery_seconds_bucket", "chat", "600"] == 1
    assert found["queenright_recovery_seconds_bucket", "chat", "+Inf"] == 2
    assert found["queenright_recovery_seconds_count", "chat"] == 2
    assert found["queenright_recovery_seconds_sum", "chat"] == 3 + 2980


@pytest.mark.parametrize("end", sorted(set(State) - {State.RUNNING, State.DEGRADED, State.REBUILDING}))
def test_what_was_stopped_or_given_up_is_no_recovery(end: State) -> None:
    past = Recoveries()
    for state in (State.RUNNING, State.REBUILDING, end, State.RUNNING):
        past.see("chat", state, 1.0)
    assert not past.seconds


@given(st.lists(st.tuples(st.sampled_from(list(State)), st.floats(0, 100))))
def test_there_are_never_more_recoveries_than_losses(steps: list[tuple[State, float]]) -> None:
    past, now, losses, was = Recoveries(), 0.0, 0, State.DOWN
    for state, later in steps:
        now += later
        losses += state in (State.DEGRADED, State.REBUILDING) and was not in (State.DEGRADED, State.REBUILDING)
        past.see("chat", state, now)
        was = state
    assert sum(past.seconds.get("chat", [])) <= losses
    assert 0 <= past.total.get("chat", 0.0) <= now
    assert all(len(counts) == len(BOUNDS) + 1 for counts in past.seconds.values())


def test_each_request_is_counted_once_and_is_in_one_place() -> None:
    keeper, tally = FakeKeeper("chat"), Tally()
    asking = tally.asked("chat")
    assert values(keeper, tally)["queenright_gateway_requests_waiting", "chat"] == 1
    asking.runs()
    asking.runs()
    found = values(keeper, tally)
    assert found["queenright_gateway_requests_waiting", "chat"] == 0
    assert found["queenright_gateway_requests_running", "chat"] == 1
    asking.held()
    asking.waits()
    asking.held()
    asking.runs()
    asking.replayed()
    asking.tokens(10, 5)
    asking.tokens(-1, 2)
    asking.ended(Ending.ANSWERED)
    asking.ended(Ending.INTERRUPTED)
    asking.runs()
    with tally.asked("chat"):
        pass  # its caller went away
    tally.refused("wrong_host")
    found = values(keeper, tally)
    assert found["queenright_gateway_requests_total", "chat", "answered"] == 1
    assert found["queenright_gateway_requests_total", "chat", "interrupted"] == 0
    assert found["queenright_gateway_requests_total", "chat", "left"] == 1
    assert found["queenright_gateway_held_total", "chat"] == 1
    assert found["queenright_gateway_replayed_total", "chat"] == 1
    assert found["queenright_gateway_prompt_tokens_total", "chat"] == 10
    assert found["queenright_gateway_completion_tokens_total", "chat"] == 7
    assert found["queenright_gateway_refused_total", "wrong_host"] == 1
    for place in ("waiting", "running"):
        assert found[f"queenright_gateway_requests_{place}", "chat"] == 0


def test_both_formats_parse_and_a_page_takes_one_look() -> None:
    keeper = FakeKeeper("chat")
    page = Page(keeper, Tally())
    assert keeper.looks == 0
    text, kind = page.render("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    families = parse_open(text.decode())  # type: ignore[no-untyped-call]
    assert {family.name for family in families} == {name.removesuffix("_total") for name in METRICS}
    text, kind = page.render("text/plain;version=0.0.4")
    assert kind.startswith("text/plain")
    assert keeper.looks == 2


def test_every_metric_keeps_to_the_rules_of_names() -> None:
    for name, (kind, labels, meaning) in METRICS.items():
        assert re.fullmatch(r"queenright_[a-z]+(_[a-z]+)*", name)
        assert name.endswith("_total") == (kind == "counter"), name
        assert meaning.endswith("."), name
        assert len(set(labels)) == len(labels)


def test_the_page_has_every_metric_as_it_is() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(queenright_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", page, flags=re.MULTILINE)
    written = {name: (kind, tuple(re.findall(r"`(\w+)`", labels)), meaning) for name, kind, labels, meaning in rows}
    assert written == dict(METRICS)
    assert all(f"`{how.value}`" in page for how in Ending)
    assert ", ".join(f"{bound:g}" for bound in BOUNDS) in page
