#!/usr/bin/env python3
"""A fake llama-server for tests: standard library only, any llama-server flag tolerated, misbehaving on request.

    python tests/fakes/llama_server.py --model M --host H --port P [...]

Every knob is an environment variable FAKE_X or a flag --fake-x (the flag wins); `--help` lists them. What it says is a
function of the prompt and the seed (`story`), so a test can compute the answer it must get.

It imitates llama-server where that was measured (research: b10434 to b11549): while loading *every* endpoint is a 503
`Loading model`; with --api-key only /health stays open; a stream ends with `usage`, `timings` and `data: [DONE]`.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
import zlib

KNOBS = {
    "load": ("0", "seconds during which every endpoint answers 503"),
    "health": ("ok", "ok | hang | 503 | refuse (never listens)"),
    "bind-delay": ("0", "seconds before it listens"),
    "term": (
        "exit",
        "on SIGTERM: exit | ignore | drain (as llama-server: when no request is open) | seconds until it exits",
    ),
    "ballast": ("0", "MiB of memory to hold"),
    "map-model": ("0", "share of the model file to map in before it listens, as llama-server does with mmap"),
    "read-model": ("0", "share of the model file to read before it listens, as with --no-mmap; it stays open"),
    "log-bytes": ("0", "bytes written to stderr per request"),
    "buffers": ("", "with --verbosity 4: MiB of the compute buffer that it says it has"),
    "log-spam": ("0", "bytes a second written to stderr, for ever"),
    "rate": ("0", "tokens a second; 0 is as fast as it can"),
    "tokens": ("16", "tokens in an answer without max_tokens"),
    "think": ("0", "seconds before the first byte of an answer"),
    "burn": (
        "0",
        "seconds for which a completion takes all of a core first, and nothing else is answered, /health neither",
    ),
    "wedge-after": ("", "after this many completions: healthy, accepts, never answers"),
    "wedge-after-cancel": ("", "after this many clients that left: as above"),
    "die-at-token": ("", "SIGKILL itself before sending this token"),
    "die-at-request": ("", "SIGKILL itself when this completion arrives"),
    "exit-code": ("0", "exit status of a voluntary exit"),
    "exit-after": ("", "seconds until it exits by itself"),
    "exit-early": ("", "exit before it listens, with exit-code (1 if that is 0)"),
    "spawn-file": ("", "append one JSON line per start: pid, ticks, nonce, argv, time"),
    "receipts-file": ("", "append the X-Request-Id of every completion when it is received"),
    "served-file": (
        "",
        "append two JSON lines for every completion and embedding: X-Request-Id, pid, monotonic time; `tokens` is null when it"
        " came, and a number right before the last byte of its answer is written",
    ),
    "fork": ("", "start a grandchild in a session of its own: sleep | hold-port"),
    "daemonize": ("", "double fork; the process that was started exits 0"),
    "close-fds": ("", "close every descriptor above 2, as some servers do"),
    "title": ("", "overwrite its command line with this"),
    "reuse-port": ("", "bind with SO_REUSEPORT"),
    "zombies": ("", "on SIGUSR1 leave a dead child that is not reaped, on SIGUSR2 reap it"),
    "leak-every": ("1", "completions of which the last leaks"),
    "leak-memory": ("0", "KiB that it takes and never lets go of"),
    "leak-descriptors": ("0", "descriptors, likewise"),
    "leak-threads": ("0", "threads, likewise"),
    "reject-flag": ("", "refuse this flag as llama-server refuses one it does not know"),
    "no-model-check": ("", "do not look whether --model exists"),
    "slots": ("ok", "ok | hang"),
    "pool": ("0", "tokens that all completions share: when they overflow, all of them end with an error"),
    "orders": (
        "",
        "real-time signals are orders to this process: SIGRTMIN+1 wedge, +2 swallow requests, +3 ignore SIGTERM",
    ),
    "close-delimited": ("", "end bodies by closing, without length or chunks (an HTTP/1.0 server)"),
}
WORDS = (
    "amber",
    "bee",
    "clover",
    "drone",
    "ember",
    "field",
    "garden",
    "honey",
    "iris",
    "jelly",
    "keeper",
    "linden",
    "meadow",
    "nectar",
    "orchard",
    "pollen",
)


class Options:
    """The knobs and the few llama-server flags it acts on."""

    def __init__(self, argv: list[str]) -> None:
        self.knobs = {
            name: os.environ.get("FAKE_" + name.upper().replace("-", "_"), d) for name, (d, _) in KNOBS.items()
        }
        self.flags: dict[str, str] = {}
        rest = list(argv)
        while rest:
            name, equals, value = rest.pop(0).partition("=")
            if not equals:
                value = rest.pop(0) if rest and not rest[0].startswith("--") else "1"
            if name.startswith("--fake-"):
                self.knobs[name.removeprefix("--fake-")] = value
            else:
                self.flags[name] = value

    def text(self, knob: str) -> str:
        """A knob as it stands."""
        return self.knobs[knob]

    def number(self, knob: str) -> float:
        """A knob as a number; unset is infinity."""
        return float(self.knobs[knob] or "inf")

    def flag(self, *names: str) -> str:
        """A llama-server flag by any of its names, or ""."""
        return next((self.flags[name] for name in names if name in self.flags), "")

    def api_keys(self) -> set[str]:
        """--api-key (commas between) and the lines of --api-key-file."""
        keys = {key for key in self.flag("--api-key").split(",") if key}
        if path := self.flag("--api-key-file"):
            with open(path, encoding="utf-8") as file:
                keys |= {line.strip() for line in file if line.strip()}
        return keys


def story(prompt: str, seed: int, count: int) -> list[str]:
    """The tokens of the answer: the same for the same prompt and seed, each with its number."""
    start = zlib.crc32(f"{seed}:{prompt}".encode())
    return [f"{WORDS[zlib.crc32(b'%d' % i, start) % len(WORDS)]}{i} " for i in range(count)]


def told_already(prompt: str, seed: int) -> tuple[str, int]:
    """A prompt that ends in the beginning of its own story: the prompt proper, and how many tokens of it are told."""
    for at in (match.start() for match in re.finditer(rf"(?:{'|'.join(WORDS)})0 ", prompt)):
        before, rest = prompt[:at], prompt[at:]
        count = rest.count(" ")
        if "".join(story(before, seed, count)) == rest:
            return before, count
    return prompt, 0


def prompt_of(body: dict[str, object]) -> str:
    """The text a request asks about: messages, prompt or input, as one string."""
    messages = body.get("messages")
    if isinstance(messages, list):
        return "\n".join(str(m.get("content", "")) for m in messages if isinstance(m, dict))
    return str(body.get("prompt", body.get("input", body.get("query", ""))))


class Fake:
    """What all requests share."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.keys = options.api_keys()
        self.model = options.flag("--alias", "-a") or os.path.basename(options.flag("--model", "-m") or "fake")
        self.nonce = os.environ.get("FAKE_NONCE") or os.urandom(8).hex()
        self.ready_at = time.monotonic() + options.number("load")
        self.lock = threading.Lock()
        self.completions = 0
        self.cancels = 0
        self.tokens = 0
        self.active = 0
        self.held = 0
        self.most_held = self.most_active = self.overflows = 0
        self.kept: list[object] = []
        self.hearing = threading.Event()
        self.hearing.set()
        self.ordered: set[str] = set()

    @property
    def wedged(self) -> bool:
        """Whether completions are accepted and never answered."""
        return self.completions > self.options.number("wedge-after") or self.cancels >= self.options.number(
            "wedge-after-cancel"
        )

    @property
    def loading(self) -> bool:
        """Whether the model is still being loaded."""
        return time.monotonic() < self.ready_at

    def props(self) -> dict[str, object]:
        """What /props says; `fake` is for tests."""
        return {
            "model_alias": self.model,
            "model_path": self.options.flag("--model", "-m"),
            "total_slots": int(self.options.flag("--parallel", "-np") or 1),
            "build_info": "b0-fake",
            "is_sleeping": False,
            "fake": {
                "nonce": self.nonce,
                "pid": os.getpid(),
                "argv": sys.argv[1:],
                "completions": self.completions,
                "cancels": self.cancels,
                "tokens": self.tokens,
                "active": self.active,
                "most_active": self.most_active,
                "most_held": self.most_held,
                "overflows": self.overflows,
            },
        }


