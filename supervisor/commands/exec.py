"""`queenright exec -- CMD`: any program as a user of the engine, by OpenAI's environment variables.

This process is the member. The program is its child, in the same process group, and does not outlive it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from supervisor.commands._common import add_place, patience

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from types import FrameType
    from typing import NoReturn

    from supervisor.client import Engine
    from supervisor.front_door import Door
    from supervisor.slot import Slot

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
"""As shells have them (POSIX, XCU 2.8.2)."""

PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>."""


class Exec:
    """The command."""

    help = "run a program that uses the engine: OPENAI_BASE_URL and OPENAI_API_KEY are set for it"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments."""
        add_place(parser)
        parser.add_argument("--role", default="chat", help="whose name QUEENRIGHT_MODEL is (default: chat)")
        parser.add_argument("command", nargs="...", metavar="-- COMMAND", help="the program and its arguments")
        parser.usage = "queenright exec [--role ROLE] [--config FILE] [--slot DIR] -- COMMAND ..."
        parser.epilog = (
            "example:\n  queenright exec -- sh -c 'curl -s \"$OPENAI_BASE_URL/models\"'\n\n"
            "The URL is the gateway's: all roles are behind it, and requests are held and sent again while a group is down.\n"
            "Where the gateway is off it is the role's own.\n\n"
            "The engine is started if it does not run, and built again if it dies meanwhile. One that is stopped or held\n"
            "(`queenright stop`, `queenright hold`) is not built again for the program, whose requests then meet a\n"
            "closed port: run it again. After a hold, `queenright release` also brings the engine back under it.\n"
            "The exit status is the program's; 126 or 127 where it cannot be run."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Find the program, then the engine; run the one with the other."""
        words = args.command[1:] if args.command[:1] == ["--"] else args.command
        if not words:
            from supervisor.errors import UsageError

            raise UsageError("there is nothing to run", "`queenright exec -- COMMAND ...`")
        path, status = find_program(words[0], os.environ.get("PATH", os.defpath))
        if status:
            reason = "is not executable" if status == NOT_EXECUTABLE else "was not found"
            print(f"queenright: {words[0]} {reason}", file=sys.stderr)
            return status
        child = Child(path, words)  # before there is any other thread: it is a fork
        try:
            came = _with_ticket(args, words, child)
            status = _with_engine(args, words, child) if came is None else came
        except BaseException:
            child.give_up()
            raise
        if status < 0:
            _die_of(-status)
        return status


COMMAND: Final = Exec()


def find_program(name: str, search: str) -> tuple[str, int]:
    """The path of a program and 0; or NOT_FOUND, or NOT_EXECUTABLE."""
    found = NOT_FOUND
    for folder in [""] if "/" in name else search.split(os.pathsep):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path, 0
            found = NOT_EXECUTABLE
        elif os.path.isdir(path):
            found = NOT_EXECUTABLE
    return "", found


def _name(words: Sequence[str]) -> str:
    """The program's name alone: its arguments may be secret, and every user of the engine reads this."""
    return f"exec {os.path.basename(words[0])}"


def _with_ticket(args: argparse.Namespace, words: Sequence[str], child: Child) -> int | None:
    """Run the program as a member by a ticket; None where there is none that holds. What only an engine's death asks for
    is imported then."""
    from supervisor import config_find, ticket
    from supervisor.commands._common import slot_of
    from supervisor.errors import QueenrightError
    from supervisor.front_door import Door

    try:
        slot, config = slot_of(args), config_find.find(explicit=args.config)
    except QueenrightError:
        return None  # the full way says what is wrong
    seat = ticket.bind(slot, config, args.role, program=_name(words))
    if seat is None:
        return None
    tenure = None
    try:
        direct = Door(seat.url, seat.key, seat.model)
        child.start(_environment(_door(slot, args.role, direct, seat.seen), args.role))
        if not child.ends_before(seat.warden):
            from supervisor import client

            with suppress(QueenrightError):  # without its configuration it cannot be built again; the program goes on
                tenure = client.watched(seat.membership, args.config, slot, _name(words))
        return child.wait()
    finally:
        os.close(seat.warden)
        if tenure is not None:
            tenure.leave()
        else:
            seat.membership.leave()


