"""What a doctor says of the launches of a configuration: properties of their files, and uses that come to nothing."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from supervisor.devices import host
from supervisor.errors import EngineBinaryError
from supervisor.kinds import Advice
from workers import flag_check, models, own_words, pins
from workers.planner import lint
from workers.planner.flags import settings_of
from workers.planner.model import read_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisor.config_shape import GroupConfig, LaunchConfig
    from workers.engines import Binary
    from workers.planner.model import Model

CAP_IPC_LOCK: Final = 1 << 14
"""capabilities(7): who has it is not held to RLIMIT_MEMLOCK."""


def advise(group: GroupConfig, server: Binary) -> Iterator[Advice]:
    """See supervisor.kinds.Advising."""
    jinja = jinja_is_on(server)
    limit = memlock()
    shown = _help(server) if pins.is_script(server) else ""
    for launch in group.launches:
        if text := flag_check.doubt(_own(group, launch), shown, str(server.path)):
            yield Advice(launch.role, text, "take the flag out of `arguments`, unless the script takes it")
        model = read_model(models.resolve(launch.model))
        found = list(lint.hints(model, launch.role, launch.arguments, jinja=jinja))
        if (hint := lint.unlockable(model, launch.arguments, limit)) is not None or (
            limit is not None and model.has_routed_experts and (hint := pinned(launch, model, limit)) is not None
        ):
            found.append(hint)
        yield from (Advice(launch.role, hint.text, hint.next_step) for hint in found)


def _own(group: GroupConfig, launch: LaunchConfig) -> Sequence[str]:
    """Its arguments but for what a plan says anew, in the form that the server knows."""
    return settings_of(launch.arguments)[1] if group.plan else launch.arguments


def pinned(launch: LaunchConfig, model: Model, limit: int) -> lint.Hint | None:
    """Experts that are kept beside a card are allocated as memory that its driver locks, and a load may die of a limit below
    them (ollama/ollama#11772)."""
    from supervisor.devices.survey import survey
    from workers.planner.decide import plan
    from workers.planner.foreseeing import request_of
    from workers.planner.placing import EXPERTS
    from workers.planner.shapes import GIB, HOST, machine_of

    machine = machine_of(survey())
    if not machine.is_discrete:
        return None
    found = plan(request_of(launch), model, machine)
    lines = found.placed.account.lines if found.placed else ()
    need = sum(line.bytes for line in lines if line.place == HOST and line.what == EXPERTS)
    if need <= limit:
        return None
    return lint.Hint(
        f"{need / GIB:.2f} GiB of its experts are kept beside a card, as memory that its driver locks, and a process may lock "
        f"{limit >> 20:,} MiB: the load may fail",
        lint.RAISE_IT,
    )


def jinja_is_on(server: Binary) -> bool | None:
    """Whether this build reads a model's template without --jinja: its --help says so. None where it does not."""

    def ask() -> str:
        if not (text := _help(server)):
            return ""
        found = re.search(r"^--jinja\b.*(?:\n\s.*)*?\(default: (enabled|disabled)\)", text, re.MULTILINE)
        return found[1] if found else "unknown"

    return {"enabled": True, "disabled": False}.get(pins.asked_once("default of --jinja", server, ask))


def _help(server: Binary) -> str:
    """What it prints for --help; "" where it does not."""
    with suppress(EngineBinaryError):
        return own_words.help_of(server.argv)
    return ""


def memlock(status: str = "/proc/self/status") -> int | None:
    """Bytes that a process of ours may lock; None without a limit, and for who is not held to it."""
    try:
        with open(status, encoding="ascii", errors="replace") as file:
            found = re.search(r"^CapEff:\s*([0-9a-f]+)", file.read(), re.MULTILINE)
    except OSError:
        found = None
    if found is not None and int(found[1], 16) & CAP_IPC_LOCK:
        return None
    return host.memlock()
