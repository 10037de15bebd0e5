"""A kind as the keeper holds it: what one of its hands raises or gives that it may not comes out as KindError.

A kind is somebody else's code, found by entry point. A bug in one must not end the keeper: its other groups have no part in
it, and the next keeper would end of the same bug. It is contained here, where a kind comes in, and nowhere else: behind this
border a hand raises QueenrightError or OSError, and gives what it says it gives. What follows from either for its group is
known in each place already. What is not contained is a hand that blocks: a keeper that hangs is the warden's to replace.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from supervisor import plausible
from supervisor.contract import GroupSpec
from supervisor.errors import KindError, QueenrightError
from supervisor.kinds import Answer, Command, Planned, Planning, Preparation, Preparing, ReadingBack, ServerState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from supervisor.config_shape import EngineConfig, GroupConfig
    from supervisor.devices.held import Held
    from supervisor.devices.shape import Survey
    from supervisor.kinds import Activity, Birth, Kind, Report

MAY: Final = (QueenrightError, OSError)
"""What a hand may raise."""

FREE: Final = frozenset({"probe", "look_closer", "canary", "outside", "release", "read_back"})
"""Hands that may raise anything (`kinds.Kind`): whatever an HTTP library has for a server that broke off is no bug."""
BUGS: Final = (TypeError, AttributeError, NameError, ArithmeticError, AssertionError, ImportError, SystemExit)
"""What is one there, too."""

PLACES: Final = 12
"""Of the way to a bug, the last ones."""

NEXT_STEP: Final = "it is for who made that kind to mend"


class Contained:
    """`kind`, contained. `complain` is told once of each bug, with the places that led there. It can do what the kind can: it is Preparing,
    Planning or ReadingBack where that is."""

    def __init__(self, kind: Kind, complain: Callable[[str], None]) -> None:
        self.name = str(getattr(kind, "name", type(kind).__name__))
        self._kind, self._complain = kind, complain
        self._told: set[str] = set()
        if isinstance(kind, Preparing):
            self.lacks, self.prepare = self._lacks(kind), self._prepare(kind)
        if isinstance(kind, Planning):
            self.plan = self._plan(kind)
        if isinstance(kind, ReadingBack):
            self.read_back = self._read_back(kind)

    # --- before a start ---------------------------------------------------------------------------------------------

    def resolve(self, group: GroupConfig, engine: EngineConfig) -> GroupSpec:
        """See kinds.Kind, as of all that follow."""
        with self._border("resolve"):
            return self._kind.resolve(group, engine)

    def looked_at(self, spec: GroupSpec) -> Iterable[Path]:
        with self._border("looked_at"):
            return tuple(self._kind.looked_at(spec))

    def port_names(self, spec: GroupSpec) -> tuple[str, ...]:
        with self._border("port_names"):
            names = tuple(self._kind.port_names(spec))
            if not names or len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
                self._gave("port_names", "no list of names, each once")
            return names

    def command(self, spec: GroupSpec, birth: Birth) -> Command:
        with self._border("command"):
            given = self._kind.command(spec, birth)
            if wrong := plausible.wrong_with(given):
                self._gave("command", wrong)
            return given

    # --- while it lives ---------------------------------------------------------------------------------------------

    async def load(self, spec: GroupSpec, birth: Birth, roles: Collection[str], report: Report) -> None:
        with self._border("load"):
            await self._kind.load(spec, birth, roles, self._checked("load", report))

    async def watch(self, spec: GroupSpec, birth: Birth, report: Report, activity: Activity) -> NoReturn:
        def act(role: object, in_flight: object, progress: object) -> None:
            if not (isinstance(role, str) and isinstance(in_flight, int) and isinstance(progress, int)):
                self._gave("watch", "an activity that is none")
            activity(role, in_flight, progress)

        with self._border("watch"):
            await self._kind.watch(spec, birth, self._checked("watch", report), act)
            self._gave("watch", "up, though nobody had cancelled it")

    async def probe(self, spec: GroupSpec, birth: Birth, subject: str) -> Answer:
        with self._border("probe"):
            return self._answer("probe", await self._kind.probe(spec, birth, subject))

    async def look_closer(self, spec: GroupSpec, birth: Birth, role: str) -> str | None:
        with self._border("look_closer"):
            found = await self._kind.look_closer(spec, birth, role)
            return found if found is None else str(found)

    async def canary(self, spec: GroupSpec, birth: Birth, role: str) -> Answer:
        with self._border("canary"):
            return self._answer("canary", await self._kind.canary(spec, birth, role))

    async def outside(self, birth: Birth) -> int | None:
        with self._border("outside"):
            found = await self._kind.outside(birth)
            return found if found is None else int(found)

    async def release(self, birth: Birth) -> None:
        with self._border("release"):
            await self._kind.release(birth)

    # --- what only some can -----------------------------------------------------------------------------------------

    def _lacks(self, kind: Preparing) -> Callable[..., Any]:
        def lacks(spec: GroupSpec) -> bool:
            with self._border("lacks"):
                return bool(kind.lacks(spec))

        return lacks

    def _prepare(self, kind: Preparing) -> Callable[..., Any]:
        async def prepare(spec: GroupSpec, report: Callable[[Preparation], None]) -> None:
            def tell(now: object) -> None:
                if not isinstance(now, Preparation) or {type(now.done), type(now.total)} != {int}:
                    self._gave("prepare", "a report that is none")
                report(now)

            with self._border("prepare"):
                await kind.prepare(spec, tell)

        return prepare

    def _plan(self, kind: Planning) -> Callable[..., Any]:
        def plan(spec: GroupSpec, survey: Survey) -> Planned:
            with self._border("plan"):
                given: Any = kind.plan(spec, survey)
                if not isinstance(given, Planned) or not isinstance(given.spec, GroupSpec):
                    self._gave("plan", "no plan")
                if not all(isinstance(size, int) for size in given.grants.values()) or not plausible.is_plain(
                    given.memory
                ):
                    self._gave("plan", "grants that are no bytes, or memory that is no plain data")
                return given

        return plan

    def _read_back(self, kind: ReadingBack) -> Callable[..., Any]:
        async def read_back(
            spec: GroupSpec, memory: Mapping[str, Mapping[str, Any]], birth: Birth, held: Mapping[str, Held], log: str
        ) -> Mapping[str, Mapping[str, Any]]:
            with self._border("read_back"):
                found = await kind.read_back(spec, memory, birth, held, log)
                if not plausible.is_plain(found) or not all(plausible.is_reading(one) for one in found.values()):
                    self._gave("read_back", "no readings")
                return found

        return read_back

    # --- the border -------------------------------------------------------------------------------------------------

    @contextmanager
    def _border(self, hand: str) -> Iterator[None]:
        try:
            yield
        except MAY:
            raise
        except (Exception, SystemExit, BaseExceptionGroup) as error:
            raise self._instead_of(hand, error) from error

    def _instead_of(self, hand: str, error: BaseException) -> BaseException:
        """What is raised in its place. Out of a nursery of its own come groups: of a cancellation, which has to go on, and of
        errors that it may raise, which is then only a matter of form."""
        leaves = list(_leaves(error))
        bad = [leaf for leaf in leaves if isinstance(leaf, (Exception, SystemExit)) and not isinstance(leaf, MAY)]
        bugs = [leaf for leaf in bad if hand not in FREE or isinstance(leaf, BUGS)]
        for leaf in bugs:
            self._note(hand, leaf)
        if isinstance(error, BaseExceptionGroup) and (others := error.split((Exception, SystemExit))[1]) is not None:
            return others
        if not bad:
            return leaves[0]
        if not bugs:
            return KindError(_said(bad[0]) or type(bad[0]).__name__)
        said = _said(bugs[0])
        what = f"raised {type(bugs[0]).__name__}{f': {said}' if said else ''}"
        return self._error(hand, what, "`queenright logs keeper` says where; ")

    def _note(self, hand: str, error: BaseException) -> None:
        lines = [f"keeper: {hand} of the engine kind {self.name}: {type(error).__name__}: {error}"]
        places = traceback.extract_tb(error.__traceback__, limit=-PLACES)
        lines += [f"  {one.filename}:{one.lineno} in {one.name}: {one.line}" for one in places]
        if (key := hand + lines[-1]) not in self._told:
            self._told.add(key)
            self._complain("\n".join(lines))

    def _error(self, hand: str, what: str, more: str = "") -> KindError:
        return KindError(f"the engine kind {self.name} has a bug: its {hand} {what}", f"{more}{NEXT_STEP}")

    def _gave(self, hand: str, what: str) -> NoReturn:
        raise self._error(hand, f"gave {what}")

    def _answer(self, hand: str, given: Answer) -> Answer:
        if not isinstance(given, Answer):
            self._gave(hand, "no answer")
        return given

    def _checked(self, hand: str, report: Report) -> Report:
        def tell(role: object, state: object) -> None:
            if not isinstance(role, str) or not isinstance(state, ServerState):
                self._gave(hand, "a report that is none")
            report(role, state)

        return tell


class Absent:
    """In place of a kind that is not found any more, as when its package was removed under a running engine: it starts nothing
    and says why. What runs it lets run: nobody can ask it anything, and unknown is not dead."""

    def __init__(self, name: str, why: QueenrightError) -> None:
        self.name = name
        self._what, self._next_step = why.what, why.next_step

    def _refuse(self) -> NoReturn:
        raise KindError(self._what, self._next_step)

    def resolve(self, group: GroupConfig, engine: EngineConfig) -> GroupSpec:
        """See kinds.Kind, as of all that follow."""
        self._refuse()

    def looked_at(self, spec: GroupSpec) -> Iterable[Path]:
        self._refuse()

    def port_names(self, spec: GroupSpec) -> tuple[str, ...]:
        self._refuse()

    def command(self, spec: GroupSpec, birth: Birth) -> Command:
        self._refuse()

    async def load(self, spec: GroupSpec, birth: Birth, roles: Collection[str], report: Report) -> None:
        if roles:
            self._refuse()

    async def watch(self, spec: GroupSpec, birth: Birth, report: Report, activity: Activity) -> None:
        self._refuse()

    async def probe(self, spec: GroupSpec, birth: Birth, subject: str) -> Answer:
        return Answer.UNKNOWN

    async def look_closer(self, spec: GroupSpec, birth: Birth, role: str) -> str | None:
        return None

    async def canary(self, spec: GroupSpec, birth: Birth, role: str) -> Answer:
        return Answer.UNKNOWN

    async def outside(self, birth: Birth) -> int | None:
        return None

    async def release(self, birth: Birth) -> None:
        """SIGTERM ends it."""


def hold(name: str, find: Callable[[str], Kind], complain: Callable[[str], None]) -> Kind:
    """The kind of that name as a keeper holds it: contained, or absent."""
    try:
        return Contained(find(name), complain)
    except QueenrightError as error:
        complain(f"keeper: {error.what}")
        return Absent(name, error)


def words(error: QueenrightError | OSError) -> str:
    """What it says, in one line."""
    return error.what if isinstance(error, QueenrightError) else str(error)


def _said(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
