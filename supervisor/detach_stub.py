"""Starts a warden that shares no fate with whoever asked: own session, double fork, nothing inherited.

Run by absolute path as `python -I -S detach_stub.py LOG ARGV…`; standard library only, so that the fork happens in a
process with one thread (a front end may have many). It says `here` on stdout, and goes on when it reads a word from
stdin; at its end it does nothing. So who had another program start it knows whether it was started, and in time. Then
it waits for the warden's verdict, one word on a pipe, and ends with 0 (it runs), 3 (the slot has a warden) or 1 (the
reason is on stderr). See daemon(7).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import NoReturn


def main() -> None:
    """`detach_stub.py LOG ARGV…`: start it, wait for its verdict, and end with that. See the module."""
    log_path, argv = sys.argv[1], sys.argv[2:]
    os.write(1, b"here\n")
    if not os.read(0, 16):
        sys.exit("nobody waits for a warden any more")
    verdict_r, verdict_w = os.pipe()
    child = os.fork()
    if child == 0:
        become_warden(log_path, argv, verdict_w)
    os.close(verdict_w)
    os.waitpid(child, 0)  # it ends with its fork; whoever adopts orphans here shall get no zombie
    verdict = b""
    while data := os.read(verdict_r, 4096):
        verdict += data
    if verdict != b"ok":
        sys.stderr.write(verdict.decode() or f"the warden died at its start; its last words are in {log_path}")
    sys.exit(0 if verdict == b"ok" else 3 if verdict.startswith(b"held") else 1)


def become_warden(log_path: str, argv: list[str], verdict: int) -> NoReturn:
    """In the child. Whatever fails is the verdict: its stderr is a pipe whose reader shows it to a user."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)  # the session's leader ends, so nobody of this session can get a terminal again
        os.chdir("/")
        for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(
                limit, (hard, hard)
            )  # what the first front end gave itself is not for everybody's engine
        os.umask(0o077)
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.set_inheritable(verdict, True)
        settings = json.loads(argv[-1]) | {"verdict_fd": verdict}
        os.execv(argv[0], [*argv[:-1], json.dumps(settings)])
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a second stub
        os.write(verdict, f"cannot start {argv[0]}: {error}".encode(errors="replace"))
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
