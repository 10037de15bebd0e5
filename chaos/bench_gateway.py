"""`bench gateway`: what the gateway adds to a request, against the same request sent to the proxy, in one run.

The stand-in is a llama-server that computes nothing: it sends tokens at a rate, each with the time at which it was sent
(CLOCK_MONOTONIC, which all processes of a machine share). So the latency of every token is measured, and nothing but
proxy and gateway is in it.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from statistics import mean, median, quantiles
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from chaos import bench_rig as rig
from chaos import measuring
from chaos.bench_cells import Bench
from chaos.bench_load import Load, Target, answering, health_seconds, run_load
from chaos.bench_sharing import cpu_seconds
from chaos.measuring import Figure
from supervisor import ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisor.errors import QueenrightError

STREAMS: Final = 16
RATE: Final = 100
"""Tokens a second of one stream: what a small model gives on a GPU, and much for 16 at once."""
TOKENS: Final = 400
MOST_STREAMS: Final = 64
STEPS: Final = (25, 50, 75, 100, 150, 200, 300)
"""Tokens a second of each of MOST_STREAMS, while it is looked for what the gateway can carry."""
KEEPS_UP: Final = 0.95
"""Of the tokens that the server sends in a second: below it they pile up."""
REAL_TOKENS: Final = 32
BODIES: Final = 64
BODY_BYTES: Final = 2_000_000
EMBEDDING_LIMIT = 120.0  # budget: 64 bodies of 2 MB, each of them read twice on its way
SETTLE_S: Final = 1.0  # budget: what the keeper does after an engine's start

STAND_IN: Final = r"""
import asyncio, json, sys, time
argv = sys.argv[1:]
if "--version" in argv:
    print("version: 0 (stand-in)")
    sys.exit()
port = int(argv[argv.index("--port") + 1])
LINE = (b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":'
        b'[{"index":0,"finish_reason":null,"delta":{"content":"%d "}}]}\n\n')
LAST = (b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":'
        b'[{"index":0,"finish_reason":"stop","delta":{}}]}\n\ndata: [DONE]\n\n')
EMBEDDED = b'{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":[0.5]}]}'
def whole(body):
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or 0)
            body = await reader.readexactly(length) if length else b""
            path = head.split(b" ", 2)[1]
            if not path.endswith(b"/chat/completions"):
                writer.write(whole(EMBEDDED if b"embeddings" in path else b'{"status":"ok"}'))
                continue
            asked = json.loads(body)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            at = time.monotonic()
            for _ in range(asked["max_tokens"]):
                at += 1 / asked["rate"]
                await asyncio.sleep(max(0, at - time.monotonic()))
                writer.write(chunk(LINE % time.monotonic_ns()))
            writer.write(chunk(LAST) + b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, OSError):
        pass
    finally:
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=1 << 20, backlog=512)
    async with server:
        await server.serve_forever()
asyncio.run(main())
"""


@frozen
class Cell:
    """One question: with a model, or with the stand-in."""

    help: str
    needs_model: bool
    run: Callable[[Bench, Sides], list[Figure]]


@frozen
class Sides:
    """One engine, and both ways to it."""

    gateway: Target
    direct: Target
    embed: Target | None
    """Direct to the proxy of the embedding model, where there is one."""
    keeper: int


@contextmanager
def stand_in(bench: Bench) -> Iterator[Sides]:
    """An engine of stand-ins, one that chats and one that embeds."""
    server, model = bench.folder / "stand-in", bench.folder / "model.gguf"
    server.write_text(f"#!{sys.executable} -IS\n{STAND_IN}", encoding="utf-8")
    server.chmod(0o700)
    model.write_bytes(_gguf())
    launches = "".join(
        f'[groups.{role}]\n[[groups.{role}.launches]]\nrole = "{role}"\nmodel = "{model}"\ncontext = 512\n'
        f"sequences = {MOST_STREAMS}\n"
        for role in ("chat", "embed")
    )
    with _sides(bench, f'[engine]\nllama_server = "{server}"\n{launches}') as sides:
        yield sides


@contextmanager
def model(bench: Bench) -> Iterator[Sides]:
    """The bench's model, for 16 conversations at once."""
    assert bench.group is not None  # noqa: S101 - such cells are not run without
    path = bench.group.launches[0].path
    # One thread: with two on two cores that others used as well a run did not end in time. Why, was not looked into.
    text = (
        f'[groups.chat]\n[[groups.chat.launches]]\nrole = "chat"\nmodel = "{path}"\n'
        f'context = 512\nsequences = {STREAMS}\narguments = ["--threads", "1"]\n'
    )
    with _sides(bench, text) as sides:
        yield sides


