"""The warden: forks, waits, signals, reports and remembers for one slot. No policy.

Started by absolute path as `python -I -S warden.py SLOT SETTINGS`; standard library only, single-threaded, imports
nothing of ours. A fork here is a fork of a process with one thread, a death signal belongs to a thread that never
ends, and there is one reaper. Its protocol is in docs/reference/warden-protocol.md; why there are two processes is
ADR 1. Linux only: pidfds, child subreaper, parent-death signals.

Its death ends the engine, so nothing may end it: a mistake of the keeper's is answered with `error`, and
what fails for want of memory or descriptors is tried again (`run`). Hence two rules: a descriptor's callback can be
called again after it failed; what a timer goes on with, it arms before it does anything else.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector

TYPE_CHECKING = False  # importing `typing` for it would be 0.4 MiB of what a warden holds
if TYPE_CHECKING:
    from typing import Any

ROW = ("gen", "group", "pid", "ticks", "state", "code", "status", "since_ns", "note")
PROTOCOL, MARKER, LINK_FD, CONTROL_FD, GATEWAY_FD, CONSOLE_FD, LOCK_FD = 1, "QUEENRIGHT_GENERATION", 3, 4, 5, 6, 3
MAX_LINE, MAX_BACKLOG, MAX_NOTE = 1 << 20, 4 << 20, 512 << 10
# From prctl(2), and __WALL of wait(2): also a child that was cloned to be ours without telling us of its death.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, WALL = 1, 36, 0x40000000
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
BLOCKABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
HAS_CHILDREN_FILE = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # PROC_CHILDREN


def prctl(option: int, value: int, libc: Any = ctypes.CDLL(None, use_errno=True)) -> None:  # noqa: B008 - once
    """prctl(2), which the standard library has not. Raises OSError. A child that loaded libc anew would exec 0.3 ms later."""
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def look(function: Any, where: Any, otherwise: Any) -> Any:
    """function(where), or `otherwise` where the process is gone or not ours to look at. Whatever else fails is raised:
    out of descriptors or memory says nothing about the process, and the living would count as dead."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError, ConnectionError):
        return function(where)
    return otherwise


def read_whole(path: str) -> bytes:
    """The bytes of a file of /proc. Raises OSError; call it through `look`."""
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def stat_of(pid: int | str) -> tuple[bytes, int, int, int, int]:
    """(state, parent, session, start ticks, CPU ticks) from proc_pid_stat(5); state b"" once the process is reaped."""
    fields = look(read_whole, f"/proc/{pid}/stat", b"").rpartition(b")")[2].split() or [b"", *[b"0"] * 19]
    lives = fields[0] == b"Z" and int(fields[17]) > 1  # its first thread ended before the others
    return b"S" if lives else fields[0], int(fields[1]), int(fields[3]), int(fields[19]), sum(map(int, fields[11:13]))


def tasks_of(pid: int) -> list[str]:
    """Directories of its threads, the first thread's first; one that is dead shows neither files nor environment."""
    return [f"/proc/{pid}/task/{task}" for task in look(os.listdir, f"/proc/{pid}/task", [])]


def children_of(pid: int) -> list[int]:
    """Children of every thread of `pid`: 0.02 ms, against 4-15 ms for a scan of /proc (measured)."""
    if HAS_CHILDREN_FILE:
        return [int(child) for task in tasks_of(pid) for child in look(read_whole, f"{task}/children", b"").split()]
    return [int(other) for other in os.listdir("/proc") if other.isdigit() and stat_of(other)[1] == pid]


def alive_below(pids: list[int]) -> list[tuple[int, int]]:
    """(pid, start ticks) of these processes and all below them that live; a zombie counts as dead."""
    found, queue = list[tuple[int, int]](), list(pids)
    for pid in queue:  # it grows meanwhile
        state, _, _, ticks, _ = stat_of(pid)
        queue += children_of(pid)
        found += [(pid, ticks)] if state not in (b"", b"Z") else []
    return found


def mark_of(pid: int) -> str:
    """The generation that its environment names. It can lie or be erased, so it is one evidence of several."""
    environ = next((found for task in tasks_of(pid) if (found := look(read_whole, f"{task}/environ", b""))), b"")
    return str((b"\0" + environ).partition(f"\0{MARKER}=".encode())[2].partition(b"\0")[0], errors="replace")


