"""`queenright exec -- CMD`: any program as a user of the engine, by OpenAI's environment variables.

This process is the member. The program is its child, in the same process group, and does not outlive it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from supervisor.commands._common import add_place, patience

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from types import FrameType
    from typing import NoReturn

    from supervisor.client import Engine

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
        parser.add_argument("--role", default="chat", help="what the program talks to (default: chat)")
        parser.add_argument("command", nargs="...", metavar="-- COMMAND", help="the program and its arguments")
        parser.usage = "queenright exec [--role ROLE] [--config FILE] [--slot DIR] -- COMMAND ..."
        parser.epilog = (
            "example:\n  queenright exec -- sh -c 'curl -H \"Authorization: Bearer $OPENAI_API_KEY\" $OPENAI_BASE_URL/models'\n\n"
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
            engine = _opened(args, words)
        except BaseException:
            child.give_up()
            raise
        with engine:
            status = child.run(environment_for(engine, args.role))
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


def _opened(args: argparse.Namespace, words: Sequence[str]) -> Engine:
    from pathlib import Path

    from supervisor import client

    def say(text: str) -> None:
        print(f"queenright: {text}", file=sys.stderr, flush=True)

    with patience("waiting for the engine; `queenright status` shows what it does"):
        slot = Path(os.path.abspath(args.slot)) if args.slot else None
        # The program's name alone: its arguments may be secret, and every user of the engine reads this.
        name = f"exec {os.path.basename(words[0])}"
        engine = client.open_engine(args.config, program=name, say=say, slot=slot)
        try:
            engine.endpoint(args.role)  # waits until it is served
        except BaseException:
            engine.close()
            raise
    return engine


def environment_for(engine: Engine, role: str) -> dict[str, str]:
    """What the program has in its environment beyond our own. Proxies of the environment must not get the key."""
    endpoint = engine.endpoint(role)
    direct = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1,localhost"]))
    return {
        "OPENAI_BASE_URL": f"{endpoint.url}/v1",
        "OPENAI_API_KEY": endpoint.key,
        "QUEENRIGHT_ROLE": role,
        "QUEENRIGHT_MODEL": endpoint.model,
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
        """There is nothing to run it with."""
        os.close(self._write)
        os.waitpid(self.pid, 0)

    def run(self, environment: Mapping[str, str]) -> int:
        """Let it run, and wait for its end: its exit status, or the signal that ended it as a negative number."""
        # What a terminal sends goes to both of us, and what comes of it is for the program to say.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        descriptor = os.pidfd_open(self.pid)

        def forward(number: int, _: FrameType | None) -> None:
            with suppress(ProcessLookupError):  # it has just ended
                signal.pidfd_send_signal(descriptor, number)

        signal.signal(signal.SIGTERM, forward)
        signal.signal(signal.SIGHUP, forward)
        with os.fdopen(self._write, "wb") as pipe:
            pipe.write(json.dumps(dict(environment)).encode())
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(descriptor)
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
