"""A container engine: a daemon that runs payloads in sessions of its own, and the command line that talks to it.

    python container_engine.py daemon SOCKET STATE PAYLOAD      runs until its standard input ends, and takes all with it
    python container_engine.py cli SOCKET ARGUMENT...           run | ps | rm | stop | kill | inspect | pull

Like docker, and unlike a child: a payload inherits no descriptor, variable, session or parent from whoever said `run`; the
`run` passes signals on, prints what the payload prints and ends with its exit status; killed, it leaves the payload
running. Every image is PAYLOAD (tests/fakes/contained.py), with the words after the image. STATE has a line for each thing
that was done.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import secrets
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

FLAGS = {"--rm", "--init", "-q"}
RM_GRACE_S = 10.0
"""Between the two signals of `rm -f` (podman-rm(1), `--time`)."""


# --- the daemon -------------------------------------------------------------------------------------------------------


class Container:
    def __init__(self, given: dict[str, Any]) -> None:
        self.id = secrets.token_hex(32)
        self.name, self.labels, self.remove = given["name"] or self.id[:12], given["labels"], given["rm"]
        self.process: subprocess.Popen[bytes] | None = None
        self.status: int | None = None

    def kill(self, number: int) -> None:
        """SIGKILL takes all of a pid namespace; here, of a session's process group."""
        if self.process is None or self.status is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number) if number == signal.SIGKILL else os.kill(self.process.pid, number)


class Daemon(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: str, state: str, payload: str) -> None:
        super().__init__(path, Handler)
        self.payload, self.containers, self.lock = payload, dict[str, Container](), threading.RLock()
        self.state = os.open(state, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: str, one: Container) -> None:
        pid = one.process.pid if one.process else 0
        os.write(self.state, f"{what} {one.name} {one.id} {pid}\n".encode())

    def found(self, word: str) -> list[Container]:
        with self.lock:
            return [one for one in self.containers.values() if one.name == word or one.id.startswith(word)]


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