@contextmanager
def _sides(bench: Bench, text: str) -> Iterator[Sides]:
    from supervisor import config as configurations
    from supervisor import resolving

    path = bench.folder / "gateway.toml"
    port = ports.choose(None, set())
    path.write_text(f'{text}[gateway]\nlisten = "127.0.0.1:{port}"\n', encoding="utf-8")
    spec = resolving.resolve(configurations.load(path))
    with rig.engine(bench.slot, spec) as snapshot:
        gateway = answering(port, "the gateway of the bench's engine")
        proxies = {group.name: _proxy(bench, snapshot, group.name) for group in spec.groups}
        time.sleep(SETTLE_S)
        yield Sides(gateway, proxies["chat"], proxies.get("embed"), snapshot["keeper"]["pid"])


def _proxy(bench: Bench, snapshot: dict[str, Any], group: str) -> Target:
    url = rig.group_in(snapshot, group)["url"]
    key = bench.slot.group_key(group).read_text(encoding="ascii").strip()
    return Target("127.0.0.1", int(url.rpartition(":")[2]), key)


def _gguf() -> bytes:
    """The least model file there is: one metadata entry, one tensor of 32 zeros (ggml's docs/gguf.md)."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    head = (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    )
    head += text(b"token_embd.weight") + struct.pack("<IQIQ", 1, 32, 0, 0)
    return head + bytes(-len(head) % 32) + bytes(128)


# --- the cells ------------------------------------------------------------------------------------------------------


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98]


def _streams(bench: Bench, sides: Sides) -> list[Figure]:
    """Both ways in turn: the keeper's CPU time, and the latency of each token."""
    load = Load(STREAMS, TOKENS, RATE)
    cpu: list[float] = []
    added: list[float] = []
    halves: list[float] = []
    tokens: list[tuple[float, float]] = []
    pairs = bench.pairs or 5
    with _bare(sides.direct) as (bare, process):
        ways = ((sides.gateway, sides.keeper), (sides.direct, sides.keeper), (bare, process))
        for target, _ in ways:
            run_load(target, Load(STREAMS, 50, RATE))  # for nothing: connections to the server are made
        for number in range(pairs):
            bench.tell("gateway, streams", number, pairs)
            seen = []
            for target, pid in ways:
                before = cpu_seconds(pid)
                result = run_load(target, load)
                # Of each token: on a busy machine they come slower than they should, and a share of the time would flatter.
                each = (cpu_seconds(pid) - before) / (STREAMS * TOKENS)
                seen.append((each, 1000 * _p99(result.latencies), 1000 * median(result.latencies)))
            through, direct, plain = seen
            cpu.append(100 * STREAMS * RATE * (through[0] - direct[0]))
            added.append(through[1] - direct[1])
            halves.append(through[2] - direct[2])
            tokens.append((through[0] - direct[0], plain[0]))
    bench.tell("gateway, streams", pairs, pairs)
    what = f"{STREAMS} x {RATE} tokens/s"
    return [
        measuring.amount("streams", f"keeper's CPU, {what}", measuring.PERCENT, cpu, goal=30),
        measuring.ratio_figure("streams", "CPU for a token", "bare pass-through", tokens, goal=1),
        measuring.amount("streams", "added to a token, p99", measuring.MILLISECONDS, added, goal=5),
        measuring.amount("streams", "added to a token, median", measuring.MILLISECONDS, halves),
    ]


@contextmanager
def _bare(direct: Target) -> Iterator[tuple[Target, int]]:
    """The least that passes a request on (`chaos.bare_gateway`), and its pid."""
    port = ports.choose(None, set())
    words = [sys.executable, "-m", "chaos.bare_gateway", str(port), f"http://{direct.host}:{direct.port}", direct.key]
    with subprocess.Popen(words, stdin=subprocess.PIPE, process_group=0) as process:
        try:
            yield answering(port, "the bare pass-through"), process.pid
        finally:
            process.kill()


def _saturation(bench: Bench, sides: Sides) -> list[Figure]:
    """More and more tokens, until the tokens come slower than the server sends them."""
    found = []
    for name, target in (("through the gateway", sides.gateway), ("direct", sides.direct)):
        most = 0.0
        for number, rate in enumerate(STEPS):
            bench.tell(f"gateway, saturation, {name}", number, len(STEPS))
            passed = run_load(target, Load(MOST_STREAMS, 3 * rate, rate)).rate
            most = max(most, passed)
            if passed < KEEPS_UP * MOST_STREAMS * rate:
                break
        found.append(measuring.amount("saturation", f"most tokens, {name}", measuring.RATE, [most]))
    return found


