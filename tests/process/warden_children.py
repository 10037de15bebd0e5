"""Programs that a warden is given to start, some of them badly behaved."""

from __future__ import annotations

import sys

PYTHON = [sys.executable, "-I", "-S", "-u", "-c"]
SLEEP = ["/bin/sleep", "1000"]

DAEMONIZES = """
import os, signal, sys
how = sys.argv[1:]
child = os.fork()
if child == 0:
    if "stays" not in how:
        os.setsid()
    if os.fork():
        os._exit(0)
    if "closes" in how:
        os.closerange(3, 1000)
    if "bare" in how:
        code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code], {})
    if "erases" in how:
        import ctypes
        fields = open("/proc/self/stat").read().rpartition(")")[2].split()
        start, end = int(fields[47]), int(fields[48])
        ctypes.memset(start, 0, end - start)
    print(os.getpid(), flush=True)
    signal.pause()
os.waitpid(child, 0)
if "leaves" not in how:
    signal.pause()
while not os.fstat(1).st_size:
    os.sched_yield()
"""
"""A leader with a daemon below it: in another session unless it `stays`, with its environment gone if it is `bare` (by
exec) or `erases` it (in place), without the lock if it `closes` its descriptors. The leader may leave once it has spoken."""

FORKS_ON = """
import os, signal
if os.fork() == 0:
    os.setsid()
    os.closerange(3, 1000)
    print("on", flush=True)
    while True:
        if os.fork():
            os._exit(0)
signal.pause()
"""

FIRST_THREAD_ENDS = """
import ctypes, os, signal, threading
if os.fork() == 0:
    os.setsid()
    threading.Thread(target=signal.sigwait, args=({signal.SIGUSR1},)).start()
    print(os.getpid(), flush=True)
    ctypes.CDLL(None).pthread_exit(None)
signal.pause()
"""

LENDS_ITS_LOCK = """
import signal, socket, sys
with socket.socket(socket.AF_UNIX) as there:
    there.connect(sys.argv[1])
    socket.send_fds(there, [b"x"], [3])
signal.pause()
"""

PASSES_IT_ON = """
import os, signal  # passes_it_on
if os.fork() == 0:
    os.setsid()
    os.closerange(3, 1000)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    print("on", flush=True)
    while True:
        signal.sigwait({signal.SIGUSR1})
        if os.fork():
            os._exit(0)
os.closerange(3, 1000)
signal.pause()
"""
"""Below the leader, in a session of its own and without the lock: at each SIGUSR1 it forks and dies, and the child is as
it was."""

BELOW_A_STRAY = """
import os, signal, sys
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        print(os.getpid(), flush=True)
        signal.pause()
    os.closerange(3, 1000)
    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code], {})
signal.pause()
"""
"""Below the leader one that hides all it had, and below that one of the generation as it was started."""
