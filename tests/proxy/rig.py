"""A proxy with fake servers behind it, for the conformance tests."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.support import FAKE_LLAMA_SERVER, RAN, Marker, end, free_port, spawn, wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping
    from email.message import Message

    from tests.proxy.traits import Traits

T = TypeVar("T")
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A proxy under test: its command and how it differs."""

    name: str
    command: tuple[str, ...]
    traits: Traits

    @property
    def title(self) -> str:
        """For the run's summary."""
        return "built-in" if self.name == "built-in" else f"{self.name} ({self.command[0]})"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    headers: Message
    body: bytes
    complete: bool = True

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """The text of an error body; its `error` is a string up to v250 and an object after it."""
        error = self.json()["error"]
        return error if isinstance(error, str) else error["message"]


@dataclass(slots=True)
class FakeServer:
    """One configured model and the fake behind it."""

    name: str
    port: int
    config: dict[str, Any]
    spawn_file: Path
    receipts_file: Path

    @property
    def spawns(self) -> list[dict[str, Any]]:
        """Every start there was."""
        return [json.loads(line) for line in _lines(self.spawn_file)]

    @property
    def receipts(self) -> list[str]:
        """The X-Request-Id of every completion that arrived."""
        return _lines(self.receipts_file)

    def props(self) -> dict[str, Any]:
        """What the server itself says, asked past the proxy."""
        fake: dict[str, Any] = request(self.port, "GET", "/props").json()["fake"]
        return fake


@dataclass(slots=True)
class Proxy:
    """A running proxy."""

    kind: Kind
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    key: str = ""

    @property
    def traits(self) -> Traits:
        """What to expect of it."""
        return self.kind.traits

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own."""
        sent = dict(headers or {})
        if self.key and not sent.keys() & {"Authorization", "x-api-key"}:
            sent["Authorization"] = f"Bearer {self.key}"
        return request(self.port, method, path, body, sent)

    def get(self, path: str) -> Answer:
        """GET."""
        return self.request("GET", path)

    def ask(self, model: str, *, path: str = "/v1/completions", id: str = "-", **body: object) -> Answer:
        """A completion, whole."""
        data = json.dumps({"model": model, "prompt": "hello", "max_tokens": 2, **body}).encode()
        return self.request("POST", path, data, JSON | {"X-Request-Id": id})

    @contextmanager
    def stream(self, model: str, *, timeout: float = 60, **body: object) -> Iterator[http.client.HTTPResponse]:
        """A completion as it comes; leaving the block closes the connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps({"model": model, "prompt": "hello", "stream": True} | body)
            connection.request("POST", "/v1/completions", data, JSON)
            response = connection.getresponse()
            yield response
            response.close()
        finally:
            connection.close()

    def states(self) -> dict[str, str]:
        """/running, by model."""
        return {row["model"]: row["state"] for row in self.get("/running").json()["running"]}

    def wait_state(self, model: str, state: str | None, *, within: float = 10.0) -> None:
        """Wait for a model's state in /running; None is absent."""
        wait_until(lambda: self.states().get(model) == state, within=within, what=f"{model} is {state}")

    def stop(self) -> float:
        """SIGTERM; seconds until it has ended."""
        began = time.monotonic()
        self.process.terminate()
        self.process.wait(60)
        return time.monotonic() - began


class Events:
    """A reader of /api/events in a thread: every state a model was reported in, repeats dropped."""

    def __init__(self, proxy: Proxy) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
        self._connection.request("GET", "/api/events")
        self._socket: socket.socket = self._connection.sock  # the response takes it over
        self._response = self._connection.getresponse()
        self.messages: list[tuple[str, Any]] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        wait_until(lambda: self.of("modelStatus"), what="the first modelStatus")

    def _read(self) -> None:
        try:
            for line in self._response:
                if line.startswith(b"data:"):
                    message = json.loads(line.removeprefix(b"data:"))
                    self.messages.append((message["type"], json.loads(message["data"])))
        except (OSError, ValueError, http.client.HTTPException):
            pass
        self.ended.set()

    def of(self, kind: str) -> list[Any]:
        """The payloads of one type."""
        return [data for name, data in list(self.messages) if name == kind]

    def states(self, model: str) -> list[str]:
        """The states of a model in order."""
        found: list[str] = []
        for rows in self.of("modelStatus"):
            state = next(row["state"] for row in rows if row["id"] == model)
            if not found or found[-1] != state:
                found.append(state)
        return found

    def close(self) -> None:
        """Leave: shut the socket down, which wakes the reading thread."""
        with suppress(OSError):  # the proxy may have left first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._response.close()
        self._connection.close()