def has_open(pid: int, name: str) -> bool:
    """Whether it has the file open. By the link's text: a stat would hang on the dead network disk of another one."""
    links = (f"{task}/fd/{fd}" for task in tasks_of(pid) for fd in look(os.listdir, f"{task}/fd", []))
    return any(look(os.readlink, link, "").removesuffix(" (deleted)") == name for link in links)


def hangs(before: Any, now: Any) -> bool:
    """Whether two looks (`stat_of`) at a silent process show that it is stopped, or sleeps. One that has used CPU is
    busy, R without CPU is starved by others, and D waits for a disk: killing those helps nobody."""
    states = {before[0], now[0]}
    return states == {b"T"} or (before[4] == now[4] and not states & {b"D", b"R"})


def kill_exact(pid: int, ticks: int, number: int) -> None:
    """Signal a process that is not our child: through a pidfd, its start ticks compared (a pid alone proves nothing)."""
    with suppress(OSError), open(os.pidfd_open(pid), "rb", buffering=0) as pidfd:  # it may die between the looks
        if stat_of(pid)[3] == ticks:
            signal.pidfd_send_signal(pidfd.fileno(), number)


def receive(link: socket.socket) -> Any:
    """(bytes, descriptors, …) of what a keeper wrote. At most one comes with each write."""
    return socket.recv_fds(link, 65536, 1)


def lock_patiently(fd: int) -> None:
    """Somebody who only looks holds a shared lock for microseconds; whoever holds it for 0.2 s is a holder."""
    for _ in range(20):
        with suppress(BlockingIOError):
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.01)
    return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def say(text: str) -> None:
    """For people. Where nobody reads (a full pipe, a held terminal) it is lost: a warden that waits watches nobody."""
    with suppress(OSError):
        if sys.stderr and select.select([], [sys.stderr], [], 0)[1]:
            print(f"queenright warden: {text}", file=sys.stderr, flush=True)


