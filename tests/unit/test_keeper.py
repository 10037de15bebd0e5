"""What the keeper decides by itself, without a warden."""

from __future__ import annotations

import resource
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from supervisor.advice import off_device
from supervisor.keeper import FILES, Keeper, files
from supervisor.portrait import reason_of

ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, FILES),
        (1024, ENDLESS, FILES),
        (1 << 20, 1 << 20, 1 << 20),
        (1 << 20, ENDLESS, 1 << 20),
        (ENDLESS, ENDLESS, ENDLESS),
    ],
)
def test_the_limit_of_descriptors_is_raised_and_never_lowered(soft: int, hard: int, wanted: int) -> None:
    assert files(soft, hard) == wanted


def test_a_server_without_the_device_it_was_planned_for_is_named__ollama_5464() -> None:
    def group(*verdicts: str) -> dict[str, Any]:
        compared = [{"what": "memory of GPU-a", "planned": 20 * 2**30, "verdict": one} for one in verdicts]
        return {"servers": [{"role": "chat", "memory": {"compared": compared}}, {"role": "embed", "memory": None}]}

    assert off_device([group("as planned", "under", "over", "unknown")]) == ""
    said = "chat runs without its device: memory of GPU-a: 20480 MiB planned, and it has none"
    assert off_device([group(), group("absent")]) == said


@pytest.mark.parametrize(
    ("state", "wanted"), [("failed", "a bad flag"), ("degraded", "a server died"), ("running", "a server died")]
)
def test_the_engines_reason_is_that_of_the_group_that_gives_it_its_state(state: str, wanted: str) -> None:
    groups = [
        {"state": "running", "reason": ""},
        {"state": "degraded", "reason": "a server died"},
        {"state": "failed", "reason": "a bad flag"},
    ]
    assert reason_of(state, groups) == wanted
    assert reason_of(state, groups[:1]) == ""


def test_what_is_asked_of_it_is_answered_once_the_warden_has_it_and_only_then_does_it_go() -> None:
    """A keeper that died before would have undone it; one that goes before is nobody to answer."""
    happened: list[str] = []

    async def settle() -> None:
        happened.append("the warden has it")

    keeper = SimpleNamespace(
        acts={"restart-keeper": lambda *_: happened.append("done")},
        tell=lambda: happened.append("told"),
        procs=SimpleNamespace(settle=settle),
        _is_leaving=True,
        _stop_asked=SimpleNamespace(set=lambda: happened.append("it goes")),
    )
    trio.run(Keeper.act, cast("Keeper", keeper), "restart-keeper", {})
    assert happened == ["done", "told", "the warden has it", "it goes"]
