"""The run: one agent alone, then all of them at once, each in a project and a HOME of its own, on one engine."""

from __future__ import annotations

import random
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chaos import gpu, observer
from chaos.agents import seen, tasks
from chaos.agents.seen import MARK, Crew, Report, Request, Run, Watch
from chaos.driving import Driven
from chaos.interrupting import undisturbed
from chaos.observer import NotObservedError
from chaos.stage import GONE_LIMIT
from supervisor.config_find import SLOT_VARIABLE
from supervisor.errors import QueenrightError
from workers.cache import CACHE_VARIABLE, cache_root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisor.contract import GroupSpec
    from supervisor.slot import Slot

AGENT: Final = Path(__file__).with_name("agent.py")
COUNT: Final = 4
OPEN_LIMIT: Final = 600.0  # budget: an engine is built and a large model loaded from a slow disk
WORK_LIMIT: Final = 2400.0  # budget: above what one agent gives its work (chaos.agents.opencode)
STEPS: Final = 2 * tasks.ASKED + 1
"""Times that a scripted agent asks the model."""


class Agents:
    """Owner of a run. `configs` gives the configuration of an agent by crew (`baseline`, `four`) and number; it and the
    three hooks are for the tests of the run itself, which plant what a claim must find."""

    def __init__(
        self,
        slot: Slot,
        place: Path,
        groups: Sequence[GroupSpec],
        configs: Callable[[str, int], Path],
        *,
        count: int = COUNT,
        opencode: str = "",
        seed: int = 0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._slot, self._place, self._configs = slot, place, configs
        self._planned = {group.name: len(group.launches) for group in groups}
        self._carriers = {launch.role: group.name for group in groups for launch in group.launches}
        self._count, self._opencode, self._tell = count, opencode, tell
        self._chance, self._taken = random.Random(seed), set[str]()
        self._mark = secrets.token_hex(8)
        self._driven: list[Driven] = []
        self.before_verifying: Callable[[str, list[tasks.Project]], None] = lambda crew, projects: None
        self.environment: Callable[[str, int], dict[str, str]] = lambda crew, number: {}
        self.after_leaving: Callable[[str, str], None] = lambda crew, mark: None

    def run(self) -> Run:
        """Both crews, one after the other. Whatever stops it in between, nothing of it is left running. Raises
        NotObservedError where an agent did not come to the engine or to an end."""
        from supervisor import stopping

        try:
            before, device = seen.left(self._slot, self._mark), gpu.look()
            self._tell("one agent, alone")
            baseline = self._crew("baseline", 1)
            self._tell(f"{self._count} agents at once")
            four = self._crew("four", self._count)
            return Run(self._planned, self._carriers, before, device, baseline, four)
        finally:
            with undisturbed():
                for one in self._driven:
                    one.kill()
                seen.end_all(self._mark)  # what an agent started and had no time to end, or what was left and told of
                with suppress(QueenrightError):  # it went with its members, as it should
                    stopping.stop(self._slot, who="the end of the agents")

    # --- one crew ---------------------------------------------------------------------------------------------------

    def _crew(self, name: str, count: int) -> Crew:
        projects = [self._project(name, number) for number in range(count)]
        began = time.monotonic()
        with Watch(self._slot) as watch:
            crew = [self._start(name, number, project) for number, project in enumerate(projects)]
            for one in crew:
                one.hear("here", OPEN_LIMIT)
            for one in crew:  # in one instant: who is first builds, and the others find that out under the lock
                one.tell(do="open")
            opened = [one.hear("open", OPEN_LIMIT) for one in crew]
            self._tell(f"came by {', '.join(line['how'] for line in opened)}")
            ports = self._ports()
            for one in crew:
                one.tell(do="go")
            done = [one.hear("done", WORK_LIMIT) for one in crew]
        statuses = [one.leave() for one in crew]
        self.before_verifying(name, projects)
        reports = [
            self._report(one, project, line, end, status)
            for one, project, line, end, status in zip(crew, projects, opened, done, statuses, strict=True)
        ]
        for one in crew:
            self._driven.remove(one)
            one.kill()  # closes the pipes
        self.after_leaving(name, self._mark)
        left, device = self._left(), gpu.look()
        self._tell(f"done in {time.monotonic() - began:.1f} s")
        return Crew(reports, watch.samples, ports, time.monotonic() - began, left, device)

    def _project(self, crew: str, number: int) -> tasks.Project:
        root = self._place / crew / str(number)
        (root / "home").mkdir(parents=True)
        return tasks.make(root / "project", self._chance, self._taken)

    def _start(self, crew: str, number: int, project: tasks.Project) -> Driven:
        home = project.root.parent / "home"
        environment = {
            "HOME": str(home),
            **{f"XDG_{what}_HOME": str(home / what.lower()) for what in ("CONFIG", "DATA", "CACHE", "STATE")},
            CACHE_VARIABLE: str(cache_root()),  # models are the machine's, whoever works
            SLOT_VARIABLE: str(self._slot.path),  # goes before what the configuration says
            MARK: self._mark,
            **self.environment(crew, number),
        }
        words = ("--project", str(project.root), "--opencode", self._opencode)
        config = self._configs(crew, number)
        one = Driven(config, f"agent-{number}", environment, script=AGENT, words=words)
        self._driven.append(one)
        return one

    def _report(
        self, one: Driven, project: tasks.Project, opened: dict[str, Any], done: dict[str, Any], status: int
    ) -> Report:
        requests = [
            Request(line["role"], line["began"], line["ended"], line["outcome"], line["why"])
            for line in one.said
            if line["what"] == "request"
        ]
        foreign = self._taken - set(project.codes.values())
        wrong = tasks.wrong(project, foreign, steps=0 if self._opencode else STEPS)
        home = project.root.parent / "home"
        if not (home / "index.json").is_file():
            wrong.append("there is no index in its HOME")
        return Report(one.name, one.process.pid, opened["how"], opened["urls"], requests, status, done["why"], wrong)

    def _ports(self) -> dict[str, list[int]]:
        """Where each group's proxy listens now, by the kernel's word."""

        def found() -> dict[str, list[int]] | None:
            leaders = observer.look(self._slot).leaders
            ports = {group: observer.listening_ports(leader) for group, leader in leaders.items()}
            return ports if all(ports.get(group) for group in self._planned) else None

        try:
            return observer.wait_until("every proxy listens", found, OPEN_LIMIT)
        except NotObservedError:
            return {}  # the claim says what was not there

    def _left(self) -> list[str]:
        """What is there once all had the time to go."""
        with suppress(NotObservedError):
            observer.wait_until("nothing is left", lambda: not seen.left(self._slot, self._mark) or None, GONE_LIMIT)
        return seen.left(self._slot, self._mark)
