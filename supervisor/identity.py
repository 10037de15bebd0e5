"""Who a process is, from what Linux's /proc says: everything of it that the keeper's side needs about processes.

A process is (boot id, pid namespace, pid, start ticks): the pid alone is given away again, and a time of day moves when
the clock is set. Start ticks count from the boot and never move (proc_pid_stat(5), field 22). A process's name decides
nothing. What cannot be read is *unknown*, and unknown means alive.

Another platform gets another module with these functions (docs/concepts.md, "What is not there yet"). Over 300 lines:
they are one list.
"""

from __future__ import annotations

import errno
import os
from _thread import allocate_lock, start_new_thread  # `status` does without `threading`
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

from supervisor import budgets

PROC = "/proc"
"""Where procfs is. Tests point it at a directory of their own."""


class Identity(NamedTuple):
    """One process, for as long as the machine runs.

    `pid_namespace` is the inode of the namespace in which `pid` is a number: the reader's own, not the process's.
    `ticks` are clock ticks from the boot to the start of the process (proc_pid_stat(5)).
    """

    boot_id: str
    pid_namespace: int
    pid: int
    ticks: int


class Liveness(StrEnum):
    """What is known of an identity's process. UNKNOWN has to be treated as alive."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Stat(NamedTuple):
    """The fields of /proc/<pid>/stat that are used here. `state` is one letter, `threads` counts the leader too."""

    state: str
    parent: int
    session: int
    threads: int
    ticks: int

    @property
    def is_dead(self) -> bool:
        """True for a zombie, and for one being taken away. A leader that left its threads running is in state Z, too,
        and lives: threads then counts them."""
        return self.state in "ZXx" and self.threads <= 1


def boot_id() -> str:
    """The random id of this boot (random(4)). Raises OSError."""
    return _read(f"{PROC}/sys/kernel/random/boot_id").decode("ascii").strip()


def pid_namespace() -> int:
    """Inode of the pid namespace in which our pids are numbers (pid_namespaces(7)). Raises OSError, ValueError."""
    return int(os.readlink(f"{PROC}/self/ns/pid").partition(":[")[2].rstrip("]"))


def own() -> Identity:
    """This process. Raises OSError when /proc is not there or not readable."""
    return Identity(boot_id(), pid_namespace(), os.getpid(), stat_of(os.getpid()).ticks)


def of(pid: int) -> Identity | None:
    """The process that has this pid now, zombies too; None when there is none, or when it cannot be read."""
    try:
        return Identity(boot_id(), pid_namespace(), pid, stat_of(pid).ticks)
    except (OSError, ValueError):
        return None


def stat_of(pid: int) -> Stat:
    """/proc/<pid>/stat. Raises OSError, or ValueError when it is not what proc_pid_stat(5) says."""
    try:
        fields = _stat_fields(f"{PROC}/{pid}/stat")
        return Stat(fields[0].decode("ascii"), int(fields[1]), int(fields[3]), int(fields[17]), int(fields[19]))
    except (IndexError, ValueError) as error:
        raise ValueError(f"/proc/{pid}/stat is not as expected") from error


def _stat_fields(path: str) -> list[bytes]:
    """What stands in a /proc/<pid>/stat behind the name, field 3 of proc_pid_stat(5) first. The name stands in brackets and
    may hold spaces and brackets itself: the last bracket ends it. Raises OSError or ValueError."""
    data = _read(path)
    return data[data.rindex(b")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """Clock ticks from boot to the start of the process with this pid; None when it is not there or not readable."""
    try:
        return stat_of(pid).ticks
    except (OSError, ValueError):
        return None


def state_of(pid: int) -> str | None:
    """The state letter of the process with this pid (R, S, D, T, t, Z, ...); None when not there or not readable."""
    try:
        return stat_of(pid).state
    except (OSError, ValueError):
        return None


def terminal_of(pid: int) -> str | None:
    """The controlling terminal of the process, as ps(1) names it (`pts/3`, `tty1`); "" where it has none, and None when
    the process is not there or not readable. proc_pid_stat(5), field 7; the numbers are those of Linux's devices.txt."""
    try:
        number = int(_stat_fields(f"{PROC}/{pid}/stat")[4])
    except (OSError, ValueError, IndexError):
        return None
    if number <= 0:
        return ""
    major, minor = os.major(number), os.minor(number)
    if 136 <= major <= 143:
        return f"pts/{(major - 136) * 256 + minor}"
    return f"tty{minor}" if major == 4 and minor < 64 else f"{major}:{minor}"


