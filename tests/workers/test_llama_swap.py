"""The kind `llama-swap` without a proxy: the configuration it writes, and what it makes of a proxy's state words."""

from __future__ import annotations

import itertools
import json
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config_rules import GRACE_BELOW
from supervisor.contract import GroupSpec, LaunchSpec
from supervisor.errors import ConfigError, EngineBinaryError
from supervisor.kinds import Birth, ServerState
from workers.engines import Binary, Kind, Origin
from workers.llama_swap import KIND, _counters, _message, _refuse_poolless, _refuse_unspeakable, smallest_work
from workers.swap_configuration import KV_FLAGS, OPTIONAL_FLAGS, SHORTEST_HEALTH_TIMEOUT, configuration, server_command
from workers.swap_watcher import Requests, Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = Path("/slot/groups/g.0a.keys")
SECRETS = ("the-clients-key", "the-generations-key")

roles = st.sampled_from(["chat", "draft", "embed", "rerank", "vision"])
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12).filter(lambda word: "${" not in word)
launch_fields = st.tuples(
    words.filter(bool),
    words,
    st.integers(1, 10_000_000),
    st.integers(1, 64),
    st.lists(words, max_size=3),
    st.integers(0, 3600),
)


@st.composite
def specs(draw: st.DrawFn) -> GroupSpec:
    launches = tuple(
        LaunchSpec(role, model, f"/models/{path}.gguf", context, sequences, tuple(arguments), ttl)
        for role, (model, path, context, sequences, arguments, ttl) in draw(
            st.dictionaries(roles, launch_fields, min_size=1)
        ).items()
    )
    flags = " ".join(draw(st.lists(st.sampled_from(sorted(OPTIONAL_FLAGS)), unique=True)))
    return GroupSpec(
        "g",
        "llama-swap",
        launches,
        "pin",
        {
            "llama_server": "'/bin/llama server' -I",
            "proxy": draw(st.sampled_from(["built-in", "/bin/llama-swap"])),
            "flags": flags,
        },
        {"CUDA_VISIBLE_DEVICES": "0"},
        draw(st.floats(0, GRACE_BELOW, exclude_min=True, exclude_max=True)),
        draw(st.floats(0, 86_400, exclude_min=True)),
    )


def birth_of(spec: GroupSpec) -> Birth:
    ports = {name: 20_000 + number for number, name in enumerate(KIND.port_names(spec))}
    return Birth("0a", ports, KEYS.with_suffix(".json"), *SECRETS, 4242)


def launch(role: str = "chat", **changes: Any) -> LaunchSpec:
    return evolve(LaunchSpec(role, "m", "/m.gguf", 4096, 2), **changes)


SPEC = GroupSpec(
    "g", "llama-swap", (launch(), launch("embed")), "pin", {"llama_server": "/bin/ls", "proxy": "built-in", "flags": ""}
)


# --- the configuration --------------------------------------------------------------------------------------------------


@given(specs())
def test_every_model_is_in_exactly_one_group_that_evicts_nobody(spec: GroupSpec) -> None:
    written = configuration(spec, birth_of(spec), KEYS)
    (group,) = written["groups"].values()
    assert sorted(group["members"]) == sorted(written["models"]) == sorted(one.role for one in spec.launches)
    assert (group["swap"], group["exclusive"], group["persistent"]) == (False, False, True)


@given(specs())
def test_each_server_has_its_own_port_and_the_proxy_goes_there(spec: GroupSpec) -> None:
    birth = birth_of(spec)
    written = configuration(spec, birth, KEYS)
    seen = set()
    for role, model in written["models"].items():
        argv = shlex.split(model["cmd"])
        port = argv[argv.index("--port") + 1]
        assert model["proxy"] == f"http://127.0.0.1:{port}"
        assert port == str(birth.ports[role])
        assert argv[argv.index("--host") + 1] == "127.0.0.1"
        seen.add(port)
    assert len(seen) == len(spec.launches)
    assert str(birth.ports["proxy"]) not in seen
    assert KIND.port_names(spec)[0] == "proxy", "clients use the first"