class Generation:
    """One leader and what came of it. `state`: running, sweeping (the leader is a zombie, kept so that its pid
    cannot be used again), gone, or unkillable (still being swept)."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.gen, self.group, self.lock = (str.__str__(message[name]) for name in ("gen", "group", "lock"))
        self.note, self.lock_name, self.state, self.killed = message["note"], "", "running", set[int]()
        self.pid = self.pidfd = self.ticks = self.code = self.status = self.passes = 0
        self.since_ns, self.exited = time.monotonic_ns(), 0.0


class Warden:
    """The warden of a slot. Making one takes the lock: raises OSError, BlockingIOError where another one holds it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.pid, ticks = settings, os.getpid(), stat_of(os.getpid())[3]
        lock_patiently(os.open("warden.lock", os.O_RDWR | os.O_CREAT, 0o600))
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.selector, self.generations = DefaultSelector(), dict[str, Generation]()
        self.notes: dict[str, Any] = {}
        self.timers: list[tuple[float, int, Any]] = []
        self.entered, self.heard = 0, 0.0
        self.facts: dict[str, Any] = dict(pid=self.pid, ticks=ticks, incarnation=0, crashes=0, last_keeper=None)
        self.link: Any = None
        self.seen: Any = None
        self.gateway = settings.get("gateway_fd", 0)
        self.keeper = self.keeper_fd = self.quitting = self.stop_asked = 0
        self.drop_link()
        # A pipe: it holds 65,536 signals. A socketpair drops the 279th, a SIGTERM among 300 SIGCHLDs of one sweep, say.
        self.signals, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *STOP_SIGNALS):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1)
                signal.signal(number, lambda *_: None)
        # Of all signals that is 0.3 ms, which a child would be without: nobody changes them after this.
        self.not_default = [*filter(signal.getsignal, BLOCKABLE)]  # the default, SIG_DFL, is 0
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whoever started us may have blocked some
        self.selector.register(self.signals, EVENT_READ, self.on_signals)
        # The control socket lives here so that no client is refused while a keeper is replaced. Whoever made an old
        # one is dead, for warden.lock is ours.
        with suppress(FileNotFoundError):
            os.unlink("control.sock")
        self.control = socket.socket(socket.AF_UNIX)
        self.control.bind("control.sock")
        os.chmod("control.sock", 0o600)  # the umask leaves it an x, which means nothing
        self.control.listen(1024)

    def fork(self, argv: Any, env: Any, log: str, fds: dict[int, int], cwd: str, on_death: Any) -> tuple[int, int, int]:
        """(pid, pidfd, start ticks) of a new child. What fails before its exec is said in its log; it exits 127."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKABLE)
        try:
            with open(log, "ab", buffering=0) as output, open("/dev/null", "rb") as null:
                pid = os.fork()
                if pid == 0:
                    try:
                        self.become(argv, env, {0: null.fileno(), 1: output.fileno(), 2: output.fileno()} | fds, cwd)
                    except BaseException as error:  # noqa: BLE001 - whatever it is, it is said
                        output.write(f"cannot start {argv[0]}: {error}\n".encode(errors="replace"))
                    finally:
                        os._exit(127)  # also if that cannot be written: this must not go on as a second warden
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            ticks, pidfd = stat_of(pid)[3], os.pidfd_open(pid)
            self.selector.register(pidfd, EVENT_READ, on_death)
        except OSError:
            os.kill(pid, signal.SIGKILL)  # our own unreaped child: its pid cannot be another's
            os.waitpid(pid, 0)
            raise
        return pid, pidfd, ticks

    def become(self, argv: Any, env: Any, fds: dict[int, int], cwd: str) -> None:
        """The child's side of a fork, with every signal blocked. Returns only if the warden is dead already."""
        signal.set_wakeup_fd(-1)  # a signal before exec must not speak for the warden
        for number in self.not_default:
            signal.signal(number, signal.SIG_DFL)  # ignored signals would survive exec
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == self.pid:
            high = {k: fcntl.fcntl(v, fcntl.F_DUPFD_CLOEXEC, 100) for k, v in fds.items()}
            for target, source in high.items():
                os.dup2(source, target)
            os.chdir(cwd)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execve(argv[0], argv, env)

    # --- keeper -----------------------------------------------------------------------------------------------------

    def later(self, delay: float, action: Any) -> None:
        """Call it in so many seconds. `sched` would bring `threading`: 0.5 MiB of a warden, 0.4 ms of each fork (measured)."""
        self.entered += 1
        heapq.heappush(self.timers, (time.monotonic() + delay, self.entered, action))

    def start_keeper(self) -> None:
        """Fork a keeper with a new link, and give it `hello` and the table. Where that fails it is tried again in a
        second; with the slot's directory gone there is nothing to keep, and the warden leaves."""
        env = {key: value for key, value in os.environ.items() if key not in self.settings["scrub"]}
        env[MARKER] = f"keeper.{self.pid}.{self.facts['incarnation'] + 1}"
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                ours.setblocking(False)
                self.selector.register(ours, EVENT_READ, self.on_link)
                self.link = ours
                fds = {LINK_FD: theirs.fileno(), CONTROL_FD: self.control.fileno()}
                fds |= {CONSOLE_FD: 2} if self.settings.get("console") else {}
                fds |= {GATEWAY_FD: self.gateway} if self.gateway else {}
                os.makedirs("logs", 0o700, exist_ok=True)
                if waiting := self.settings.pop("standby", None):
                    born = self.wake(waiting[0], waiting[1], fds)
                else:
                    born = self.fork(self.settings["keeper"], env, "logs/keeper.log", fds, "/", self.on_keeper_death)
        except OSError as error:
            self.drop_link()
            self.later(1, self.start_keeper if os.path.exists(sys.argv[1]) else self.leave)
            return say(f"cannot start a keeper: {error}")
        self.keeper, self.keeper_fd, _ = born
        self.began = self.heard = time.monotonic()
        self.facts["incarnation"], self.why = self.facts["incarnation"] + 1, ""
        self.send(ev="hello", protocol=PROTOCOL, **self.facts)
        self.do_list({})
        self.allowed = len(self.outbox) + MAX_BACKLOG  # the table itself may be larger than what may stay unread
        return self.record(None)

    def wake(self, pid: int, line: int, fds: dict[int, int]) -> tuple[int, int, int]:
        """As `fork`, of a keeper that waits already: a child of this process from before it became the warden. By that line
        it gets its command line and its descriptors. Raises OSError where it is dead; whatever fails, its line is closed
        with that, which ends it."""
        with socket.socket(fileno=line) as to, open("logs/keeper.log", "ab", buffering=0) as output:
            fds |= {1: output.fileno(), 2: output.fileno()}
            socket.send_fds(to, [json.dumps([self.settings["keeper"], list(fds)]).encode()], list(fds.values()))
        pidfd = os.pidfd_open(pid)
        self.selector.register(pidfd, EVENT_READ, self.on_keeper_death)
        return pid, pidfd, 0

    def record(self, due: float | None) -> None:
        """`warden.json`, for readers: what `hello` says, and when on the monotonic clock the next keeper is due. A disk
        that does not take it changes nothing."""
        with suppress(OSError), open("warden.json.new", "wb", buffering=0) as file:
            file.write(json.dumps(self.facts | {"due": due}).encode())
            os.replace("warden.json.new", "warden.json")

    def watch_keeper(self, due: float) -> None:
        """Kill a keeper that hangs: silent for `keeper_silence`, and in two looks after that the same (`hangs`). That this
        comes late says that we did not run, so perhaps the keeper could not either: its silence begins anew."""
        now, gap, limit = time.monotonic(), self.settings["keeper_look"], self.settings["keeper_silence"]
        self.heard = now if now > due + gap else self.heard
        again, before, self.seen = max(now + gap, self.heard + limit), self.seen, None
        self.later(again - now, lambda: self.watch_keeper(again))
        if self.keeper and now >= self.heard + limit:
            self.seen = stat_of(self.keeper)
            if before and hangs(before, self.seen):
                self.why = "hung"
                self.drop_link()

    def drop_link(self) -> None:
        """With the link ends its keeper: the table is here, so the next one loses nothing."""
        if self.keeper:
            signal.pidfd_send_signal(self.keeper_fd, signal.SIGKILL)
        if self.link is not None:
            self.selector.unregister(self.link)
            self.link.close()
        self.link, self.inbox, self.outbox, self.allowed = None, b"", bytearray(), sys.maxsize

    def on_keeper_death(self, _: int) -> None:
        """Start the next one after its delay, or end the engine where a stop was under way or `quit` was accepted."""
        info = os.waitid(os.P_PID, self.keeper, os.WEXITED | os.WNOHANG)
        if info is None:
            return time.sleep(0.01)  # dead, but a debugger has its status first; its pidfd stays ready
        self.selector.unregister(self.keeper_fd)
        os.close(self.keeper_fd)
        age, delays = time.monotonic() - self.began, self.settings["keeper_delays"]
        died = 0 if self.why == "replaced" else 1 if age > self.settings["keeper_stable"] else self.facts["crashes"] + 1
        last = {"code": info.si_code, "status": info.si_status, "lived": round(age, 3), "why": self.why}
        self.keeper, self.facts = 0, self.facts | {"crashes": died, "last_keeper": last}
        self.drop_link()
        if self.quitting or self.stop_asked:
            self.leave()  # if it died during a stop, the warden ends the engine
        self.later(delay := delays[min(died, len(delays)) - 1] if died else 0, self.start_keeper)
        self.record(time.monotonic() + delay)
        how = self.why or f"code {info.si_code}, status {info.si_status}"
        return say(f"the keeper ended after {age:.1f} s ({how}); next in {delay:g} s")

    # --- link -------------------------------------------------------------------------------------------------------

    def send(self, **message: Any) -> None:
        """An event for the keeper. Without one it is dropped: nothing is lost by that, the next one gets the table."""
        self.put(**message)
        self.flush()

    def put(self, **message: Any) -> None:
        """The same, to go with what is sent next."""
        if self.link is not None:
            self.outbox += json.dumps(message, separators=(",", ":")).encode() + b"\n"

    def flush(self) -> None:
        """Write what the socket takes, and the rest when it takes more. That nobody reads any more is seen by reading."""
        if self.link is None:
            return None
        with suppress(OSError):
            del self.outbox[: self.link.send(self.outbox)]
        if len(self.outbox) > self.allowed:
            return self.drop_link()  # it does not read
        self.selector.modify(self.link, EVENT_READ | EVENT_WRITE if self.outbox else EVENT_READ, self.on_link)
        return None

    def on_link(self, mask: int) -> None:
        """Take what the keeper wrote, and obey each whole line. A command that fails is answered with `error`."""
        self.flush()
        if not mask & EVENT_READ:
            return
        data, given, *_ = look(receive, self.link, (b"", ()))
        for fd in given:  # the gateway's listener: kept, so that no client is refused while a keeper is replaced
            # Not for those whom we start. recv_fds takes flags and drops them (Python 3.11): no MSG_CMSG_CLOEXEC.
            os.set_inheritable(fd, False)
            os.close(self.gateway) if self.gateway else None
            self.gateway = fd
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        if not data or len(self.inbox) > MAX_LINE:  # EOF is not death: end it, and its pidfd starts the next one
            self.drop_link()
            return
        for line in lines:
            message: dict[str, Any] = {}
            try:
                message |= json.loads(line)
                getattr(self, f"do_{message['op']}")(message)
            except Exception as error:  # noqa: BLE001 - a keeper's mistake must not take the engine down
                why = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
                self.send(ev="error", id=message.get("id"), errno=getattr(error, "errno", None), why=why[:500])

    def do_list(self, message: dict[str, Any]) -> None:
        """`list`: every generation, the notes of the slot, and the strays."""
        for generation in self.generations.values():
            self.send(ev="row", **{name: getattr(generation, name) for name in ROW})
        strays = list[tuple[int, int]]()
        with suppress(OSError):  # a keeper that waits for its table is worse off than one that hears of no stray
            known = {pid for generation in self.generations.values() for pid, _ in self.members(generation, [])}
            strays += [found for found in alive_below(self.adopted()) if found[0] not in known]
        notes = {key: value for key, value in self.notes.items() if value is not None}
        self.send(ev="listed", id=message.get("id"), notes=notes, strays=strays)

    def do_note(self, message: dict[str, Any]) -> None:
        """`note`: remember a value that is never looked into."""
        if len(json.dumps(message["value"])) > MAX_NOTE:
            raise ValueError("a note is at most 512 KiB")
        place = vars(self.generations[message["gen"]]) if "gen" in message else self.notes
        place["note" if "gen" in message else message["key"]] = message["value"]

    def do_spawn(self, message: dict[str, Any]) -> None:
        """`spawn`: make the generation's lock, and fork its leader with it. What fails leaves nothing behind."""
        new = Generation(message)
        for other in self.generations.values():
            if other.gen == new.gen or (other.group == new.group and other.state != "gone"):
                raise FileExistsError(f"group {other.group} still has generation {other.gen}")
        env = message["env"] | {MARKER: new.gen, f"{MARKER}_FD": str(LOCK_FD)}
        with open(new.lock, "xb") as lock:  # closed, not unlocked: the open file description lives on in the children
            try:
                lock_patiently(lock.fileno())
                new.lock_name = os.readlink(f"/proc/self/fd/{lock.fileno()}")
                argv, log, fds, cwd = message["argv"], message["log"], {LOCK_FD: lock.fileno()}, message.get("cwd", "/")
                new.pid, new.pidfd, new.ticks = self.fork(argv, env, log, fds, cwd, lambda _: self.on_exit(new))
            except Exception:
                os.unlink(new.lock)
                raise
        self.generations[new.gen] = new
        self.send(ev="spawned", id=message.get("id"), gen=new.gen, pid=new.pid, ticks=new.ticks)

    def do_kill(self, message: dict[str, Any]) -> None:
        """`kill`: the leader, or with `scope` `all` first what is below it and belongs to it."""
        target = self.generations[message["gen"]]
        if target.state == "running":
            if message.get("scope") == "all":
                for pid, ticks in self.members(target, children_of(target.pid)):
                    kill_exact(pid, ticks, message["sig"])
            signal.pidfd_send_signal(target.pidfd, message["sig"])
            if message["sig"] == signal.SIGKILL:
                self.later(self.settings["sweep_limit"], lambda: self.doubt(target, "running", [target.pid]))

    def doubt(self, generation: Generation, state: str, pids: list[int]) -> None:
        """Killed, and still there at its limit: call it unkillable until its exit or end comes after all."""
        if generation.state == state:
            generation.state = "unkillable"
            self.send(ev="unkillable", gen=generation.gen, pids=pids)

    def do_forget(self, message: dict[str, Any]) -> None:
        """`forget`: only what is `gone`."""
        if self.generations[message["gen"]].state == "gone":
            del self.generations[message["gen"]]

    def do_beat(self, _: dict[str, Any]) -> None:
        """`beat`: the keeper's loop turns."""
        self.heard = time.monotonic()

    def do_notify(self, message: dict[str, Any]) -> None:
        """`notify`: for the service manager, of whose unit this is the main process (sd_notify(3))."""
        if address := self.settings.get("notify"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
                manager.setblocking(False)
                manager.sendto(message["line"].encode(), address)

    def do_replace(self, message: dict[str, Any]) -> None:
        """`replace`: the keeper is about to end; the next one, of this `argv` if there is one, comes at once."""
        argv = [str.__str__(word) for word in message.get("argv") or self.settings["keeper"]]
        os.stat(argv[0])  # an upgrade that is not there replaces nobody
        self.settings["keeper"], self.why = argv, "replaced"
        self.send(ev="done", id=message.get("id"))

    def do_quit(self, message: dict[str, Any]) -> None:
        """`quit`: the end of the slot, with the keeper's own or `sweep_limit` later. Refused while a generation lives;
        one that is unkillable hinders nobody."""
        if left := [g.gen for g in self.generations.values() if g.state in ("running", "sweeping")]:
            raise OSError(f"still alive: {' '.join(left)}")
        self.quitting = True
        self.later(self.settings["sweep_limit"], self.leave)
        self.send(ev="done", id=message.get("id"))

    # --- death ------------------------------------------------------------------------------------------------------

    def on_signals(self, _: int) -> None:
        """A stop signal is told to the keeper and bounds what it may still take; a death has all who are swept looked at."""
        numbers = set(os.read(self.signals, 65536))
        for number in numbers & STOP_SIGNALS:
            self.send(ev="signal", sig=number)
            limit = self.settings["sweep_limit" if self.stop_asked else "stop_limit"]  # the second one means now
            self.stop_asked = True
            self.later(limit if self.keeper else 0, self.leave)
        if signal.SIGCHLD in numbers:
            self.adopted()
            for generation in list(self.generations.values()):
                self.sweep(generation)

    def on_exit(self, generation: Generation) -> None:
        """A leader is dead: say so and sweep. It is not reaped (WNOWAIT), so its pid stays its own."""
        info = os.waitid(os.P_PID, generation.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if info is None:
            return time.sleep(0.01)  # as in on_keeper_death
        self.selector.unregister(generation.pidfd)
        os.close(generation.pidfd)
        generation.state, generation.code, generation.status = "sweeping", info.si_code, info.si_status
        generation.exited = time.monotonic()
        self.put(ev="exit", gen=generation.gen, code=info.si_code, status=info.si_status)
        try:
            self.sweep(generation)  # mostly that is its end already, and the keeper, woken once, restarts it sooner
        finally:
            self.flush()
        return None

    def adopted(self) -> list[int]:
        """Our children that we did not fork: orphans from below, which come to the subreaper. The dead are reaped, each by
        its pid: waitpid(-1) would eat a leader's status, and P_ALL stands on the first kept zombie."""
        ours = {self.keeper, *(g.pid for g in self.generations.values() if g.state != "gone")}
        found = [pid for pid in children_of(self.pid) if pid not in ours]
        for pid in found:
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | WALL)
        return found

    def members(self, generation: Generation, known: list[int]) -> list[tuple[int, int]]:
        """What lives of a generation besides its leader: `known` and what is below the processes that the warden adopted
        (told by session, the lock's descriptor, or marker), with all below. What cannot be told yet has start ticks 0,
        which are nobody's: it is not signalled, and the walk is not empty."""
        adopted, unsure = self.adopted(), list[tuple[int, int]]()
        for pid, _ in alive_below(adopted):
            state, _, session, *_ = stat_of(pid)
            ours = session == generation.pid or has_open(pid, generation.lock_name)
            if state == b"D" and not ours:  # whoever reads the environment of a stuck process may get stuck with it
                unsure.append((pid, 0))
            elif ours or mark_of(pid) == generation.gen:
                known.append(pid)
        # Who died meanwhile had perhaps forked: that child came to us after the list was read.
        unsure += [(pid, 0) for pid in adopted if stat_of(pid)[0] in (b"", b"Z")]
        return [*{*alive_below(known), *unsure}]

    def lock_free(self, generation: Generation) -> bool:
        """Whether nobody holds the generation's lock; a file that is gone is held by nobody who could be found by it."""
        with suppress(BlockingIOError):
            with suppress(FileNotFoundError), open(generation.lock, "rb") as file:  # also of a read-only disk
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def sweep(self, generation: Generation, only: int = 0) -> None:
        """Kill what the leader left behind; give its pid back only after two empty walks with the lock free. `only`:
        unless there was another pass since this one was planned."""
        if not generation.exited or generation.state == "gone" or only not in (0, generation.passes):
            return
        generation.passes = passes = generation.passes + 1
        self.later(0.001 * min(2 * passes, 50), lambda: self.sweep(generation, passes))
        found = self.members(generation, []) or self.members(generation, [])
        for pid, ticks in found:
            kill_exact(pid, ticks, signal.SIGKILL)
        generation.killed |= {pid for pid, ticks in found if ticks}
        spent = time.monotonic() - generation.exited
        if not found and self.lock_free(generation):
            os.waitpid(generation.pid, 0)
            generation.state = "gone"
            with suppress(OSError):
                os.unlink(generation.lock)
            self.send(ev="gone", gen=generation.gen, killed=len(generation.killed), ms=round(spent * 1000, 2))
        elif spent > self.settings["sweep_limit"]:
            self.doubt(generation, "sweeping", [pid for pid, _ in found])

    # --- the end ----------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Leave nothing: whoever still lives is killed, strays too; the socket goes, and with the process the lock."""
        if not self.quitting:
            say("ending the engine without the keeper")
        empty, deadline = False, time.monotonic() + self.settings["sweep_limit"]
        while not empty and time.monotonic() < deadline:
            try:
                for pid, ticks in alive_below(children_of(self.pid)):
                    kill_exact(pid, ticks, signal.SIGKILL)
                while os.waitpid(-1, os.WNOHANG | WALL)[0]:  # nobody asks for how they ended any more
                    time.sleep(0)
                time.sleep(0.001)
            except OSError as error:
                empty = isinstance(error, ChildProcessError)  # no child at all: orphans come to us, so nothing is below
        for path in ["control.sock", "warden.json", *(g.lock for g in self.generations.values() if empty)]:
            with suppress(OSError):
                os.unlink(path)
        os._exit(0 if empty else 1)

    def run(self) -> None:
        """Never returns: `leave` ends the process."""
        self.later(0, self.start_keeper)
        self.watch_keeper(time.monotonic())
        while True:
            try:
                # `watch_keeper` is always among the timers. They come last: one that fails must not keep us from the link.
                for key, mask in self.selector.select(max(0.0, self.timers[0][0] - time.monotonic())):
                    if self.selector.get_map().get(key.fd) is key:  # else an earlier callback dropped or reused it
                        key.data(mask)
                while self.timers[0][0] <= time.monotonic():
                    heapq.heappop(self.timers)[2]()
            except Exception as error:  # noqa: BLE001 - no descriptors, no memory, a bug: no reason to end an engine
                say(f"trying again: {error!r}")
                time.sleep(0.05)


def main() -> None:
    """`warden.py SLOT SETTINGS`. Exit status: 0 nothing is left, 1 no start or no clean end, 3 the slot has one."""
    settings = json.loads(sys.argv[2])
    verdict = settings.get("verdict_fd", 2)  # the detaching parent waits for one word on it
    os.umask(0o077)
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the listing's own
            os.set_inheritable(fd, fd < 3)  # what we were given is not for keepers and engines
    try:
        os.chdir(sys.argv[1])  # and stay: a unix socket's path ends at 108 bytes, a slot's may be longer
        warden = Warden(settings)
    except OSError as error:
        held = isinstance(error, BlockingIOError)
        os.write(verdict, b"held: another warden runs in this slot\n" if held else f"{error}\n".encode())
        os._exit(3 if held else 1)
    if verdict != 2:
        os.write(verdict, b"ok")
        os.close(verdict)
    if (fd := settings.get("release_fd")) is not None:
        os.close(fd)  # build.lock, carried over exec by `queenright run`: the control socket accepts now
    warden.run()


if __name__ == "__main__":
    main()