def _bodies(bench: Bench, sides: Sides) -> list[Figure]:
    """A health check of the gateway, over and over, while big bodies come: to it, and for comparison to the proxy alone."""
    rounds = bench.pairs or 3
    assert sides.embed is not None  # noqa: S101 - the stand-in has one
    delays: list[float] = []
    alone: list[float] = []
    for number in range(rounds):
        bench.tell("gateway, bodies", number, rounds)
        quiet = median(_checked(sides.gateway) for _ in range(20))
        for target, found in ((sides.gateway, delays), (sides.embed, alone)):
            found.append(1000 * (_worst_check(sides.gateway, target) - quiet))
    bench.tell("gateway, bodies", rounds, rounds)
    what = f"/health beside {BODIES} x {BODY_BYTES / 1e6:g} MB"
    return [
        measuring.amount("bodies", f"{what}, worst delay", measuring.MILLISECONDS, delays, goal=100),
        measuring.amount("bodies", "the same, bodies go around the gateway", measuring.MILLISECONDS, alone),
    ]


def _worst_check(gateway: Target, target: Target) -> float:
    """The longest health check of the gateway, in seconds, while bodies are sent to `target`."""
    words = [
        sys.executable,
        "-m",
        "chaos.bench_load",
        str(target.port),
        target.key or "-",
        str(BODIES),
        str(BODY_BYTES),
    ]
    worst, until = 0.0, time.monotonic() + EMBEDDING_LIMIT
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0
    ) as sender:
        try:
            while sender.poll() is None and time.monotonic() < until:
                worst = max(worst, _checked(gateway))
                time.sleep(rig.POLL)
        finally:
            sender.kill()
        assert sender.stdout is not None  # noqa: S101 - it is a pipe
        said = sender.stdout.read()
    if said != f"{BODIES}\n":
        raise rig.NotMeasuredError(f"of {BODIES} embedding requests these were answered: {said or 'none'}")
    return worst


def _checked(target: Target) -> float:
    took = health_seconds(target)
    if took is None:
        raise rig.NotMeasuredError("a health check of the gateway was not answered")
    return took


def _model(bench: Bench, sides: Sides) -> list[Figure]:
    """Time to the first token, and from there time per token, of a real model."""
    found = []
    for streams in (1, 4, STREAMS):
        load = Load(streams, REAL_TOKENS, 0)
        run_load(sides.direct, load)  # for nothing
        firsts, rates = [], []
        pairs = bench.pairs or 8
        for number in range(pairs):
            bench.tell(f"gateway, model, {streams} streams", number, pairs)
            order = [sides.gateway, sides.direct][:: 1 if number % 2 else -1]
            seen = {target: run_load(target, load) for target in order}
            through, direct = seen[sides.gateway], seen[sides.direct]
            firsts.append((mean(through.firsts), mean(direct.firsts)))
            rates.append((1 / through.rate, 1 / direct.rate))
        bench.tell(f"gateway, model, {streams} streams", pairs, pairs)
        found.append(measuring.ratio_figure("model", f"first token, {streams} streams", "direct", firsts, goal=1.03))
        found.append(measuring.ratio_figure("model", f"time per token, {streams} streams", "direct", rates, goal=1.03))
    return found


CELLS: Final = {
    "streams": Cell("CPU time and added latency of streams, against direct to the proxy", False, _streams),
    "saturation": Cell("tokens a second that can pass, against direct to the proxy", False, _saturation),
    "bodies": Cell("a health check while big embedding requests come", False, _bodies),
    "model": Cell("first token and tokens a second of a real model, against direct", True, _model),
}


def measure(bench: Bench, names: list[str], why: QueenrightError | None) -> tuple[list[Figure], dict[str, str]]:
    """The figures, and what was left out and why; `why` says that there is no model to run."""
    figures: list[Figure] = []
    skipped = {}
    cells = {name: CELLS[name] for name in names}
    if fake := [cell for cell in cells.values() if not cell.needs_model]:
        with stand_in(bench) as sides:
            for cell in fake:
                figures += cell.run(bench, sides)
    for name, cell in cells.items():
        if cell.needs_model and why is not None:
            skipped[name] = f"{why.what}; {why.next_step}"
        elif cell.needs_model:
            with model(bench) as sides:
                figures += cell.run(bench, sides)
    return figures, skipped