class Handler:
    """One connection, in a thread of its own. `http.server` would do, but its imports take longer than all the rest."""

    open_requests = 0

    def __init__(self, fake: Fake, connection: socket.socket) -> None:
        self.fake = fake
        self.connection = connection
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rfile = connection.makefile("rb")
        self.command = self.path = self.named = ""
        self.mine = 0
        self.headers: dict[str, str] = {}
        self.close_connection = False

    def run(self) -> None:
        """Answer requests until the client leaves."""
        try:
            while not self.close_connection and self.read_head():
                with self.fake.lock:
                    Handler.open_requests += 1
                try:
                    self.route(self.read_body())
                finally:
                    with self.fake.lock:
                        Handler.open_requests -= 1
                self.log()
        except (OSError, ValueError):
            pass  # clients that leave are part of the game
        finally:
            self.rfile.close()
            self.connection.close()

    def read_head(self) -> bool:
        """Request line and headers (names in lower case); False at the end."""
        line = self.rfile.readline(65536).decode("latin-1").split()
        if len(line) != 3:
            return False
        self.command, self.path, _ = line
        self.headers = {}
        while (header := self.rfile.readline(65536)) not in {b"\r\n", b""}:
            name, _, value = header.decode("latin-1").partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.close_connection = self.headers.get("connection", "").lower() == "close"
        return True

    def read_body(self) -> bytes:
        """A body by length or in chunks."""
        if "100-continue" in self.headers.get("expect", ""):
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log(self) -> None:
        """--fake-log-bytes."""
        if size := int(self.fake.options.number("log-bytes")):
            os.write(2, f"srv  log: {self.command} {self.path} ".ljust(size - 1, ".").encode() + b"\n")

    def route(self, raw: bytes) -> None:
        """Answer one request."""
        fake, path = self.fake, self.path.partition("?")[0]
        fake.hearing.wait()
        if "swallow" in fake.ordered:
            self.hang()
            return
        if path in {"/health", "/v1/health"}:
            self.health()
        elif fake.keys and self.key() not in fake.keys:
            self.error(401, "Invalid API Key", "authentication_error")
        elif fake.loading:
            self.error(503, "Loading model", "unavailable_error")
        elif path in {"/v1/models", "/models"}:
            self.json({"object": "list", "data": [{"id": fake.model, "object": "model", "owned_by": "llamacpp"}]})
        elif path == "/props":
            self.json(fake.props())
        elif path == "/slots":
            if fake.options.text("slots") == "hang":
                self.hang()
            else:
                self.json([{"id": 0, "is_processing": fake.active > 0, "next_token": [{"n_decoded": fake.tokens}]}])
        elif path == "/metrics":
            text = f"llamacpp:tokens_predicted_total {fake.tokens}\nllamacpp:requests_processing {fake.active}\n"
            self.reply(200, "text/plain; version=0.0.4", text.encode())
        elif path in ("/echo", "/v1/echo"):
            self.json(
                {
                    "method": self.command,
                    "target": self.path,
                    "headers": dict(self.headers),
                    "bytes": len(raw),
                    "crc32": zlib.crc32(raw),
                }
            )
        else:
            self.ask(path, raw)

    def key(self) -> str:
        """The key the client offers."""
        return self.headers.get("authorization", "").removeprefix("Bearer ") or self.headers.get("x-api-key", "")

    def health(self) -> None:
        """--fake-health, else as a llama-server does."""
        mode = self.fake.options.text("health")
        if mode == "hang":
            self.hang()
        elif mode == "503" or self.fake.loading:
            self.error(503, "Loading model", "unavailable_error")
        else:
            self.json({"status": "ok"})

    def ask(self, path: str, raw: bytes) -> None:
        """The endpoints that take a JSON body."""
        if "wedge" in self.fake.ordered:
            self.hang()
            return
        try:
            body = json.loads(raw)
        except ValueError:
            self.error(
                400 if self.command == "POST" else 404, "parse error or no such endpoint", "invalid_request_error"
            )
            return
        if path.endswith(("/chat/completions", "/completions", "/completion")):
            self.completion(body, chat="chat" in path, native=path == "/completion")
        elif path.endswith("/embeddings"):
            self.embeddings(body)
        elif path.endswith(("/rerank", "/reranking")):
            rows = [
                {"index": i, "relevance_score": round(1 / (1 + abs(len(str(d)) - len(prompt_of(body)))), 6)}
                for i, d in enumerate(body.get("documents", []))
            ]
            self.json({"model": self.fake.model, "object": "list", "results": rows, "usage": {"total_tokens": 1}})
        elif path == "/apply-template":
            self.json({"prompt": prompt_of(body)})
        elif path == "/tokenize":
            self.json({"tokens": [len(word) for word in str(body.get("content", "")).split()]})
        elif path == "/detokenize":
            self.json({"content": " ".join(map(str, body.get("tokens", [])))})
        else:
            self.error(404, "File Not Found", "not_found_error")

    def embeddings(self, body: dict[str, object]) -> None:
        """A vector of eight numbers per input, a function of the input."""
        self.served(None)
        if not self.pause(self.fake.options.number("think")):
            return
        asked = body.get("input", "")
        inputs = asked if isinstance(asked, list) else [asked]
        data = []
        for index, text in enumerate(inputs):
            vector = [zlib.crc32(str(text).encode(), axis) / 2**32 for axis in range(8)]
            data.append({"object": "embedding", "index": index, "embedding": vector})
        usage = {"prompt_tokens": len(inputs), "total_tokens": len(inputs)}
        self.served(len(inputs))
        self.json({"object": "list", "model": self.fake.model, "data": data, "usage": usage})

    def completion(self, body: dict[str, object], *, chat: bool, native: bool) -> None:
        """A story, whole or as server-sent events."""
        fake = self.fake
        self.named = str(body.get("model", fake.model))  # llama-server repeats the name it was asked by
        with fake.lock:
            fake.completions += 1
            number = fake.completions
            fake.active += 1
            fake.most_active = max(fake.most_active, fake.active)
        self.mine = 0
        try:
            append(fake.options.text("receipts-file"), self.headers.get("x-request-id", "-"))
            self.served(None)
            if number % int(fake.options.number("leak-every")) == 0:
                self.leak()
            if number >= fake.options.number("die-at-request"):
                os.kill(os.getpid(), signal.SIGKILL)
            if fake.wedged:
                self.hang()
                return
            self.burn(fake.options.number("burn"))
            limit = body.get("max_tokens", body.get("n_predict"))
            count = int(limit) if isinstance(limit, int) and limit >= 0 else int(fake.options.number("tokens"))
            seed = body.get("seed", 0)
            prompt = prompt_of(body)
            tokens = story(prompt, seed if isinstance(seed, int) else 0, count)
            if native and "stream" in body:
                prompt, already = told_already(prompt, seed if isinstance(seed, int) else 0)
                evaluated = len(prompt.split()) + already
                tokens = story(prompt, seed if isinstance(seed, int) else 0, already + count)[already:]
            usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": count}
            if native and "stream" in body:
                usage["prompt_tokens"] = evaluated
            usage["total_tokens"] = sum(usage.values())
            overflows = fake.overflows
            if not self.pause(fake.options.number("think")):
                return
            if not self.hold(usage["prompt_tokens"], overflows):
                self.error(500, "Context size has been exceeded.", "server_error")
                return
            if body.get("stream"):
                self.stream(tokens, usage, chat=chat, native=native)
                return
            for index in range(count):
                if not self.token(index):
                    return
                if not self.hold(1, overflows):
                    self.error(500, "Context size has been exceeded.", "server_error")
                    return
            self.served(count)
            self.json(self.whole("".join(tokens), usage, chat=chat, native=native))
        finally:
            with fake.lock:
                fake.active -= 1
                fake.held -= self.mine

    def served(self, tokens: int | None) -> None:
        """--fake-served-file."""
        if path := self.fake.options.text("served-file"):
            identifier = self.headers.get("x-request-id", "-")
            line = {"id": identifier, "pid": os.getpid(), "at": time.monotonic(), "tokens": tokens}
            append(path, json.dumps(line))

    def leak(self) -> None:
        """--fake-leak-*."""
        options, kept = self.fake.options, self.fake.kept
        kept.append(b"\1" * (int(options.number("leak-memory")) << 10))
        kept += [os.open(os.devnull, os.O_RDONLY) for _ in range(int(options.number("leak-descriptors")))]
        for _ in range(int(options.number("leak-threads"))):
            threading.Thread(target=threading.Event().wait, daemon=True).start()

    def hold(self, tokens: int, overflows: int) -> bool:
        """Take so many tokens of --fake-pool; False if it overflowed since `overflows`, which is everybody's end."""
        fake = self.fake
        pool = fake.options.number("pool")
        if not pool:
            return True
        with fake.lock:
            fake.held += tokens
            self.mine += tokens
            fake.most_held = max(fake.most_held, fake.held)
            fake.overflows += fake.held > pool
            return fake.overflows == overflows

    def burn(self, seconds: float) -> None:
        """Compute, as a CPU does with a long prompt, and let nobody else have an answer."""
        if seconds:
            self.fake.hearing.clear()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
            self.fake.hearing.set()

    def whole(self, text: str, usage: dict[str, int], *, chat: bool, native: bool) -> dict[str, object]:
        """A complete answer in the endpoint's shape."""
        timings: dict[str, float] = {"predicted_n": usage["completion_tokens"], "prompt_n": usage["prompt_tokens"]}
        rate = self.fake.options.number("rate") or 1e6
        times = {
            "prompt_ms": 1000 * self.fake.options.number("think") + 1,
            "predicted_ms": 1000 * usage["completion_tokens"] / rate + 1,
        }
        if native:
            counts = {"tokens_predicted": timings["predicted_n"], "tokens_evaluated": timings["prompt_n"]}
            said = {"content": text, "stop": True, "stop_type": "eos", "model": self.named, "timings": timings | times}
            return said | counts
        choice: dict[str, object] = {"index": 0, "finish_reason": "stop"}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        kind = "chat.completion" if chat else "text_completion"
        return {
            "id": "fake",
            "object": kind,
            "model": self.named,
            "choices": [choice],
            "usage": usage,
            "timings": timings | times,
        }

    def stream(self, tokens: list[str], usage: dict[str, int], *, chat: bool, native: bool) -> None:
        """Server-sent events, one per token."""
        overflows = self.fake.overflows
        self.start(200, "text/event-stream", None)
        for index, token in enumerate(tokens):
            if not self.token(index):
                return
            if not self.hold(1, overflows):
                self.event(
                    '{"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}'
                )
                self.end()
                return
            piece: dict[str, object]
            if native:
                piece = {"content": token, "stop": False}
            else:
                choice: dict[str, object] = {"index": 0, "finish_reason": None}
                choice |= {"delta": {"content": token}} if chat else {"text": token}
                piece = {"id": "fake", "object": "chat.completion.chunk", "model": self.named, "choices": [choice]}
            if not self.event(json.dumps(piece)):
                return
        last = self.whole("", usage, chat=chat, native=native)
        if chat:
            last["object"] = "chat.completion.chunk"
            last["choices"] = [{"index": 0, "finish_reason": "stop", "delta": {}}]
        self.served(len(tokens))
        if self.event(json.dumps(last)) and self.event("[DONE]"):
            self.end()

    def token(self, index: int) -> bool:
        """Make a token: die or wait where told; False if the client has gone."""
        if index >= self.fake.options.number("die-at-token"):
            os.kill(os.getpid(), signal.SIGKILL)
        rate = self.fake.options.number("rate")
        if not self.pause(1 / rate if rate else 0):
            return False
        with self.fake.lock:
            self.fake.tokens += 1
        return True

    def pause(self, seconds: float) -> bool:
        """Wait, watching the client; False and one more cancel if it has gone."""
        deadline = time.monotonic() + seconds
        while True:
            readable, _, _ = select.select([self.connection], [], [], max(0, deadline - time.monotonic()))
            if not readable:
                return True
            try:
                gone = not self.connection.recv(1, socket.MSG_PEEK)
            except OSError:
                gone = True
            if gone:
                return self.cancelled()
            time.sleep(max(0, deadline - time.monotonic()))  # it pipelines: it is there

    def cancelled(self) -> bool:
        """The client has gone: count it."""
        with self.fake.lock:
            self.fake.cancels += 1
        self.close_connection = True
        return False

    def hang(self) -> None:
        """Never answer; return when the client leaves."""
        self.pause(1e6)
        self.close_connection = True

    # --- answers ---

    def start(self, status: int, kind: str, length: int | None, body: bytes = b"") -> None:
        """Status and headers, and what there is of the body."""
        head = f"HTTP/1.1 {status} Fake\r\nContent-Type: {kind}\r\nX-Fake-Nonce: {self.fake.nonce}\r\n"
        if self.fake.options.text("close-delimited"):
            head += "Connection: close\r\n"
            self.close_connection = True
        elif length is not None:
            head += f"Content-Length: {length}\r\n"
        else:
            head += "Transfer-Encoding: chunked\r\n"
        self.connection.sendall(head.encode() + b"\r\n" + body)

    def event(self, data: str) -> bool:
        """One server-sent event; False if the client has gone."""
        return self.write(f"data: {data}\n\n".encode())

    def write(self, data: bytes) -> bool:
        """A piece of a body without a length."""
        if not self.fake.options.text("close-delimited"):
            data = b"%x\r\n%b\r\n" % (len(data), data)
        try:
            self.connection.sendall(data)
        except OSError:
            return self.cancelled()
        return True

    def end(self) -> None:
        """The end of a body without a length."""
        if not self.fake.options.text("close-delimited"):
            self.connection.sendall(b"0\r\n\r\n")

    def reply(self, status: int, kind: str, body: bytes) -> None:
        """A whole answer."""
        self.start(status, kind, len(body), b"" if self.command == "HEAD" else body)

    def json(self, data: object) -> None:
        """200 and JSON."""
        self.reply(200, "application/json; charset=utf-8", json.dumps(data).encode())

    def error(self, status: int, message: str, kind: str) -> None:
        """An error in llama-server's shape."""
        body = {"error": {"message": message, "type": kind, "code": status}}
        self.reply(status, "application/json; charset=utf-8", json.dumps(body).encode())