def parse(data: Any) -> Identity:
    """An identity that was written down (`_asdict`). Raises ValueError or TypeError for what is none."""
    if not isinstance(data, dict) or [type(value) for value in data.values()] != [str, int, int, int]:
        raise ValueError("not an identity")
    return Identity(**data)


class Usage(NamedTuple):
    """How a process is doing: `state` is one letter, `cpu_ticks` are clock ticks of CPU time so far, in user and kernel
    mode, of all its threads (proc_pid_stat(5), fields 3, 14 and 15)."""

    state: str
    cpu_ticks: int


def usage_of(pid: int) -> Usage | None:
    """The process with this pid now; None when it is not there or not readable."""
    try:
        fields = _stat_fields(f"{PROC}/{pid}/stat")
        return Usage(fields[0].decode("ascii"), int(fields[11]) + int(fields[12]))
    except (OSError, ValueError, IndexError):
        return None


def waits_for_a_turn(pid: int) -> bool | None:
    """Whether any thread of the process runs, waits for a processor (R) or sleeps where nothing can wake it but a disk
    or a device (D): it may take no CPU time and yet be at work. None when it cannot be read."""
    found: bool | None = None
    try:
        threads = os.listdir(f"{PROC}/{pid}/task")
    except OSError:
        return None
    for thread in threads:
        try:
            state = _stat_fields(f"{PROC}/{pid}/task/{thread}/stat")[0]
            found = bool(found) or state in (b"R", b"D")
        except (OSError, ValueError, IndexError):
            continue
    return found


def liveness(identity: Identity) -> Liveness:
    """Whether that very process lives. Never raises.

    Another boot: dead. Another pid namespace: unknown, its pids mean nothing here. No such process, other start ticks
    or a zombie: dead. Anything that cannot be read: unknown.
    """
    try:
        if identity.boot_id != boot_id():
            return Liveness.DEAD
        if identity.pid_namespace != pid_namespace():
            return Liveness.UNKNOWN
    except (OSError, ValueError):
        return Liveness.UNKNOWN
    try:
        found = stat_of(identity.pid)
    except (FileNotFoundError, ProcessLookupError):
        return Liveness.DEAD if _kernel_knows_none(identity.pid) else Liveness.UNKNOWN
    except (OSError, ValueError):
        return Liveness.UNKNOWN
    return Liveness.DEAD if found.ticks != identity.ticks or found.is_dead else Liveness.ALIVE


def _kernel_knows_none(pid: int) -> bool:
    """No entry in /proc is no proof: hidepid hides other users' processes (proc(5)), and /proc may not be mounted.
    The kernel itself is asked, with signal 0, which sends nothing."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def children(pid: int) -> list[int]:
    """The children of a process, zombies too: those of all its threads.

    The kernel's list is exact only while the threads stand still (proc_pid_task(5)): who must not miss one walks again
    until two walks agree. Empty when the process is gone or not readable.
    """
    if not _has_children_files():
        return [child for child, parent in _parents().items() if parent == pid]
    found: list[int] = []
    try:
        threads = os.listdir(f"{PROC}/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            found += map(int, _read(f"{PROC}/{pid}/task/{thread}/children").split())
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[Identity]:
    """All processes below a process, parents before their children, zombies too, itself not. As exact as `children`."""
    found = (of(child) for child in below(pid))
    return [identity for identity in found if identity is not None]


def below(pid: int) -> list[int]:
    """Their pids alone, for whoever only looks at them at once: a third of the time (measured)."""
    known: dict[int, list[int]] | None = None
    if not _has_children_files():
        known = {}
        for child, parent in _parents().items():
            known.setdefault(parent, []).append(child)
    order: dict[int, None] = {}
    todo = [pid]
    while todo:
        parent = todo.pop(0)
        under = children(parent) if known is None else known.get(parent, [])
        # A pid that was given away during the walk could lead back up: each is visited once.
        fresh = [child for child in under if child not in order and child != pid]
        order.update(dict.fromkeys(fresh))
        todo += fresh
    return list(order)


def _has_children_files() -> bool:
    """False on kernels without CONFIG_PROC_CHILDREN."""
    return os.path.exists(f"{PROC}/thread-self/children")


def _parents() -> dict[int, int]:
    """pid to parent's pid, of every process: 3.6 ms with 440 of them, against 0.02 ms for a walk down (measured)."""
    found: dict[int, int] = {}
    for pid in pids():
        try:
            found[pid] = stat_of(pid).parent
        except (OSError, ValueError):
            continue
    return found