@given(specs())
def test_keys_are_in_private_files_only(spec: GroupSpec) -> None:
    """A command line is everybody's to read (proc_pid_cmdline(5)), and so is an environment once it is inherited."""
    birth = birth_of(spec)
    command = KIND.command(spec, birth)
    written = configuration(spec, birth, KEYS)
    for text in (*command.argv, *command.environment.values(), *(model["cmd"] for model in written["models"].values())):
        assert not any(secret in text for secret in SECRETS)
    assert not any(secret in repr((birth, command)) for secret in SECRETS)
    assert command.files[KEYS].split() == list(SECRETS)
    assert json.loads(command.files[birth.config])["apiKeys"] == list(SECRETS)


@given(specs())
def test_a_command_survives_the_proxys_reading_of_it(spec: GroupSpec) -> None:
    """llama-swap splits it as a shell would, line by line."""
    birth = birth_of(spec)
    for one in spec.launches:
        cmd = configuration(spec, birth, KEYS)["models"][one.role]["cmd"]
        assert "\n" not in cmd
        argv = server_command(spec, one, birth, KEYS)
        assert shlex.split(cmd) == argv
        assert argv[0] == sys.executable
        assert argv[argv.index("--warden") + 1] == "4242"
        program = argv.index("--") + 1
        assert argv[program : program + 2] == ["/bin/llama server", "-I"]
        assert argv[argv.index("--ctx-size") + 1] == str(one.context * one.sequences)
        assert tuple(argv[len(argv) - len(one.arguments) :]) == one.arguments, "the user's arguments have the last word"


@given(specs())
def test_time_limits_of_the_proxy_lie_within_ours(spec: GroupSpec) -> None:
    written = configuration(spec, birth_of(spec), KEYS)
    assert isinstance(written["unloadTimeout"], int)
    assert written["unloadTimeout"] >= 1
    if spec.grace_s > 1:  # it takes whole seconds, and 0 is none
        assert written["unloadTimeout"] < spec.grace_s
    assert written["healthCheckTimeout"] >= max(SHORTEST_HEALTH_TIMEOUT, spec.start_limit_s)
    assert math.isfinite(written["healthCheckTimeout"])


@given(specs())
def test_the_configuration_is_json(spec: GroupSpec) -> None:
    written = configuration(spec, birth_of(spec), KEYS)
    assert json.loads(json.dumps(written, allow_nan=False)) == written


def test_flags_are_given_only_to_a_server_that_has_them() -> None:
    every = " ".join(OPTIONAL_FLAGS)
    argv = server_command(evolve(SPEC, options={**SPEC.options, "flags": every}), launch(), birth_of(SPEC), KEYS)
    assert all(flag in argv for flag in OPTIONAL_FLAGS)
    assert argv[argv.index("--sse-ping-interval") + 1] == "1"
    argv = server_command(SPEC, launch(), birth_of(SPEC), KEYS)
    assert not any(flag in argv for flag in OPTIONAL_FLAGS)


def test_lemonade_3276_sequences_and_split_or_shared_kv_are_always_said() -> None:
    def argv(known: str, pool: int) -> str:
        spec = evolve(SPEC, options={**SPEC.options, "flags": known})
        return " ".join(server_command(spec, evolve(launch(), pool=pool), birth_of(SPEC), KEYS))

    every = " ".join(KV_FLAGS)
    assert "--ctx-size 8192 --parallel 2 --no-kv-unified" in argv(every, 0)
    assert "--ctx-size 6000 --parallel 2 --kv-unified" in argv(every, 6000)
    assert "kv-unified" not in argv("", 0)


def test_a_pool_is_refused_where_the_server_cannot_share_its_cache() -> None:
    server = Binary(Path("/bin/llama-server"), Origin.PATH, Kind.LLAMA_SERVER)
    spec = evolve(SPEC, launches=(evolve(launch(), pool=6000),), options={**SPEC.options, "flags": ""})
    with pytest.raises(EngineBinaryError, match="/bin/llama-server does not know --kv-unified"):
        _refuse_poolless(spec, server)
    _refuse_poolless(evolve(spec, options={**SPEC.options, "flags": "--kv-unified"}), server)
    _refuse_poolless(evolve(spec, launches=(launch(),)), server)