def _with_engine(args: argparse.Namespace, words: Sequence[str], child: Child) -> int:
    """The same the full way, which leaves a ticket for the next one."""
    from supervisor import config_find, ticket
    from supervisor.front_door import Door

    began_ns = time.time_ns()
    engine = _opened(args, words)
    with engine:
        endpoint = engine.endpoint(args.role)
        direct = Door(endpoint.url, endpoint.key, endpoint.model)
        child.start(_environment(_door(engine.slot, args.role, direct), args.role))
        ticket.leave(engine.slot, config_find.find(explicit=args.config), engine.spec, began_ns)
        return child.wait()


def _opened(args: argparse.Namespace, words: Sequence[str]) -> Engine:
    from pathlib import Path

    from supervisor import client

    def say(text: str) -> None:
        print(f"queenright: {text}", file=sys.stderr, flush=True)

    with patience("the engine; `queenright status` shows what it does"):
        slot = Path(os.path.abspath(args.slot)) if args.slot else None
        engine = client.open_engine(args.config, program=_name(words), say=say, slot=slot)
        try:
            engine.endpoint(args.role)  # waits until it is served
        except BaseException:
            engine.close()
            raise
    return engine


def _door(slot: Slot, role: str, direct: Door, seen: Mapping[str, Any] | None = None) -> Door:
    from supervisor import front_door
    from supervisor.control import ControlError
    from supervisor.errors import GatewayError

    try:
        return front_door.find(slot, role, direct, seen)
    except GatewayError as error:
        print(f"queenright: not through the gateway: {error}", file=sys.stderr, flush=True)
    except ControlError:  # the keeper is being replaced just now: the group's own address holds
        pass
    return direct


def _environment(door: Door, role: str) -> dict[str, str]:
    """What the program has in its environment beyond our own. Proxies of the environment must not get the key."""
    near = {"127.0.0.1", "localhost", door.url.rpartition("//")[2].rpartition(":")[0].strip("[]")}
    direct = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), *sorted(near)]))
    return {
        "OPENAI_BASE_URL": f"{door.url}/v1",
        "OPENAI_API_KEY": door.key,
        "QUEENRIGHT_ROLE": role,
        "QUEENRIGHT_MODEL": door.model,
        "no_proxy": direct,
        "NO_PROXY": direct,
    }


class Child:
    """The program to be: forked at once, it waits for its environment and then execs.

    So the fork is made while there is one thread, on the thread whose end is the child's (PR_SET_PDEATHSIG of prctl(2)).
    """

    def __init__(self, path: str, words: Sequence[str]) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored from further up, it would take the exit status away
        read, self._write = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._write)
                _become(read, path, words, parent)
            finally:
                os._exit(NOT_EXECUTABLE)
        os.close(read)

    def give_up(self) -> None:
        """There is nothing to run it with. Does nothing once it was started."""
        if self._write >= 0:
            os.close(self._write)
            os.waitpid(self.pid, 0)

    def start(self, environment: Mapping[str, str]) -> None:
        """Let it run."""
        # What a terminal sends goes to both of us, and what comes of it is for the program to say.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        self._pidfd = descriptor = os.pidfd_open(self.pid)

        def forward(number: int, _: FrameType | None) -> None:
            with suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(descriptor, number)

        signal.signal(signal.SIGTERM, forward)
        signal.signal(signal.SIGHUP, forward)
        write, self._write = self._write, -1
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(dict(environment)).encode())

    def ends_before(self, warden: int) -> bool:
        """Wait until it or the process of that pidfd has ended; whether it was it."""
        poll = select.poll()
        for descriptor in (self._pidfd, warden):
            poll.register(descriptor, select.POLLIN)
        return any(number == self._pidfd for number, _ in poll.poll())

    def wait(self) -> int:
        """For its end: its exit status, or the signal that ended it as a negative number."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._pidfd)
        return status


def _die_of(number: int) -> NoReturn:
    """End as the program did, so that whoever waits for us sees the same; without a second core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # it was blocked by whoever started us


def _become(read: int, path: str, words: Sequence[str], parent: int) -> NoReturn:
    """In the child. An end of the pipe without a word is a parent that gave up."""
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python has its own for these
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(*(ctypes.c_ulong(argument) for argument in (PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)))
    if os.getppid() != parent:
        os._exit(NOT_EXECUTABLE)
    with os.fdopen(read, "rb") as pipe:
        given = pipe.read()
    if not given:
        os._exit(0)
    try:
        os.execve(path, list(words), {**os.environ, **json.loads(given)})
    except OSError as error:
        print(f"queenright: {path} cannot be run: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(NOT_EXECUTABLE)