def pids() -> list[int]:
    """Of all processes that there are, in no order."""
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def marker(pid: int, name: str) -> str | None:
    """The value of a variable in the environment a process was started with; None when unset or not readable.

    None proves nothing: a zombie has no environment, and a program may overwrite its own.
    """
    try:
        environment = _read(f"{PROC}/{pid}/environ")
    except OSError:
        return None
    prefix = os.fsencode(name) + b"="
    for entry in environment.split(b"\0"):
        if entry.startswith(prefix):
            return os.fsdecode(entry[len(prefix) :])
    return None


def with_marker(name: str) -> list[tuple[Identity, str]]:
    """Every process of our user whose environment has this variable, with its value. Ourselves, too, if we have it.

    A scan of all of /proc: 4 to 15 ms on a busy machine (measured); for when no warden can be asked.
    """
    found: list[tuple[Identity, str]] = []
    for pid in pids():
        if marker(pid, name) is None or not _is_ours(pid):
            continue
        identity = of(pid)
        # Read again after the identity: so an identity never comes with an environment older than itself.
        value = marker(pid, name)
        if identity is not None and value is not None:
            found.append((identity, value))
    return found


def _is_ours(pid: int) -> bool:
    """Whether a process runs as our user: root can read every environment, and must not take others' for its own."""
    try:
        for line in _read(f"{PROC}/{pid}/status").splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[2]) == os.geteuid()
    except (OSError, ValueError, IndexError):
        pass
    return False


def resident_bytes(pid: int) -> int | None:
    """Resident memory in bytes (proc_pid_statm(5)); 0 for a zombie, None when not there or not readable."""
    try:
        return int(_read(f"{PROC}/{pid}/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def open_pidfd(identity: Identity) -> int:
    """A descriptor of exactly that process (pidfd_open(2)), close-on-exec; the caller closes it.

    Raises ProcessLookupError when that process is gone, or cannot be proven to be the one (other namespace, unreadable
    /proc). A zombie is still itself: its pidfd is readable at once.
    """
    gone = f"no such process: pid {identity.pid}, started at tick {identity.ticks}"
    try:
        if identity.boot_id != boot_id() or identity.pid_namespace != pid_namespace():
            raise ProcessLookupError(gone)
        descriptor = os.pidfd_open(identity.pid)
    except (ValueError, OverflowError) as error:
        raise ProcessLookupError(gone) from error
    except OSError as error:
        # EINVAL: the number is a thread's by now.
        if error.errno in (errno.ESRCH, errno.ENOENT, errno.EACCES, errno.EINVAL):
            raise ProcessLookupError(gone) from error
        raise
    # Compared after the opening: from here on the descriptor cannot change hands.
    if start_ticks(identity.pid) != identity.ticks:
        os.close(descriptor)
        raise ProcessLookupError(gone)
    return descriptor


def signal_exact(identity: Identity, number: int) -> bool:
    """Signal exactly that process. True when it was sent, False when the process is gone or not provably the same.

    Raises PermissionError when the kernel refuses (the process changed its user).
    """
    try:
        descriptor = open_pidfd(identity)
    except ProcessLookupError:
        return False
    import signal  # its enums take 3 ms, which those who only look should not pay

    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def proc_file(pid: int, name: str) -> bytes:
    """A whole file of a process in /proc. Raises OSError."""
    return _read(f"{PROC}/{pid}/{name}")


def proc_file_in_time(pid: int, name: str) -> bytes | None:
    """The same of a file that shows its memory (cmdline, environ, maps), for who must not hang: one that holds the lock of its
    own memory map, as a process that waits for a dead disk may, lets nobody read them, and not even a signal ends the wait
    (`ps` hangs by that). None where it cannot be read within PROC_ANSWER; the thread that waits is left behind."""
    found: list[bytes] = []
    done = allocate_lock()
    done.acquire()

    def read() -> None:
        with suppress(OSError):
            found.append(proc_file(pid, name))
        done.release()

    with suppress(RuntimeError):  # no thread is to be had
        start_new_thread(read, ())
        if done.acquire(timeout=budgets.PROC_ANSWER) and found:
            return found[0]
    return None


def _read(path: str) -> bytes:
    """A whole file of procfs. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
