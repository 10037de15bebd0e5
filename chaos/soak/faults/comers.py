"""Front ends that die, and that come at once: a member, a builder in the middle of it, several builders in one instant."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from chaos import observer
from chaos.driving import Driven
from chaos.soak.faults.ground import Fault, Hit, is_dead
from supervisor import identity, locks

if TYPE_CHECKING:
    from chaos.soak.faults.ground import Ground
    from supervisor.identity import Identity

PATIENCE: Final = 180.0  # budget: a build on a busy machine, as in `load`
BUILDERS: Final = 3


class MemberKilled(Fault):
    """In the middle of an answer, with its lock held."""

    name, what = "member", "kill -9 of a member in the middle of a stream: nobody else notices"

    def invoke(self, ground: Ground) -> Hit:
        """A member of its own: those under load are to go on."""
        front = Driven(ground.config, "doomed")
        ground.undo.callback(front.kill)
        front.hear("open", PATIENCE)
        front.tell(do="load", workers=[{"role": "chat", "stream": True, "tokens": 64}])
        front.hear("first token", PATIENCE)
        front.kill()
        return Hit(must_end=False)


class TwoBuilders(Fault):
    """The engine's warden is killed, and who comes in that instant finds nothing."""

    name, what = (
        "two builders",
        f"kill -9 of the warden, and {BUILDERS} front ends that come in one instant: one engine",
    )

    def invoke(self, ground: Ground) -> Hit:
        """At most one of them builds: a member under load may have been first."""
        stopped = _stop_fronts(ground)
        ground.kill(ground.warden, signal.SIGKILL)
        _wait_gone(ground)
        fronts = []
        for number in range(BUILDERS):
            front = Driven(ground.config, f"builder-{number}")
            ground.undo.callback(front.kill)
            fronts.append(front)
        _go_on(ground, stopped)
        how = [str(front.hear("open", PATIENCE)["how"]) for front in fronts]
        left = [front.leave() for front in fronts]

        def wrong() -> str:
            return (
                "" if how.count("build") <= 1 and not any(left) else f"they did {', '.join(how)}, and left with {left}"
            )

        return Hit((ground.warden,), ground.all_touched, wrong=wrong)


class BuilderKilled(Fault):
    """At a step of the build that is drawn: it has build.lock, there is a warden, or there is a keeper."""

    name, what = "builder", "kill -9 of the warden, then of the front end that builds anew, in the middle of it"
    steps: Final = ("it has build.lock", "there is a warden", "there is a keeper")

    def invoke(self, ground: Ground) -> Hit:
        """Members under load stand still until it is dead, or they would be the builders."""
        step = ground.chance.choice(self.steps)
        stopped = _stop_fronts(ground)
        ground.kill(ground.warden, signal.SIGKILL)
        _wait_gone(ground)
        front = Driven(ground.config, "doomed-builder")
        ground.undo.callback(front.kill)

        def reached() -> bool | None:
            if step == self.steps[0]:
                there = front.process.pid in locks.holders(ground.slot.build_lock)
            elif step == self.steps[1]:
                there = locks.is_held(ground.slot.warden_lock) is True
            else:
                there = observer.look(ground.slot).keeper is not None
            return True if there or front.process.poll() is not None else None

        observer.wait_until(f"a builder of which {step}", reached, PATIENCE)
        front.kill()
        _go_on(ground, stopped)
        return Hit((ground.warden,), ground.all_touched)


def _stop_fronts(ground: Ground) -> list[Identity]:
    """Have the front ends under load stand still; those that do."""
    there = [who for pid in ground.front_ends if (who := identity.of(pid)) is not None]
    for who in there:
        ground.undo.callback(ground.kill, who, signal.SIGCONT)
        ground.kill(who, signal.SIGSTOP)
    return there


def _go_on(ground: Ground, stopped: list[Identity]) -> None:
    for who in stopped:  # by who it is: one that ended meanwhile has been reaped, and its number may be another's
        ground.kill(who, signal.SIGCONT)


def _wait_gone(ground: Ground) -> None:
    everybody: frozenset[Identity] = ground.before.everything
    observer.wait_until("the kernel took the engine", lambda: all(map(is_dead, everybody)) or None, PATIENCE)