@pytest.mark.parametrize(("role", "flag"), [("embed", "--embeddings"), ("rerank", "--reranking"), ("chat", None)])
def test_a_role_brings_its_flag(role: str, flag: str | None) -> None:
    spec = evolve(SPEC, launches=(launch(role),))
    argv = server_command(spec, spec.launches[0], birth_of(spec), KEYS)
    assert [word for word in argv if word in ("--embeddings", "--reranking")] == ([flag] if flag else [])


@pytest.mark.parametrize(
    ("launches", "aliases"),
    [
        ([("chat", "smollm"), ("embed", "minilm")], [["smollm"], ["minilm"]]),
        ([("chat", "same"), ("embed", "same")], [[], []]),
        ([("chat", "embed"), ("embed", "minilm")], [[], ["minilm"]]),
        ([("chat", "chat")], [[]]),
    ],
)
def test_a_model_is_a_name_for_its_server_where_it_is_the_only_one(
    launches: list[tuple[str, str]], aliases: list[list[str]]
) -> None:
    spec = evolve(SPEC, launches=tuple(launch(role, model=model) for role, model in launches))
    written = configuration(spec, birth_of(spec), KEYS)
    assert [written["models"][role]["aliases"] for role, _ in launches] == aliases


@pytest.mark.parametrize("bad", ["a${HOME}b", "${env.KEY}", "two\nlines"])
@pytest.mark.parametrize("where", ["path", "model", "argument", "binary"])
def test_what_the_proxy_would_expand_or_cut_is_refused(bad: str, where: str) -> None:
    spec = SPEC
    if where == "binary":
        spec = evolve(SPEC, options={**SPEC.options, "llama_server": f"/bin/{bad}"})
    else:
        changes: dict[str, Any] = {"argument": {"arguments": ("-x", bad)}}.get(where, {where: bad})
        spec = evolve(SPEC, launches=(launch(**changes),))
    with pytest.raises(ConfigError, match="cannot be passed on by llama-swap"):
        _refuse_unspeakable(spec)


def test_what_the_proxy_leaves_alone_is_let_pass() -> None:
    odd = ("$HOME", "$", "{}", "a b", "'", '"', "\\", "#", "%s", "é")
    _refuse_unspeakable(evolve(SPEC, launches=(launch(arguments=odd),)))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": "no such model"}', "no such model"),
        (b'{"error": {"message": "no such model", "type": "x"}}', "no such model"),
        (b'{"error": {"code": 5}}', "{'code': 5}"),
        (b"", "status 500"),
        (b"not json", "status 500"),
        (b"[]", "status 500"),
        (b"{}", "status 500"),
        (b"\xff", "status 500"),
    ],
)
def test_what_a_proxy_says_is_wrong_is_found_in_either_shape(body: bytes, said: str) -> None:
    assert _message(httpx.Response(500, content=body)) == said


# --- state words --------------------------------------------------------------------------------------------------------


class Proxy:
    """What a watcher hears, and what it makes of it."""

    def __init__(self, **idle_ttl: int) -> None:
        self.states = dict.fromkeys(idle_ttl, "stopped")
        self.told: list[tuple[str, ServerState]] = []
        self.active: dict[str, tuple[int, int]] = {}
        self.watcher = Watcher(
            idle_ttl,
            lambda role, state: self.told.append((role, state)),
            lambda role, in_flight, progress: self.active.update({role: (in_flight, progress)}),
        )
        self.now = 1000.0

    def say(self) -> None:
        models = [{"id": role, "state": state} for role, state in self.states.items()]
        models.append({"id": "of somebody else", "state": "ready"})
        self.watcher.take({"type": "modelStatus", "data": json.dumps(models)}, self.now)

    def become(self, role: str, *states: str) -> None:
        for state in states:
            self.states[role] = state
            self.say()

    def use(self) -> None:
        self.watcher.take({"type": "inflight", "data": "{}"}, self.now)

    def states_of(self, role: str) -> list[ServerState]:
        return [state for told, state in self.told if told == role]


