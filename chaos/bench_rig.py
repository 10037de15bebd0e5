"""What the bench measures with: child processes with a clock, an engine in a slot of its own, a pair without one.

Whatever is started here is gone when the `with` ends, by whatever way: an engine of ours is stopped, a bare pair is
killed. Should the bench itself be killed, the engine loses its one member and stops by itself.
"""

from __future__ import annotations

import http.client
import os
import secrets
import select
import signal
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.interrupting import undisturbed
from supervisor import acquire, budgets, control, identity, kinds, ports, records, stopping
from supervisor.contract import State
from supervisor.environment import clean
from supervisor.errors import NoEngineError, QueenrightError
from supervisor.kinds import Birth

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from supervisor.contract import EngineSpec, GroupSpec
    from supervisor.identity import Identity
    from supervisor.slot import Slot

CHILD_LIMIT = 60.0  # budget: one quick command; a machine that takes longer gives no figure of use
POLL = 0.002  # budget: between two looks at a port, of either side; a hundredth of what a small model takes to load
DEATH_LIMIT = 10.0  # budget: from SIGKILL to gone; later only in uninterruptible sleep

NOT_INHERITED = frozenset({"PYTHONDONTWRITEBYTECODE", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE", "PYTHONTRACEMALLOC"})
"""They would have the children compile everything anew, or report."""


class NotMeasuredError(QueenrightError):
    """A cell has no figure, since what it measures did not happen as it must."""


# --- children -------------------------------------------------------------------------------------------------------


def console_script() -> list[str]:
    """`queenright`, run by this very Python, so that both sides of a pair start the same interpreter."""
    script = Path(sysconfig.get_path("scripts")) / "queenright"
    return [sys.executable, str(script)] if script.is_file() else [sys.executable, "-m", "supervisor.cli"]


def child_environment(slot: Path) -> dict[str, str]:
    """As ours, with bytecode, and with the slot named: so no configuration is looked for, and none is found."""
    return {key: value for key, value in os.environ.items() if key not in NOT_INHERITED} | {
        "QUEENRIGHT_SLOT": str(slot)
    }


def child_seconds(argv: Sequence[str], environment: Mapping[str, str], folder: Path, *, status: int = 0) -> float:
    """Run it to its end, and how long that took. Raises NotMeasuredError unless it ends with `status`."""
    began = time.perf_counter()
    try:
        done = subprocess.run(
            argv,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=CHILD_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotMeasuredError(f"`{' '.join(argv[1:])}` did not end within {CHILD_LIMIT:g} s") from None
    took = time.perf_counter() - began
    if done.returncode != status:
        words = done.stderr.decode("utf-8", "replace").strip() or "it said nothing"
        raise NotMeasuredError(
            f"`{' '.join(argv[1:])}` ended with exit status {done.returncode}, expected {status}: {words}"
        )
    return took


# --- an engine of ours ----------------------------------------------------------------------------------------------


@contextmanager
def engine(slot: Slot, spec: EngineSpec) -> Iterator[dict[str, Any]]:
    """Run it in that slot, all models loaded; gives the keeper's snapshot. Stopped at the end, also on Ctrl-C.

    Raises what `acquire` raises, and NotMeasuredError when a group does not come up.
    """
    with ExitStack() as stack:
        stack.callback(_stop, slot)
        acquired = acquire.acquire(slot, spec, program="queenright bench")
        stack.callback(acquired.membership.leave)
        names = [group.name for group in spec.groups]
        limit = max(group.start_limit_s for group in spec.groups) + budgets.CONTROL_ANSWER
        snapshot = control.ask(slot, "wait", limit=limit, groups=names)
        for name in names:
            facts = group_in(snapshot, name)
            if facts["state"] != State.RUNNING:
                raise NotMeasuredError(f"group {name} did not come up: {facts['state']}, {facts['reason']}")
        yield snapshot


def _stop(slot: Slot) -> None:
    with undisturbed(), suppress(NoEngineError):
        stopping.stop(slot, who="queenright bench")


def group_in(snapshot: dict[str, Any], name: str) -> dict[str, Any]:
    """The group's part of a snapshot. Raises NotMeasuredError."""
    for facts in snapshot["groups"]:
        if facts["name"] == name:
            return dict(facts)
    raise NotMeasuredError(f"the engine has no group {name}")


def recovery_seconds(slot: Slot, snapshot: dict[str, Any], group: GroupSpec) -> float:
    """SIGKILL the group's proxy and servers; how long until a new generation of it serves.

    The ports are not asked before the keeper says that the group runs: a request would have the proxy load its server
    before the keeper does. Raises NotMeasuredError or ControlError.
    """
    before = group_in(snapshot, group.name)
    victims = [_proven(before["proxy"]["pid"]), *(_proven(server["pid"]) for server in before["servers"])]
    key = slot.group_key(group.name).read_text(encoding="ascii").strip()
    news = control.converse(slot, "follow", limit=group.start_limit_s)
    next(news)  # from here on every change is told
    began = time.perf_counter()
    for victim in victims:
        identity.signal_exact(victim, signal.SIGKILL)
    for changed in news:
        now = group_in(changed, group.name)
        if now["state"] == State.FAILED:
            raise NotMeasuredError(f"group {group.name} failed: {now['reason']}")
        if now["state"] == State.RUNNING and now["generation"] != before["generation"]:
            wait_healthy(now["url"], key, _roles(group), began + group.start_limit_s)
            return time.perf_counter() - began
    raise NotMeasuredError(f"the keeper fell silent while group {group.name} was rebuilt")


def keeper_seconds(slot: Slot, snapshot: dict[str, Any]) -> float:
    """SIGKILL the keeper; how long until the next one answers `status`. Raises NotMeasuredError."""
    victim = _proven(snapshot["keeper"]["pid"])
    began = time.perf_counter()
    identity.signal_exact(victim, signal.SIGKILL)
    while time.perf_counter() - began < budgets.HANDOFF_WAIT:
        with suppress(control.ControlError):
            answer = control.ask(slot, "status", limit=budgets.CONTROL_WAIT)
            if answer["keeper"] and answer["keeper"]["pid"] != victim.pid:
                return time.perf_counter() - began
    raise NotMeasuredError(f"no new keeper answered within {budgets.HANDOFF_WAIT:g} s")


def memory_mebibytes(pid: int, *fields: str) -> float:
    """The sum of these fields of proc_pid_smaps(5). `Pss` is the proportional set size, where shared pages count by their
    share; both `Private_` ones make the unique set size. Raises NotMeasuredError."""
    found: dict[str, int] = {}
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name in fields:
                found[name] = int(value.split()[0])
    except (OSError, ValueError, IndexError) as error:
        raise NotMeasuredError(f"the memory of pid {pid} cannot be read: {error}") from error
    if missing := set(fields) - set(found):
        raise NotMeasuredError(f"/proc/{pid}/smaps_rollup has no {', '.join(sorted(missing))}")
    return sum(found.values()) / 1024


def _proven(pid: int | None) -> Identity:
    found = identity.of(pid) if pid else None
    if found is None:
        raise NotMeasuredError(f"a process of the engine is not there to be killed (pid {pid})")
    return found


# --- the same pair with nobody above it -----------------------------------------------------------------------------


def bare_seconds(group: GroupSpec, folder: Path) -> float:
    """Start the group's proxy as the warden would, with the same configuration, and nobody to watch over it; how long
    until it and all its servers answer. Killed afterwards. Raises NotMeasuredError."""
    kind = kinds.find(group.kind)
    chosen: dict[str, int] = {}
    for name in kind.port_names(group):
        chosen[name] = ports.choose(None, set(chosen.values()))
    keys = secrets.token_hex(16), secrets.token_hex(16)
    birth = Birth(secrets.token_hex(8), chosen, folder / "bare.json", *keys, os.getpid())
    command = kind.command(group, birth)
    for path, text in command.files.items():
        records.write_text_private(path, text)
    with (folder / "bare.log").open("ab") as log:
        began = time.perf_counter()
        process = subprocess.Popen(
            command.argv,
            env=clean(os.environ) | dict(command.environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            wait_healthy(birth.url, birth.client_key, _roles(group), began + group.start_limit_s, process)
            return time.perf_counter() - began
        finally:
            with undisturbed():
                _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The proxy and all below it; returns when the kernel has let go of each."""
    family = identity.descendants(process.pid)
    with ExitStack() as stack:
        waited = []
        for member in family:
            with suppress(ProcessLookupError):
                waited.append(identity.open_pidfd(member))
                stack.callback(os.close, waited[-1])
        process.kill()
        for descriptor in waited:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        process.wait(DEATH_LIMIT)
        for descriptor in waited:
            watch = select.poll()
            watch.register(descriptor, select.POLLIN)
            watch.poll(DEATH_LIMIT * 1000)


# --- both -----------------------------------------------------------------------------------------------------------


def wait_healthy(
    url: str, key: str, roles: Sequence[str], deadline: float, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Until the proxy's /health and, through it, that of each server is 200. `deadline` is of time.perf_counter().

    The first request for a server has the proxy load it, and all are asked at once. Raises NotMeasuredError.
    """
    address = url.removeprefix("http://")
    _wait_ok(address, key, "/health", deadline, process)
    with ThreadPoolExecutor(len(roles)) as pool:
        list(pool.map(lambda role: _wait_ok(address, key, f"/upstream/{role}/health", deadline, process), roles))


def _wait_ok(address: str, key: str, path: str, deadline: float, process: subprocess.Popen[bytes] | None) -> None:
    last = "nothing was heard"
    while (left := deadline - time.perf_counter()) > 0:
        if process is not None and process.poll() is not None:
            raise NotMeasuredError(f"the proxy ended with exit status {process.returncode} while it was started")
        connection = http.client.HTTPConnection(address, timeout=left)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            if answer.status == 200:
                return
            last = f"status {answer.status}"
        except (OSError, http.client.HTTPException) as error:
            last = str(error) or type(error).__name__
        finally:
            connection.close()
        time.sleep(POLL)
    raise NotMeasuredError(f"http://{address}{path} did not get well in time: {last}")


def _roles(group: GroupSpec) -> list[str]:
    return [launch.role for launch in group.launches]
