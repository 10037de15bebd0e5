"""A plan before anything is started: what does not fit is refused with numbers, what is left open is decided."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from supervisor.devices.survey import survey
from tests.engine.kit import Launch
from tests.support import free_port, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.place import Place

pytestmark = pytest.mark.engine


LARGE = 10_000_000
"""Tokens. 32 layers of 4,096 values of f16, K and V, are 512 KiB for each: some 5 TiB."""


def wide(place: Place) -> Path:
    """A model of which each token of context takes 512 KiB."""
    import gguf
    import numpy as np

    path = place.home / "wide.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(LARGE)
    writer.add_block_count(32)
    writer.add_embedding_length(4096)
    writer.add_head_count(32)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def grow(place: Place) -> None:
    """The second group's model wants more than any machine of ours has."""
    path = wide(place)
    place.configure({"chat": (Launch("chat"),), "embed": (Launch("embed", path, context=LARGE),)})


def test_run_refuses_what_does_not_fit_before_anything_is_started(place: Place) -> None:
    grow(place)
    done = place.cli("run")
    assert done.returncode == 6, done.stderr
    assert "embed/embed does not fit" in done.stderr
    assert "GiB of system memory" in done.stderr
    assert not place.slot.contract_record.exists()
    assert not list(place.home.glob("*.spawns"))


def test_a_group_that_does_not_fit_is_given_up_and_the_other_one_serves(place: Place) -> None:
    grow(place)
    front = place.front()
    front.open(wait=False)
    wait_until(lambda: states(place) == {"chat": "running", "embed": "failed"}, within=30, what="one of two groups")
    facts = next(group for group in snapshot(place)["groups"] if group["name"] == "embed")
    assert "embed/embed does not fit" in facts["reason"]
    assert facts["cause"]["word"] == "does not fit"
    assert not (place.home / "embed.spawns").exists(), "nothing of it was started"
    front.end()


def test_auto_is_decided_told_and_outlives_the_keeper(place: Place) -> None:
    """The model of the kit was trained for 4,096 tokens, and is of some bytes: as many as that fit."""
    place.configure({"chat": (Launch("chat", sequences=2),)})
    place.config.write_text(place.config.read_text() + 'context = "auto"\n')
    front = place.member()
    memory = server(place)["memory"]
    assert (memory["context"], memory["sequences"]) == (4096, 2)
    assert memory["ledger"]
    assert memory["binds"]
    wait_until(lambda: server(place)["memory"]["held"], within=30, what="what it holds was looked at")
    assert server(place)["memory"]["held"]["anonymous"] > 0
    words = json.loads((place.home / "chat.spawns").read_text().splitlines()[0])["argv"]
    assert words[words.index("--ctx-size") + 1] == str(2 * 4096)
    assert place.cli("restart-keeper").returncode == 0
    wait_until(lambda: states(place) == {"chat": "running"}, within=30, what="the next keeper has it")
    assert server(place)["memory"]["context"] == 4096
    front.end()


@pytest.mark.long
def test_who_needs_anothers_memory_is_told_so_and_nobody_is_evicted__ollama_17408_18282(place: Place) -> None:
    """Two models of which each wants 55 % of the machine, and a small one beside them. One of the two runs; the other is
    refused by what the first was promised, at once and each time it is asked for, though the first is never idle."""
    host = survey().host
    assert host.total.bytes is not None
    assert host.available.bytes is not None
    tokens = host.total.bytes * 55 // 100 // (512 << 10)
    if host.available.bytes < host.total.bytes * 65 // 100:
        pytest.skip("not even one of the two would fit now")
    path = wide(place)
    models = {"one": (Launch("one", path, context=tokens),), "two": (Launch("two", path, context=tokens),)}
    place.configure({**models, "small": (Launch("small"),)}, gateway={"listen": f"127.0.0.1:{free_port()}"})
    front = place.front()
    front.open(wait=False)
    wait_until(
        lambda: sorted(states(place).values()) == ["failed", "running", "running"], within=60, what="two of three"
    )
    (lost,) = [name for name, state in states(place).items() if state == "failed"]
    (won,) = {"one", "two"} - {lost}
    reason = place.group(lost)["reason"]
    for number in (
        r"[\d.]+ GiB of system memory",
        r"[\d.]+ GiB can be had",
        r"the largest part is keys and values, [\d.]+ GiB",
    ):
        assert re.search(number, reason), reason
    wait_until(lambda: place.snapshot()["gateway"]["state"] == "serving", within=30, what="the gateway serves")
    url = f"{place.snapshot()['gateway']['url']}/v1/completions"

    def ask(model: str) -> tuple[int, str, float]:
        began = time.monotonic()
        answer = httpx.post(url, json={"model": model, "prompt": "a", "max_tokens": 4}, timeout=60)
        return answer.status_code, answer.text, time.monotonic() - began

    with ThreadPoolExecutor(4) as threads:
        busy = [threads.submit(ask, won) for _ in range(60)]
        refusals = [ask(lost) for _ in range(5)]
        assert [one.result()[0] for one in busy] == [200] * 60
    assert ask("small")[0] == 200
    for status, text, took in refusals:
        assert status == 503
        assert "does not fit" in text
        assert took < 30  # at once; the limit is for a busy machine
    assert [len(place.spawns(name)) for name in (won, "small")] == [1, 1], "nobody was evicted for it"
    assert not (place.home / f"{lost}.spawns").exists()
    front.end()


@pytest.mark.long
def test_what_came_of_a_start_is_what_the_next_one_is_planned_with(place: Place) -> None:
    """It holds 300 MiB that nobody planned, and prints a compute buffer. The warning of that outlives it, until a start that
    is within its plan: the next one, for that is in it."""
    place.configure({"chat": (Launch("chat", knobs={"ballast": 300, "buffers": 7}, context=2048),)})
    for before in (True, False):
        front = place.member()
        wait_until(lambda: server(place)["memory"]["held"], within=60, what="what it holds was looked at")
        memory = server(place)["memory"]
        known = {one["what"]: (one["how"], one["bytes"] >> 20) for one in memory["ledger"]}
        words = json.loads((place.home / "chat.spawns").read_text().splitlines()[-1])["argv"]
        if before:
            assert known["compute buffer"][0] == "modelled"
            assert "--verbosity" in words
            assert ["takes" in one for one in memory["warnings"]] == [True]
            advised = place.cli("doctor", "--json").stdout
            assert "more than planned" in advised
            wait_until(lambda: list((place.kit.cache / "calibrations").glob("*.json")), within=30, what="it is kept")
        else:
            assert known["compute buffer"] == ("measured", 7)
            assert known["more than planned, as it was"][0] == "measured"
            assert "--verbosity" not in words
            assert memory["warnings"] == []
        front.end()
        wait_until(
            lambda: not snapshot(place)["groups"] or states(place) == {"chat": "down"}, within=60, what="stopped"
        )


def snapshot(place: Place) -> dict[str, Any]:
    done = place.cli("status", "--json")
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {"groups": []}
    return found


def states(place: Place) -> dict[str, str]:
    return {group["name"]: group["state"] for group in snapshot(place)["groups"]}


def server(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = snapshot(place)["groups"][0]["servers"][0]
    return found