READY, LOADING, UNLOADING, UNLOADED, LOST = (
    ServerState.READY,
    ServerState.LOADING,
    ServerState.UNLOADING,
    ServerState.UNLOADED,
    ServerState.LOST,
)


def test_a_death_is_told_from_an_unload_by_what_went_before() -> None:
    proxy = Proxy(chat=0)
    proxy.become(
        "chat", "starting", "ready", "stopping", "stopped", "stopped", "starting", "ready", "stopped", "stopped"
    )
    assert proxy.states_of("chat") == [LOADING, READY, UNLOADING, UNLOADED, LOADING, READY, LOST]


@pytest.mark.parametrize(("idle", "verdict"), [(59.9, LOST), (60.0, UNLOADED), (600.0, UNLOADED)])
def test_a_quick_unload_without_a_word_is_known_by_its_time(idle: float, verdict: ServerState) -> None:
    proxy = Proxy(chat=60)
    proxy.use()
    proxy.become("chat", "starting", "ready")
    proxy.now += idle
    proxy.become("chat", "stopped")
    assert proxy.states_of("chat")[-1] is verdict


def test_without_an_idle_time_every_silent_stop_is_a_death() -> None:
    proxy = Proxy(chat=0)
    proxy.become("chat", "ready")
    proxy.now += 1e9
    proxy.become("chat", "stopped")
    assert proxy.states_of("chat") == [READY, LOST]


def test_a_server_that_died_before_the_first_look_is_lost() -> None:
    proxy = Proxy(chat=0)
    proxy.say()
    assert proxy.states_of("chat") == [LOST]


def test_what_is_not_ours_to_know_is_passed_over() -> None:
    proxy = Proxy(chat=0)
    for event in ({}, {"type": "logData", "data": "x"}, {"type": "activity", "data": '{"id": 1}'}, {"type": "new one"}):
        proxy.watcher.take(event, 1.0)
    assert proxy.told == []


def unload(proxy: Proxy, role: str) -> int:
    if proxy.states[role] == "ready":
        proxy.become(role, "stopping", "stopped")
    return 0


def die(proxy: Proxy, role: str) -> int:
    was = proxy.states[role]
    proxy.become(role, "stopped")
    return int(was in ("starting", "ready"))


def start(proxy: Proxy, role: str) -> int:
    proxy.become(role, "starting")
    return 0


def load(proxy: Proxy, role: str) -> int:
    proxy.become(role, "ready")
    return 0


def say_again(proxy: Proxy, role: str) -> int:
    proxy.say()
    return 0


@given(st.lists(st.tuples(st.sampled_from([unload, die, start, load, say_again]), st.sampled_from(["chat", "embed"]))))
def test_every_death_is_told_once_and_no_unload_is_a_death(
    steps: list[tuple[Callable[[Proxy, str], int], str]],
) -> None:
    proxy = Proxy(chat=0, embed=0)
    deaths = {"chat": 0, "embed": 0}
    proxy.states = dict.fromkeys(deaths, "ready")
    proxy.say()
    for happen, role in steps:
        deaths[role] += happen(proxy, role)
    for role, count in deaths.items():
        told = proxy.states_of(role)
        assert told.count(LOST) == count
        assert all(one is not other for one, other in itertools.pairwise(told)), "nothing is told twice in a row"
        if told[-1] in (READY, LOADING):
            assert proxy.states[role] in ("ready", "starting")


# --- requests in flight -------------------------------------------------------------------------------------------------