def bind(options: Options) -> socket.socket:
    """Listen as llama-server does: SO_REUSEADDR, and SO_REUSEPORT where asked."""
    host, port = options.flag("--host") or "127.0.0.1", int(options.flag("--port") or 8080)
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if options.text("reuse-port"):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        print(f"couldn't bind HTTP server socket, hostname: {host}, port: {port}: {error}", file=sys.stderr)
        sys.exit(1)
    return listener


def append(path: str, line: str) -> None:
    """One line, whole, to a file that several processes append to."""
    if path:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, line.encode() + b"\n")
        finally:
            os.close(fd)


def ticks() -> int:
    """Our start time in clock ticks since boot: with the pid, our identity (proc(5), field 22)."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def leave(options: Options, *, early: bool = False) -> None:
    """Exit now, without waiting for threads."""
    code = int(options.number("exit-code"))
    os._exit(code or 1 if early else code)


def drain(options: Options) -> None:
    """Exit when no request is open."""
    while Handler.open_requests:
        time.sleep(0.005)
    leave(options)


def on_term(options: Options) -> None:
    """SIGTERM and SIGINT as --fake-term says."""
    mode = options.text("term")

    def handler(*_: object) -> None:
        if mode == "exit":
            leave(options)
        if mode == "drain":
            threading.Thread(target=drain, args=[options], daemon=True).start()
            return
        threading.Timer(float(mode), leave, [options]).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if mode == "ignore" else handler)


def on_order(fake: Fake) -> None:
    """--fake-orders."""
    orders = {signal.SIGRTMIN + 1: "wedge", signal.SIGRTMIN + 2: "swallow"}
    for number in orders:
        signal.signal(number, lambda number, _: fake.ordered.add(orders[number]))
    ignore = [signal.SIGTERM, signal.SIGINT]
    signal.signal(signal.SIGRTMIN + 3, lambda *_: [signal.signal(number, signal.SIG_IGN) for number in ignore] and None)


def keep_zombies() -> None:
    """--fake-zombies."""

    def leave_one(*_: object) -> None:
        if os.fork() == 0:
            os._exit(0)

    signal.signal(signal.SIGUSR1, leave_one)
    signal.signal(signal.SIGUSR2, lambda *_: (os.waitpid(-1, 0), None)[1])


def retitle(text: str) -> None:
    """Overwrite the command line seen in /proc, as programs with long names for ps do."""
    import ctypes

    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        start, end = (int(field) for field in file.read().rpartition(")")[2].split()[45:47])
    ctypes.memmove(start, text.encode().ljust(end - start, b"\0")[: end - start], end - start)


def fork_grandchild(mode: str, listener: socket.socket | None) -> None:
    """A process in a session of its own that outlives us; it keeps our environment and descriptors."""
    if os.fork():
        return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if listener is not None and mode != "hold-port":
        listener.close()
    while True:
        signal.pause()


def spam(rate: float) -> None:
    """Write `rate` bytes a second to stderr, for ever."""
    line = b"x" * 99 + b"\n"
    while True:
        os.write(2, line * max(1, int(rate / 2000)))
        time.sleep(0.05)


def map_in(path: str, share: float) -> object:
    """A part of a file in memory, by its mapping."""
    if not share:
        return None
    import mmap

    with open(path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    for at in range(0, int(len(mapping) * share), 4096):
        mapping[at]
    return mapping


def read_in(path: str, share: float) -> object:
    """A part of a file, read; the file stays open."""
    if not share:
        return None
    file = open(path, "rb", buffering=0)  # noqa: SIM115 - it is to stay open
    left = int(os.path.getsize(path) * share)
    while left > 0:
        left -= len(file.read(min(left, 1 << 20)))
    return file


def main(argv: list[str]) -> None:
    """Start, serve, and leave as told."""
    options = Options(argv)
    if "--help" in argv or "-h" in argv:
        print(__doc__)
        print("  -kvu, --kv-unified, -no-kvu, --no-kv-unified, -lv, --verbosity")
        for name, (default, text) in KNOBS.items():
            print(f"  --fake-{name} (default {default!r}): {text}")
        return
    if "--version" in argv:
        print("version: 0 (fake)")
        return
    rejected = options.text("reject-flag")
    if rejected and rejected in options.flags:
        print(f"error: invalid argument: {rejected}", file=sys.stderr)
        sys.exit(1)
    on_term(options)
    if options.text("zombies"):
        keep_zombies()
    if options.text("close-fds"):
        os.closerange(3, 65536)
    if options.text("daemonize"):
        if os.fork():
            os._exit(0)
        os.setsid()
    fake = Fake(options)
    if options.text("orders"):
        on_order(fake)
    start = {"pid": os.getpid(), "ticks": ticks(), "nonce": fake.nonce, "argv": sys.argv[1:], "at": time.time()}
    append(options.text("spawn-file"), json.dumps(start))
    if options.text("title"):
        retitle(options.text("title"))
    model = options.flag("--model", "-m")
    if not options.text("no-model-check") and not os.path.isfile(model):
        print(f"E srv load_model: failed to load model, '{model}'", file=sys.stderr)
        sys.exit(1)
    if options.text("exit-early"):
        leave(options, early=True)
    time.sleep(options.number("bind-delay"))
    if options.text("exit-after"):
        timer = threading.Timer(options.number("exit-after"), leave, [options])
        timer.daemon = True
        timer.start()
    if options.text("buffers") and options.flag("--verbosity", "-lv") == "4":
        print(f"0.00.1 I srv    load_model: loading model '{model}'", file=sys.stderr)
        size = options.number("buffers")
        print(f"0.00.2 I sched_reserve:        CPU compute buffer size =    {size:.2f} MiB", file=sys.stderr)
    ballast = bytearray(int(options.number("ballast")) << 20)
    ballast[::4096] = b"\1" * len(ballast[::4096])  # touched, so that it is resident
    held = [map_in(model, options.number("map-model")), read_in(model, options.number("read-model"))]
    if rate := options.number("log-spam"):
        threading.Thread(target=spam, args=[rate], daemon=True).start()
    if options.text("health") == "refuse":
        threading.Event().wait()
    listener = bind(options)
    if mode := options.text("fork"):
        fork_grandchild(mode, listener)
    while held and "swallow" not in fake.ordered:  # for ever: they are kept in memory by being named here
        connection, _ = listener.accept()
        threading.Thread(target=Handler(fake, connection).run, daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
