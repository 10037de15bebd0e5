"""The parts that decide without doing: flags, groups, keys, names, paths, pauses."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.proxy import limits, relay
from workers.proxy.auth import allowed, offered_key
from workers.proxy.config import GroupSpec, parse_config
from workers.proxy.downstream import Request
from workers.proxy.eviction import Verdict, decide, evictions, home_groups
from workers.proxy.flags import FlagError, Flags, parse_flags
from workers.proxy.model import probe_pause
from workers.proxy.naming import requested_model, with_model_name
from workers.proxy.routes import server_target, split_upstream

NAMES = "abcdef"


@pytest.mark.parametrize("words", [["-config", "F"], ["--config=F"], ["-config=F"], ["--config", "F"]])
def test_flags_take_one_dash_or_two(words: list[str]) -> None:
    assert parse_flags([*words, "-listen", "h:1"]) == Flags(config="F", listen="h:1")


@pytest.mark.parametrize("words", [["-nope"], ["config"], ["-config"], ["---config", "F"], ["-version=maybe"], ["-"]])
def test_flags_refuse_what_they_do_not_know(words: list[str]) -> None:
    with pytest.raises(FlagError):
        parse_flags(words)


@st.composite
def homes(draw: st.DrawFn) -> dict[str, GroupSpec]:
    """Six models in up to three groups with any switches."""
    placed = {name: draw(st.integers(0, 2)) for name in NAMES}
    return home_groups(
        GroupSpec(
            str(number),
            swap=draw(st.booleans()),
            exclusive=draw(st.booleans()),
            persistent=draw(st.booleans()),
            members=tuple(name for name in NAMES if placed[name] == number),
        )
        for number in range(3)
    )


@given(home=homes(), target=st.sampled_from(NAMES), running=st.sets(st.sampled_from(NAMES)))
def test_evictions_keep_the_rules(home: dict[str, GroupSpec], target: str, running: set[str]) -> None:
    leaving = evictions(target, running, home)
    assert target not in leaving
    assert leaving <= running
    for name in running - {target}:
        if home[name].id == home[target].id:
            assert (name in leaving) is home[target].swap
        else:
            assert (name in leaving) is (home[target].exclusive and not home[name].persistent)


@given(
    target=st.sampled_from(NAMES),
    ready=st.booleans(),
    leaving=st.frozensets(st.sampled_from(NAMES)),
    busy=st.sets(st.sampled_from(NAMES)),
    swaps=st.dictionaries(st.sampled_from(NAMES), st.frozensets(st.sampled_from(NAMES))),
)
def test_decisions_never_stop_a_busy_model_and_never_cross_a_swap(
    target: str, ready: bool, leaving: frozenset[str], busy: set[str], swaps: dict[str, frozenset[str]]
) -> None:
    verdict = decide(target, ready=ready, leaving=leaving, busy=busy, swaps=swaps)
    if verdict is Verdict.SWAP:
        assert not leaving & busy
    if verdict is not Verdict.WAIT:
        assert not leaving & swaps.keys()
        assert all(target not in evicted and not evicted & leaving for evicted in swaps.values())
    if verdict is Verdict.SERVE:
        assert ready
        assert not leaving


def test_the_order_of_credentials_is_llama_swaps() -> None:
    basic = "Basic " + base64.b64encode(b"user:pass").decode()
    assert offered_key(basic, "x") == "pass"
    assert offered_key("Bearer b", "x") == "b"
    assert offered_key("", "x") == "x"
    assert offered_key("Digest d", "x") == "x"
    assert allowed([], "/running", "", "")
    assert allowed(["k"], "/health", "", "")
    assert not allowed(["k"], "/health/", "", "")
    assert not allowed(["k"], "/running", "Bearer \udcff", "")


def request(body: bytes, kind: bytes, method: str = "POST", target: str = "/v1/completions") -> Request:
    """A request as the parser makes one."""
    return Request(method, target, "1.1", [(b"content-type", kind)], body, "127.0.0.1")


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none()), st.text(min_size=1))
def test_renaming_changes_the_name_only(rest: dict[str, object], name: str) -> None:
    import json

    body = json.dumps({**rest, "model": "a"}).encode()
    asked = request(body, b"application/json")
    assert requested_model(asked) == "a"
    assert json.loads(with_model_name(asked, name)) == {**rest, "model": name}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"model":1}', b'{"model":null}', b"\xff", b"[" * 100_000])
def test_a_body_without_a_name_names_nothing(body: bytes) -> None:
    assert requested_model(request(body, b"application/json")) == ""


def test_forms_name_their_model() -> None:
    form = b'--B\r\ncontent-disposition: form-data; name="model"\r\nX: y\r\n\r\na\r\n--B--\r\n'
    kind = b"multipart/form-data; boundary=B"
    assert requested_model(request(form, kind)) == "a"
    assert requested_model(request(with_model_name(request(form, kind), "longer"), kind)) == "longer"
    assert requested_model(request(b"x=1&model=a+b", b"application/x-www-form-urlencoded")) == "a b"
    assert requested_model(request(b"", b"", "GET", "/props?model=a%2Fb")) == "a/b"


def test_paths_a_server_sees() -> None:
    assert server_target("/v/rerank?x=1") == "/rerank?x=1"
    assert server_target("/audioapi/v1/tasks/run") == "/v1/tasks/run"
    assert server_target("/v1/models") == "/v1/models"
    names = frozenset({"a", "org/a", "org"})
    assert split_upstream("/upstream/org/a/v1/x%2Fy", names) == ("org/a", "/v1/x%2Fy")
    assert split_upstream("/upstream/org%2Fa/", names) == ("org/a", "/")
    assert split_upstream("/upstream/a", names) == ("a", "")
    assert split_upstream("/upstream/b/a", names) is None


@given(st.floats(0, 1000))
def test_probes_are_never_late_by_more_than_a_tenth(waited: float) -> None:
    pause = probe_pause(waited)
    assert limits.LEAST_PROBE_PAUSE <= pause <= limits.MOST_PROBE_PAUSE
    assert pause <= max(limits.LEAST_PROBE_PAUSE, waited / 10)


def test_the_configuration_has_llama_swaps_defaults() -> None:
    config = parse_config({"models": {"a": {"cmd": "# note\nrun \\\n it", "proxy": "http://127.0.0.1:1/x/"}}}, "test")
    model = config.models["a"]
    assert model.argv == ("run", "it")
    assert (model.host, model.port, model.path_prefix, model.check_path) == ("127.0.0.1", 1, "/x", "/health")
    assert (model.ttl, model.concurrency_limit, model.unload_timeout) == (0, 10, 10)
    assert config.health_check_timeout == 120
    assert parse_config({"healthCheckTimeout": 1}, "test").health_check_timeout == 15
    assert [(g.id, g.swap, g.exclusive, g.persistent, g.members) for g in config.groups.values()] == [
        ("(default)", True, True, False, ("a",))
    ]


def test_a_length_beside_a_transfer_coding_is_not_passed_back() -> None:
    items = [(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked"), (b"X-Kept", b"1")]
    assert relay._to_client(items) == [(b"X-Kept", b"1")]