class Stream:
    """What is heard of requests, and what the watch makes of it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []
        self.requests = Requests({"chat": 0, "embed": 0}, lambda *facts: self.told.append(facts))

    def snapshot(self, *requests: dict[str, Any]) -> None:
        self.requests.take(
            {"operation": "snapshot", "requests": list(requests)} if requests else {"operation": "snapshot"}
        )

    def upsert(self, key: str, role: str = "chat", **facts: object) -> None:
        self.requests.take({"operation": "upsert", "request": {"id": key, "model": role, **facts}})

    def remove(self, key: str) -> None:
        self.requests.take({"operation": "remove", "id": key})

    def of(self, role: str = "chat") -> tuple[int, int]:
        """(in flight, progress) as it was told last."""
        return next((count, progress) for told, count, progress in reversed(self.told) if told == role)


def test_a_snapshot_tells_of_every_role() -> None:
    stream = Stream()
    stream.snapshot()
    assert stream.told == [("chat", 0, 0), ("embed", 0, 0)]


def test_an_answer_that_moves_on_is_progress_and_one_that_does_not_is_none() -> None:
    stream = Stream()
    stream.snapshot()
    stream.upsert("1")
    assert stream.of() == (1, 0)
    stream.upsert("1", resp_bytes=10)
    stream.upsert("1", resp_bytes=10)
    assert stream.of() == (1, 1)
    stream.upsert("1", resp_bytes=11)
    assert stream.of() == (1, 2)
    stream.remove("1")
    assert stream.of() == (0, 3)
    assert stream.of("embed") == (0, 0)


def test_a_client_that_left_without_an_answer_is_no_progress() -> None:
    """oobabooga/textgen#7443: clients that give up must not hide a wedge."""
    stream = Stream()
    stream.snapshot()
    for key in "123":
        stream.upsert(key, resp_bytes=0, resp_headers={})
        stream.remove(key)
    assert stream.of() == (0, 0)


def test_headers_of_an_answer_are_progress() -> None:
    stream = Stream()
    stream.upsert("1")
    stream.upsert("1", resp_headers={"Content-Type": "text/event-stream"})
    assert stream.of() == (1, 1)


def test_a_later_snapshot_takes_the_place_of_what_was_lost() -> None:
    stream = Stream()
    stream.upsert("1")
    stream.upsert("2", resp_bytes=5)
    stream.upsert("3", "embed")
    stream.snapshot({"id": "3", "model": "embed"}, {"id": "4", "model": "chat"})
    assert stream.of() == (1, 2)
    assert stream.of("embed") == (1, 0)


def test_requests_of_nobody_we_know_are_passed_over() -> None:
    stream = Stream()
    stream.upsert("1", "of somebody else", resp_bytes=1)
    stream.remove("1")
    stream.remove("never heard of")
    stream.requests.take({"operation": "new one"})
    assert stream.told == []


@pytest.mark.parametrize(
    ("role", "arguments", "path"),
    [
        ("chat", (), "/v1/completions"),
        ("embed", (), "/v1/embeddings"),
        ("rerank", (), "/v1/rerank"),
        ("vectors", ("--embedding",), "/v1/embeddings"),
        ("order", ("--rerank",), "/v1/rerank"),
    ],
)
def test_a_canary_is_the_smallest_work_that_its_server_does(role: str, arguments: tuple[str, ...], path: str) -> None:
    spec = evolve(SPEC, launches=(launch(role, arguments=arguments),))
    found, body = smallest_work(spec, role)
    assert found == path
    assert body["model"] == role
    assert path != "/v1/completions" or body["max_tokens"] == 1


def test_what_counts_up_in_an_answer_of_slots_is_found_and_nothing_else() -> None:
    slots = [
        {
            "id": 0,
            "n_ctx": 512,
            "is_processing": True,
            "id_task": 7,
            "n_prompt_tokens_processed": 30,
            "params": {"temperature": 0.8},
            "next_token": [{"has_next_token": True, "n_remain": 4, "n_decoded": 60}],
        }
    ]
    for text in (json.dumps(slots), json.dumps(slots, separators=(",", ":")), json.dumps(slots, indent=1)):
        assert _counters(text.encode()) == [
            "is_processing=true", "id_task=7", "n_prompt_tokens_processed=30", "n_remain=4", "n_decoded=60",
        ]  # fmt: skip