class Handler(socketserver.StreamRequestHandler):
    server: Daemon

    def say(self, **what: Any) -> None:
        self.wfile.write(json.dumps(what).encode() + b"\n")

    def handle(self) -> None:
        try:
            given = json.loads(self.rfile.readline())
            getattr(self, given["op"])(given)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def run(self, given: dict[str, Any]) -> None:
        daemon = self.server
        one = Container(given)
        with daemon.lock:
            if any(other.name == one.name for other in daemon.containers.values()):
                self.say(error=f"the container name {one.name!r} is already in use", exit=125)
                return
            if given["cidfile"]:
                if Path(given["cidfile"]).exists():
                    self.say(error=f"container ID file found: {given['cidfile']}", exit=125)
                    return
                Path(given["cidfile"]).write_text(one.id)
            daemon.containers[one.id] = one
        reading, writing = os.pipe()
        one.process = subprocess.Popen(
            [sys.executable, "-I", "-S", daemon.payload, *given["words"]],
            env={"PATH": "/usr/bin:/bin", **given["env"]},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
        os.close(writing)
        daemon.note("run", one)
        threading.Thread(target=self.print_on, args=(reading,), daemon=True).start()
        threading.Thread(target=self.pass_on, args=(one,), daemon=True).start()
        status = one.process.wait()
        one.kill(signal.SIGKILL)
        one.status = status if status >= 0 else 128 - status
        if one.remove:
            with daemon.lock:
                daemon.containers.pop(one.id, None)
        daemon.note("ended", one)
        self.say(exit=one.status)

    def print_on(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as output:
            while data := output.read(4096):
                try:
                    self.say(out=data.decode("utf-8", "replace"))
                except (OSError, ValueError):  # nobody listens any more, which is nothing to a container
                    continue

    def pass_on(self, one: Container) -> None:
        for line in self.rfile:
            one.kill(json.loads(line)["signal"])

    def ps(self, given: dict[str, Any]) -> None:
        with self.server.lock:
            found = [one for one in self.server.containers.values() if fits(one, given["filters"])]
        shown = given["format"] or "{{.ID}}"
        lines = [
            shown.replace("{{.ID}}", one.id).replace("{{.Names}}", one.name)
            for one in found
            if given["all"] or one.status is None
        ]
        self.say(out="".join(f"{line}\n" for line in lines), exit=0)

    def rm(self, given: dict[str, Any]) -> None:
        for one in self.each(given):
            one.remove = True
            one.kill(signal.SIGTERM)  # as podman; docker kills at once
            if one.process is not None:
                with suppress(subprocess.TimeoutExpired):
                    one.process.wait(RM_GRACE_S)
                one.kill(signal.SIGKILL)
                one.process.wait()
            with self.server.lock:
                self.server.containers.pop(one.id, None)
            self.server.note("removed", one)
        self.say(exit=0)

    def stop(self, given: dict[str, Any]) -> None:
        for one in self.each(given):
            self.server.note("stop", one)
            one.kill(signal.SIGTERM)
            try:
                if one.process is not None:
                    one.process.wait(given["time"])
            except subprocess.TimeoutExpired:
                one.kill(signal.SIGKILL)
        self.say(exit=0)

    def kill(self, given: dict[str, Any]) -> None:
        for one in self.each(given):
            one.kill(signal.SIGKILL)
        self.say(exit=0)

    def inspect(self, given: dict[str, Any]) -> None:
        for one in self.each(given):
            running = one.status is None and one.process is not None
            self.say(
                out=json.dumps({"Running": running, "Pid": one.process.pid if running and one.process else 0}) + "\n"
            )
        self.say(exit=0)

    def each(self, given: dict[str, Any]) -> list[Container]:
        found = [one for word in given["words"] for one in self.server.found(word)]
        if not found:
            self.say(error=f"no such container: {' '.join(given['words'])}", exit=1)
        return found


def fits(one: Container, filters: list[str]) -> bool:
    for each in filters:
        key, _, value = each.partition("=")
        name, _, wanted = value.partition("=")
        if key == "label" and one.labels.get(name) != wanted:
            return False
        if key == "name" and not re.search(value, one.name):  # podman-ps(1); docker's is a pattern, too
            return False
    return True


def serve(path: str, state: str, payload: str) -> int:
    daemon = Daemon(path, state, payload)
    threading.Thread(target=daemon.serve_forever, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    for one in list(daemon.containers.values()):
        one.kill(signal.SIGKILL)
        if one.process is not None:
            one.process.wait()
    return 0


# --- the command line -------------------------------------------------------------------------------------------------


def question(words: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {
        "op": words.pop(0), "name": "", "labels": {}, "rm": False, "env": {}, "cidfile": "", "filters": [], "all": False,
        "time": 10.0, "format": "", "words": [],
    }  # fmt: skip
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        if name in ("--rm", "-f"):
            given["rm"] = True
        elif name == "-a":
            given["all"] = True
        elif name in FLAGS | {"--no-trunc"}:
            pass
        else:
            value = value if equals else words.pop(0)
            key, _, rest = value.partition("=")
            if name == "--label":
                given["labels"][key] = rest
            elif name in ("--env", "-e"):
                given["env"][key] = rest if "=" in value else os.environ[key]
            elif name == "--filter":
                given["filters"].append(value)
            elif name in ("--time", "-t"):
                given["time"] = float(value)
            elif name in ("--name", "--cidfile", "--format"):
                given[name[2:]] = value
    given["words"] = words[1:] if given["op"] == "run" else words
    return given


def cli(path: str, words: list[str]) -> int:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
    except OSError as error:
        sys.stderr.write(f"cannot connect to the daemon at {path}: {error.strerror}\n")
        return 1
    connection.sendall(json.dumps(question(words)).encode() + b"\n")
    if words is not None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda got, _: connection.sendall(json.dumps({"signal": got}).encode() + b"\n"))
    with connection.makefile("rb") as answers:
        for line in answers:
            said = json.loads(line)
            sys.stdout.write(said.get("out", ""))
            sys.stdout.flush()
            sys.stderr.write(said["error"] + "\n" if "error" in said else "")
            if "exit" in said:
                return int(said["exit"])
    sys.stderr.write("the daemon went away\n")
    return 125


if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        sys.exit(serve(*sys.argv[2:5]))
    sys.exit(cli(sys.argv[2], sys.argv[3:]))
