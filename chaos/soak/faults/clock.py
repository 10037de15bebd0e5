"""The time of day jumps, at our seam: for a front end that comes after it, and for one that looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.driving import Driven
from chaos.soak.faults.ground import Fault, Hit

if TYPE_CHECKING:
    from chaos.soak.faults.ground import Ground

JUMPS: Final = (3600, -3600)
PATIENCE: Final = 180.0  # budget: one front end that comes, asks and leaves, as in `load`


class ClockJump(Fault):
    """lilbee took the processes of before the step for others, and left them behind (W4)."""

    name, what = (
        "clock jump",
        "front ends whose clock is an hour ahead, and an hour behind: they bind, and nobody is replaced",
    )

    def invoke(self, ground: Ground) -> Hit:
        """Each comes, asks and leaves; one whose clock jumps while it is a member is among them."""
        how = []
        for jump in ground.chance.sample(JUMPS, len(JUMPS)):
            front = Driven(ground.config, f"clock-{jump:+d}", jump=jump)
            ground.undo.callback(front.kill)
            opened = front.hear("open", PATIENCE)
            front.tell(do="ask", id="jumped", role="embed")
            answer = front.hear("answer", PATIENCE, id="jumped")
            front.leave()
            if (opened["how"], answer["outcome"]) != ("bind", "complete"):
                how.append(f"{jump:+d} s: {opened['how']}, {answer['outcome']} {answer.get('why', '')}")
        return Hit(must_end=False, wrong=lambda: "; ".join(how))