@dataclass(slots=True)
class Rig:
    """Starts proxies and fakes for one test, and ends them."""

    kind: Kind
    home: Path
    marker: Marker = field(default_factory=Marker)
    proxies: list[Proxy] = field(default_factory=list)

    def model(self, name: str, config: Mapping[str, object] | None = None, **knobs: object) -> FakeServer:
        """A model for `start`. Knobs are the fake's, with underscores; `config` goes into the model's section."""
        port = free_port()
        weights = self.home / "weights.gguf"
        weights.touch()
        spawn_file, receipts = self.home / f"{name}.spawns", self.home / f"{name}.receipts"
        argv = [sys.executable, "-S", str(FAKE_LLAMA_SERVER), "--model", str(weights), "--host", "127.0.0.1"]
        argv += ["--port", str(port), "--fake-spawn-file", str(spawn_file), "--fake-receipts-file", str(receipts)]
        for knob, value in knobs.items():
            argv += ["--fake-" + knob.replace("_", "-"), str(value)]
        section = {"cmd": shlex.join(argv), "proxy": f"http://127.0.0.1:{port}", **(config or {})}
        return FakeServer(name, port, section, spawn_file, receipts)

    def start(
        self,
        *models: FakeServer,
        env: Mapping[str, str] | None = None,
        pass_fds: tuple[int, ...] = (),
        key: str = "",
        **config: object,
    ) -> Proxy:
        """Start a proxy and wait for its /health."""
        port = free_port()
        path = self.config(*models, **({"apiKeys": [key]} if key else {}), **config)
        log = self.home / f"proxy-{port}.log"
        process = spawn(
            [*self.kind.command, "-config", path, "-listen", f"127.0.0.1:{port}"],
            self.marker,
            log=log,
            env=env,
            pass_fds=pass_fds,
        )
        return self.adopt(process, port, log, key)

    def adopt(self, process: subprocess.Popen[bytes], port: int, log: Path = Path(os.devnull), key: str = "") -> Proxy:
        """Take over a started proxy and wait for its /health."""
        RAN.setdefault("proxies", set()).add(self.kind.title)
        proxy = Proxy(self.kind, port, process, log, key)
        self.proxies.append(proxy)

        def healthy() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                return proxy.get("/health").status == 200
            except OSError:
                return False

        wait_until(healthy, what="/health is 200")
        return proxy

    def config(self, *models: FakeServer, **config: object) -> Path:
        """Write a configuration file."""
        data = {
            "performance": {"disabled": True},
            "captureBuffer": 0,
            "healthCheckTimeout": 15,
            "unloadTimeout": 2,
            "models": {model.name: model.config for model in models},
            **config,
        }
        path = self.home / f"config-{os.urandom(4).hex()}.json"
        path.write_text(json.dumps(data))
        return path

    def close(self) -> None:
        """End every proxy, models first; then nothing of the test may be left."""
        for proxy in self.proxies:
            if proxy.process.poll() is None:
                with suppress(OSError, http.client.HTTPException):  # a test may have left it unable to answer
                    proxy.request("POST", "/api/models/unload")
                end(proxy.process)
        self.marker.assert_no_process_left()


def request(
    port: int, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request; an answer that breaks off has `complete` False."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        try:
            data, complete = response.read(), True
        except http.client.IncompleteRead as cut:
            data, complete = cut.partial, False
        return Answer(response.status, response.headers, data, complete)
    finally:
        connection.close()


def all_at_once(count: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0..count-1)` in as many threads; the results in order."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


@contextmanager
def in_thread(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Run `work` beside the block; the yielded function waits for its result."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield lambda: future.result(60)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
