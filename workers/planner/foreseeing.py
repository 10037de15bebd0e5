"""What a whole configuration takes: its launches in order, each in what the ones before it leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from supervisor.kinds import Forecast
from workers import listed, models
from workers.planner import learned, lint, render
from workers.planner.checked import Asking, checked
from workers.planner.decide import Request
from workers.planner.flags import Settings, of_variables, overruled, settings_of
from workers.planner.learned import NOTHING, Learned
from workers.planner.model import read_model
from workers.planner.shapes import HOST, less, machine_of
from workers.swap_configuration import ROLE_FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisor.config_shape import GroupConfig, LaunchConfig
    from supervisor.contract import LaunchSpec
    from supervisor.devices.shape import Survey
    from workers.planner.shapes import Machine


def request_of(launch: LaunchConfig | LaunchSpec, seen: Learned = NOTHING) -> Request:
    """What a launch, of the configuration or resolved, asks of a planner that has `seen` it before. Raises ConfigError or
    ModelError."""
    # A resolved one has it among its arguments.
    settings, _ = settings_of(launch.arguments, Settings(cache_ram_mib=getattr(launch, "cache_ram_mib", 0)))
    if launch.role in ("embed", "rerank"):
        settings = evolve(settings, checkpoints=0)  # there is no conversation to go back in
    context: int | None = launch.context or None  # 0 is "auto", of both
    if launch.pool:  # what the sequences share is given as one number
        settings, context = evolve(settings, unified=True), -(-launch.pool // launch.sequences)
    projector = read_model(settings.projector).file_bytes if settings.projector else 0
    return Request(
        context=context,
        sequences=launch.sequences or None,
        settings=settings,
        least_context=launch.least_context,
        projector_bytes=projector,
        learned=seen,
    )


def foresee(groups: Sequence[GroupConfig], survey: Survey, server: Sequence[str], pin: str = "") -> list[Forecast]:
    """See supervisor.kinds.Foreseeing. What does not fit takes nothing: the launches after it are planned without it.
    `server` are the words of the llama-server that would run, none where there is none, and `pin` is its identity."""
    found = []
    taken: dict[str, int] = {}
    machines: dict[tuple[tuple[str, str], ...], Machine] = {}
    for group in groups:
        around = tuple(sorted(group.environment.items()))
        if around not in machines:  # its server starts a driver to say what it sees
            machines[around] = machine_of(listed.as_seen_by(server, survey, group.environment))
        whole = machines[around]
        variables, environment = of_variables(group.environment)
        asking = Asking(server, environment)
        for launch in group.launches:
            launch = evolve(launch, arguments=(*variables, *launch.arguments))
            model = read_model(models.resolve(launch.model))
            rest = (*ROLE_FLAGS.get(launch.role, ()), *settings_of(launch.arguments)[1])
            request = request_of(launch, learned.of(pin, model, rest, whole, group.environment))
            one, check = checked(request, model, less(whole, taken), asking.of(model, whole, rest))
            title = f"{group.name}/{launch.role}"
            fits = one.placed is not None and one.placed.account.fits
            hints = [one.sentence for one in lint.hints(model, launch.role, launch.arguments)]
            notes = [f"  {note}" for note in overruled(group.environment)]
            lines = [*render.text(title, model, one, check), *notes, *(f"  of the file: {hint}" for hint in hints)]
            data = {"group": group.name, **render.data(launch.role, model, one, check), "hints": hints}
            found.append(Forecast(launch.role, fits, tuple(lines), data))
            if fits and one.placed is not None:
                for place in (HOST, *(card.key for card in whole.cards)):
                    taken[place] = taken.get(place, 0) + one.placed.account.needed(place)
    return found
