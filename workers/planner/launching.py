"""The plan of a group that is about to be started: what each of its servers is told, and what it takes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import evolve

from supervisor.errors import ConfigError, DoesNotFitError, EngineBinaryError
from supervisor.kinds import Planned
from workers import listed, printed
from workers.planner import learned, lint, render
from workers.planner.checked import Asking, checked, placement, told
from workers.planner.decide import Refusal
from workers.planner.flags import Help, known_of, of_variables, overruled, settings_of, unsayable, words
from workers.planner.foreseeing import request_of
from workers.planner.model import read_model
from workers.planner.shapes import HOST, less, machine_of
from workers.swap_configuration import ROLE_FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.contract import GroupSpec, LaunchSpec
    from supervisor.devices.shape import Survey
    from workers.planner.decide import Plan
    from workers.planner.model import Model
    from workers.planner.shapes import Machine

VERBOSITIES: Final = ("-lv", "--verbosity", "--log-verbosity", "-v", "--verbose", "--log-verbose", "--log-disable")
"""By which a launch says itself how much its server tells."""


def plan_group(spec: GroupSpec, survey: Survey) -> Planned:
    """See supervisor.kinds.Planning."""
    server = shlex.split(spec.options["llama_server"])
    known = known_of(spec.options["flags"])
    machine = machine_of(listed.as_seen_by(server, survey, spec.environment))
    whole, taken = machine, dict.fromkeys((HOST, *(card.key for card in machine.cards)), 0)
    launches, shown = [], {}
    variables, environment = of_variables(spec.environment)
    asking = Asking(server, environment)
    for launch in spec.launches:
        launch = evolve(launch, arguments=(*variables, *launch.arguments))
        model = read_model(Path(launch.path))
        rest = (*ROLE_FLAGS.get(launch.role, ()), *settings_of(launch.arguments)[1])
        seen = learned.of(build_of(spec.pin), model, rest, whole, spec.environment)
        found, check = checked(request_of(launch, seen), model, machine, asking.of(model, whole, rest))
        title = f"{spec.name}/{launch.role}"
        if isinstance(found, Refusal):
            raise refused(title, found)
        arguments = said(launch, found, model, whole, known, title)
        choice = found.choice
        key = learned.key_of(seen, choice, found.placed)
        if key and not key["is_known"] and len(spec.launches) == 1:
            arguments = (*telling(known, arguments), *arguments)
        launches.append(
            evolve(
                launch,
                context=launch.context or choice.window,
                sequences=choice.sequences,
                arguments=arguments,
            )
        )
        hints = [one.sentence for one in lint.hints(model, launch.role, launch.arguments)]
        shown[launch.role] = {
            "binds": found.binds,
            "ledger": render.data(launch.role, model, found, check)["ledger"],
            "estimate": render.estimate_data(check),
            "notes": [*found.notes, *told(check), *overruled(spec.environment), *hints],
            "learns": key,
        }
        needs = {place: found.account.needed(place) for place in taken}
        machine = less(machine, needs)
        for place, size in needs.items():
            taken[place] += size
    return Planned(evolve(spec, launches=tuple(launches), environment=environment), taken, shown)


def refused(title: str, found: Refusal) -> ConfigError | DoesNotFitError:
    """What to raise for a plan that cannot be."""
    if found.placed is None:
        return ConfigError(f"{title}: {found.why}", "remove the argument")
    offers = "; ".join(offer.what for offer in found.offers)
    step = f"what would fit: {offers}" if offers else "take a smaller model, or one that is quantised further"
    return DoesNotFitError(f"{title} does not fit: {found.why}; {step}", "`queenright plan` shows every line of it")


def said(launch: LaunchSpec, found: Plan, model: Model, machine: Machine, known: Help, title: str) -> tuple[str, ...]:
    """The arguments of the plan, then those that are not the planner's. Raises EngineBinaryError where the program cannot be
    told what the plan rests on."""
    choice = found.choice
    _, rest = settings_of(launch.arguments)
    done, split = placement(choice.settings, machine, found.placed, rest)
    if not known.knows("--tensor-split"):
        split = ()
    layers = len(model.layers)
    if missing := unsayable(done, known, cpu_moe=choice.cpu_moe, layers=layers):
        what = f"{title}: this llama-server has no {', '.join(missing)}, and the plan rests on it"
        raise EngineBinaryError(what, "update it, or leave out what asks for that")
    return (*words(done, known, cpu_moe=choice.cpu_moe, layers=layers), *split, *rest)


def build_of(pin: str) -> str:
    """The server's part of a group's pin: what memory depends on."""
    return pin.partition(";")[0].partition("=")[2] or pin


def telling(known: Help, arguments: Sequence[str]) -> tuple[str, ...]:
    """Words that have a server print its buffers, where nobody has seen them yet and it was not told how much to say. 14 kB
    more of log at that start, and 2 kB more for each request until the next one (measured)."""
    said = any(word.partition("=")[0] in VERBOSITIES for word in arguments)
    return () if said or not known.knows("--verbosity") else ("--verbosity", str(printed.VERBOSITY))
