"""The warden: forks, waits, signals, reports and remembers for one slot. No policy.

Started by absolute path as `python -I -S warden.py SLOT SETTINGS`; standard library only, single-threaded, imports
nothing of ours. A fork here is a fork of a process with one thread, a death signal belongs to a thread that never
ends, and there is one reaper. Its protocol is in docs/reference/warden-protocol.md; why there are two processes is
ADR 1. Linux only: pidfds, child subreaper, parent-death signals.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

PROTOCOL = 1
MARKER = "QUEENRIGHT_GENERATION"
LINK_FD, CONTROL_FD, CONSOLE_FD, LOCK_FD = 3, 4, 6, 3
MAX_LINE, MAX_BACKLOG, MAX_NOTE = 1 << 20, 4 << 20, 64 << 10
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
RESTORED = STOP_SIGNALS | {signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ}  # ignored signals would survive exec
BLOCKABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if LIBC.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def read_proc(path: str) -> bytes:
    """A file of /proc, or b"" where the process is gone or not ours to read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""


def stat_of(pid: int | str) -> tuple[bytes, int, int, int]:
    """(state, parent, session, start ticks) from proc_pid_stat(5); state b"" once the process is reaped."""
    fields = read_proc(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return (fields[0], int(fields[1]), int(fields[3]), int(fields[19])) if fields else (b"", 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """Children of every thread of `pid`: 0.02 ms, against 4-15 ms for a scan of /proc (measured)."""
    with suppress(OSError):
        if os.path.exists(f"/proc/{pid}/task/{pid}/children"):
            files = (f"/proc/{pid}/task/{task}/children" for task in os.listdir(f"/proc/{pid}/task"))
            return [int(child) for file in files for child in read_proc(file).split()]
        return [int(p) for p in os.listdir("/proc") if p.isdigit() and stat_of(p)[1] == pid]  # no PROC_CHILDREN
    return []


def alive_below(pids: list[int]) -> list[tuple[int, int]]:
    """(pid, start ticks) of these processes and all below them that live; a zombie counts as dead."""
    found, queue = [], list(pids)
    while queue:
        pid = queue.pop()
        state, _, _, ticks = stat_of(pid)
        queue += children_of(pid)
        if state not in (b"", b"Z"):
            found.append((pid, ticks))
    return found


def kill_exact(pid: int, ticks: int, number: int) -> None:
    """Signal a process that is not our child: through a pidfd, its start ticks compared (a pid alone proves nothing)."""
    with suppress(OSError), open(os.pidfd_open(pid), "rb", buffering=0) as pidfd:  # it may die between the looks
        if stat_of(pid)[3] == ticks:
            signal.pidfd_send_signal(pidfd.fileno(), number)


def lock_patiently(fd: int) -> None:
    """Somebody who only looks holds a shared lock for microseconds; whoever holds it for 0.2 s is a holder."""
    for pause in [0.01] * 20 + [0.0]:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not pause:
                raise
            time.sleep(pause)
    return None


def say(text: str) -> None:
    with suppress(OSError):  # nobody reads us; the work does not depend on it
        print(f"queenright warden: {text}", file=sys.stderr, flush=True)


class Generation:
    """One leader and what came of it. `state`: running, sweeping (the leader is a zombie, kept so that its pid
    cannot be used again), gone, or unkillable (still being swept)."""

    def __init__(self, message: dict[str, Any], pid: int, pidfd: int) -> None:
        self.gen, self.group, self.lock, self.note = (message[name] for name in ("gen", "group", "lock", "note"))
        self.pid, self.pidfd, self.ticks, self.since_ns = pid, pidfd, stat_of(pid)[3], time.monotonic_ns()
        self.state, self.code, self.status, self.exited = "running", 0, 0, 0.0
        self.passes = self.clean = self.killed = 0

    def row(self) -> dict[str, Any]:
        names = ("gen", "group", "pid", "ticks", "state", "code", "status", "since_ns", "note")
        return {"ev": "row"} | {name: getattr(self, name) for name in names}


class Warden:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.pid, self.ticks = settings, os.getpid(), stat_of(os.getpid())[3]
        self.lock = os.open("warden.lock", os.O_RDWR | os.O_CREAT, 0o600)
        lock_patiently(self.lock)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.selector = selectors.DefaultSelector()
        self.generations: dict[str, Generation] = {}
        self.leaders: dict[int, Generation] = {}
        self.notes: dict[str, Any] = {}
        self.strays: dict[int, int] = {}
        self.timers: list[tuple[float, int, Any]] = []
        self.timer_count = self.incarnation = self.crashes = self.keeper = self.keeper_fd = self.keeper_started = 0
        self.last_keeper: dict[str, int] | None = None
        self.link: socket.socket | None = None
        self.inbox = self.outbox = b""
        self.quitting = self.stop_asked = self.forced = False
        self.signals, self.wakeup = socket.socketpair()
        for end in (self.signals, self.wakeup):
            end.setblocking(False)
        signal.set_wakeup_fd(self.wakeup.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *STOP_SIGNALS):
            signal.signal(number, lambda *_: None)
        self.selector.register(self.signals, selectors.EVENT_READ, self.on_signals)
        commands = (self.on_list, self.on_note, self.on_spawn, self.on_kill, self.on_forget, self.on_quit)
        self.commands = {command.__name__[3:]: command for command in commands}
        # The control socket lives here so that no client is refused while a keeper is replaced. Whoever made an old
        # one is dead, for warden.lock is ours.
        with suppress(FileNotFoundError):
            os.unlink("control.sock")
        self.control = socket.socket(socket.AF_UNIX)
        self.control.bind("control.sock")
        self.control.listen(1024)

    def call_in(self, seconds: float, function: Any) -> None:
        self.timer_count += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.timer_count, function))

    def fork(self, argv: list[str], env: dict[str, str], fds: dict[int, int], cwd: str) -> tuple[int, int]:
        """(pid, pidfd) of a new child. What fails before its exec is said on its stderr, and it exits 127."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKABLE)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    signal.set_wakeup_fd(-1)  # a signal before exec must not speak for the warden
                    for number in RESTORED:
                        signal.signal(number, signal.SIG_DFL)
                    os.setsid()
                    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                    if os.getppid() == self.pid:
                        high = {k: fcntl.fcntl(v, fcntl.F_DUPFD_CLOEXEC, 100) for k, v in fds.items()}
                        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
                        for target, source in high.items():
                            os.dup2(source, target, inheritable=True)
                        os.chdir(cwd)
                        signal.pthread_sigmask(signal.SIG_SETMASK, ())
                        os.execve(argv[0], argv, env)
                except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a warden
                    os.write(2, f"cannot start {argv[0]}: {error}\n".encode())
                os._exit(127)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            return pid, os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)  # our own unreaped child: its pid cannot be another's
            os.waitpid(pid, 0)
            raise

    # --- keeper -----------------------------------------------------------------------------------------------------

    def start_keeper(self) -> None:
        if self.keeper or self.forced:
            return
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        env = {key: value for key, value in os.environ.items() if key not in self.settings["scrub"]}
        env[MARKER] = f"keeper.{self.pid}.{self.incarnation + 1}"
        opened = [theirs.fileno()]
        try:
            opened.append(os.open("logs/keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            fds = {1: opened[1], 2: opened[1], LINK_FD: opened[0], CONTROL_FD: self.control.fileno()}
            fds |= {CONSOLE_FD: 2} if self.settings.get("console") else {}
            self.keeper, self.keeper_fd = self.fork(self.settings["keeper"], env, fds, "/")
        except OSError as error:
            say(f"cannot start a keeper: {error}")
            ours.close()
            self.call_in(1, self.start_keeper)
            return
        finally:
            theirs.detach()
            for fd in opened:
                os.close(fd)
        self.incarnation += 1
        self.link, self.inbox, self.outbox, self.keeper_started = ours, b"", b"", time.monotonic_ns()
        self.selector.register(self.keeper_fd, selectors.EVENT_READ, self.on_keeper_death)
        self.selector.register(ours, selectors.EVENT_READ, self.on_link)
        who = {"pid": self.pid, "ticks": self.ticks, "incarnation": self.incarnation}
        self.send(ev="hello", protocol=PROTOCOL, **who, crashes=self.crashes, last_keeper=self.last_keeper)
        self.on_list({})

    def end_keeper(self) -> None:
        if self.keeper:
            signal.pidfd_send_signal(self.keeper_fd, signal.SIGKILL)

    def drop_link(self) -> None:
        if self.link is not None:
            self.selector.unregister(self.link)
            self.link.close()
            self.link = None

    def on_keeper_death(self, _: int) -> None:
        info: Any = os.waitid(os.P_PID, self.keeper, os.WEXITED)  # its pidfd says that it is dead
        self.selector.unregister(self.keeper_fd)
        os.close(self.keeper_fd)
        self.drop_link()
        self.keeper, self.last_keeper = 0, {"code": info.si_code, "status": info.si_status}
        if self.quitting:
            self.leave(0)
        if self.stop_asked:
            self.force()  # it died during a stop: the warden ends the engine
            return
        lived, delays = (time.monotonic_ns() - self.keeper_started) / 1e9, self.settings["keeper_delays"]
        self.crashes = 1 if lived > self.settings["keeper_stable"] else self.crashes + 1
        delay = delays[min(self.crashes, len(delays)) - 1]
        say(f"the keeper ended (code {info.si_code}, status {info.si_status}) after {lived:.1f} s; next in {delay:g} s")
        self.call_in(delay, self.start_keeper)

    # --- link -------------------------------------------------------------------------------------------------------

    def send(self, **message: Any) -> None:
        if self.link is None:
            return
        waiting = bool(self.outbox)
        self.outbox += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(self.outbox) > MAX_BACKLOG:
            self.outbox = b""
            self.end_keeper()  # it does not read; the table is here, so the next one loses nothing
        elif not waiting and not self.flush():
            self.selector.modify(self.link, selectors.EVENT_READ | selectors.EVENT_WRITE, self.on_link)

    def flush(self) -> bool:
        """Write what the socket takes; True when nothing is left to write."""
        try:
            self.outbox = self.outbox[self.link.send(self.outbox) :] if self.link else b""
        except BlockingIOError:
            return False
        except OSError:
            self.outbox = b""  # the keeper's pidfd tells the rest
        return self.outbox == b""

    def on_link(self, mask: int) -> None:
        if self.link is None:
            return
        if mask & selectors.EVENT_WRITE and self.flush():
            self.selector.modify(self.link, selectors.EVENT_READ, self.on_link)
        if not mask & selectors.EVENT_READ:
            return
        data = b""
        with suppress(ConnectionError):
            data = self.link.recv(65536)
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        if not data or len(self.inbox) > MAX_LINE:  # EOF is not death: end it, and its pidfd starts the next one
            self.drop_link()
            self.end_keeper()
            return
        for line in lines:
            message: dict[str, Any] = {}
            try:
                message |= json.loads(line)
                self.commands[message["op"]](message)
            except Exception as error:  # noqa: BLE001 - a keeper's mistake must not take the engine down
                self.send(ev="error", id=message.get("id"), why=f"{type(error).__name__}: {error}"[:500])

    def on_list(self, message: dict[str, Any]) -> None:
        for generation in self.generations.values():
            self.send(**generation.row())
        self.send(ev="listed", id=message.get("id"), notes=self.notes, strays=list(self.strays.items()))

    def on_note(self, message: dict[str, Any]) -> None:
        if len(json.dumps(message["value"])) > MAX_NOTE:
            raise ValueError("a note is at most 64 KiB")
        if "gen" in message:
            self.generations[message["gen"]].note = message["value"]
        else:
            self.notes[message["key"]] = message["value"]

    def on_spawn(self, message: dict[str, Any]) -> None:
        name, opened = message["gen"], list[int]()
        try:
            for other in self.generations.values():
                if other.gen == name or (other.group == message["group"] and other.state != "gone"):
                    raise FileExistsError(0, f"group {other.group} still has generation {other.gen}")
            opened.append(os.open(message["lock"], os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            lock_patiently(opened[0])
            opened.append(os.open(message["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            env = message["env"] | {MARKER: name, f"{MARKER}_FD": str(LOCK_FD)}
            fds = {1: opened[1], 2: opened[1], LOCK_FD: opened[0]}
            pid, pidfd = self.fork(message["argv"], env, fds, message.get("cwd", "/"))
        except OSError as error:
            if opened:
                os.unlink(message["lock"])
            self.send(ev="refused", id=message["id"], errno=error.errno, why=str(error))
            return
        finally:
            for fd in opened:
                os.close(fd)  # closed, not unlocked: the open file description lives on in the children
        self.generations[name] = self.leaders[pid] = generation = Generation(message, pid, pidfd)
        self.selector.register(pidfd, selectors.EVENT_READ, lambda _: self.on_exit(generation))
        self.send(ev="spawned", id=message["id"], gen=name, pid=pid, ticks=generation.ticks)

    def on_kill(self, message: dict[str, Any]) -> None:
        generation = self.generations[message["gen"]]
        if generation.state == "running":
            if message.get("scope") == "all":
                for pid, ticks in self.members(generation, children_of(generation.pid)):
                    kill_exact(pid, ticks, message["sig"])
            signal.pidfd_send_signal(generation.pidfd, message["sig"])

    def on_forget(self, message: dict[str, Any]) -> None:
        if self.generations[message["gen"]].state == "gone":
            del self.generations[message["gen"]]

    def on_quit(self, message: dict[str, Any]) -> None:
        if left := [g.gen for g in self.generations.values() if g.state in ("running", "sweeping")]:
            raise OSError(f"still alive: {' '.join(left)}")
        self.quitting = True
        self.call_in(self.settings["sweep_limit"], self.end_keeper)
        self.send(ev="done", id=message["id"])

    # --- death ------------------------------------------------------------------------------------------------------

    def on_signals(self, _: int) -> None:
        numbers = set(self.signals.recv(4096))
        for number in numbers & STOP_SIGNALS:
            self.send(ev="signal", sig=number)
            limit = self.settings["sweep_limit" if self.stop_asked else "stop_limit"]  # the second one means now
            self.stop_asked = True
            self.call_in(limit if self.keeper else 0, self.force)
        if signal.SIGCHLD in numbers:
            self.reap_adopted()

    def on_exit(self, generation: Generation) -> None:
        info: Any = os.waitid(os.P_PID, generation.pid, os.WEXITED | os.WNOWAIT)  # its pidfd says that it is dead
        self.selector.unregister(generation.pidfd)
        os.close(generation.pidfd)
        generation.state, generation.code, generation.status = "sweeping", info.si_code, info.si_status
        generation.exited = time.monotonic()
        self.send(ev="exit", gen=generation.gen, code=info.si_code, status=info.si_status)
        self.sweep(generation)

    def members(self, generation: Generation, known: list[int]) -> list[tuple[int, int]]:
        """What lives of a generation besides its leader: `known` and what the warden adopted of it (told by marker,
        session, or the lock's descriptor), with all below. An adopted process that belongs to nobody is a stray."""
        for pid in children_of(self.pid):
            state, _, session, ticks = stat_of(pid)
            if pid == self.keeper or pid in self.leaders or state in (b"", b"Z"):
                continue
            environ = b"\0" + read_proc(f"/proc/{pid}/environ")
            mark = environ.partition(f"\0{MARKER}=".encode())[2].partition(b"\0")[0].decode(errors="replace")
            if mark == generation.gen or session == generation.pid or self.holds_lock(pid, generation):
                known.append(pid)
            elif mark not in self.generations:
                self.strays[pid] = ticks
        return alive_below(known)

    def holds_lock(self, pid: int, generation: Generation) -> bool:
        with suppress(OSError):
            lock = os.stat(generation.lock)
            return any(os.path.samestat(lock, os.stat(entry)) for entry in os.scandir(f"/proc/{pid}/fd"))
        return False

    def lock_free(self, generation: Generation) -> bool:
        with suppress(FileNotFoundError), open(generation.lock, "rb+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
        return True

    def sweep(self, generation: Generation) -> None:
        """Kill what the leader left behind; give its pid back only after two empty walks with the lock free."""
        if generation.state not in ("sweeping", "unkillable"):
            return
        generation.passes += 1
        found = self.members(generation, [])
        for pid, ticks in found:
            kill_exact(pid, ticks, signal.SIGKILL)
        generation.killed += len(found)
        generation.clean = 0 if found else generation.clean + 1
        spent = time.monotonic() - generation.exited
        if generation.clean >= 2 and self.lock_free(generation):
            os.waitpid(generation.pid, 0)
            del self.leaders[generation.pid]
            generation.state = "gone"
            with suppress(OSError):
                os.unlink(generation.lock)
            self.send(ev="gone", gen=generation.gen, killed=generation.killed, ms=round(spent * 1000, 2))
            return
        if generation.state == "sweeping" and spent > self.settings["sweep_limit"]:
            generation.state = "unkillable"
            self.send(ev="unkillable", gen=generation.gen, pids=[pid for pid, _ in found])
        passes, pause = generation.passes, 0.0 if generation.clean == 1 else min(0.001 * 2**generation.passes, 0.05)
        self.call_in(pause, lambda: self.sweep(generation) if passes == generation.passes else None)

    def reap_adopted(self) -> None:
        """Each by its pid: waitpid(-1) would eat a leader's status, and P_ALL stands on the first kept zombie."""
        for pid in children_of(self.pid):
            info = None
            if pid != self.keeper and pid not in self.leaders:
                with suppress(ChildProcessError):
                    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
            if info is not None:
                self.strays.pop(pid, None)
                self.send(ev="reaped", pid=pid, code=info.si_code, status=info.si_status)
        for generation in list(self.generations.values()):
            self.sweep(generation)

    # --- the end ----------------------------------------------------------------------------------------------------

    def force(self) -> None:
        """The keeper did not end the engine in its time: kill everything, then leave."""
        if not self.forced:
            self.forced = True
            say("ending the engine without the keeper")
            self.call_in(self.settings["sweep_limit"], lambda: self.leave(1))
        self.end_keeper()
        for generation in self.generations.values():
            if generation.state == "running":
                signal.pidfd_send_signal(generation.pidfd, signal.SIGKILL)
        if not self.keeper and all(g.state == "gone" for g in self.generations.values()):
            self.leave(0)
        self.call_in(0.01, self.force)

    def leave(self, code: int) -> None:
        """Leave nothing: strays first, then the socket; the lock goes with the process."""
        deadline = time.monotonic() + self.settings["sweep_limit"]
        while (left := alive_below(children_of(self.pid))) and time.monotonic() < deadline:
            for pid, ticks in left:
                kill_exact(pid, ticks, signal.SIGKILL)
            self.reap_adopted()
            self.selector.select(0.001)
        with suppress(OSError):
            os.unlink("control.sock")
        os._exit(code)

    def run(self) -> None:
        self.start_keeper()
        while True:
            timeout = max(0.0, self.timers[0][0] - time.monotonic()) if self.timers else None
            for key, mask in self.selector.select(timeout):
                current = self.selector.get_map().get(key.fd)  # an earlier callback may have dropped or reused it
                if current is not None and current.data is key.data:
                    key.data(mask)
            while self.timers and self.timers[0][0] <= time.monotonic():
                heapq.heappop(self.timers)[2]()


def main() -> None:
    settings = json.loads(sys.argv[2])
    verdict = settings.get("verdict_fd", 2)  # the detaching parent waits for one word on it
    os.umask(0o077)
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
