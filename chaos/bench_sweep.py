"""`bench sweep`: what one engine carries at 1 to 16 requests at once, and what each way to it costs.

At each number of streams, and in every round of it, the same load goes all ways, one after the other and in an order that
is drawn: straight to the llama-server's own port, through the proxy, through our client, through our gateway. So what a
way costs is a difference within each round, and what the machine does besides is gone from it (chaos.measuring).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict, evolve, frozen

from chaos import bench_rig as rig
from chaos import measuring, observer
from chaos.bench_load import Target, answering
from chaos.bench_streams import CLIENT, Streamed
from chaos.measuring import Figure
from supervisor import config as configurations
from supervisor import ports, resolving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from supervisor.config_shape import Config
    from supervisor.slot import Slot

DIRECT: Final = "direct"
WAYS: Final = (DIRECT, "proxy", CLIENT, "gateway")
"""`direct` is the server's own port: neither a proxy nor anything of ours is in it. The others are compared with it."""
LEVELS: Final = (1, 2, 4, 8, 16)
MOST_LEVEL: Final = 64
ROUNDS: Final = 6
"""The least for an interval of 95 %: all of five pairs lie on one side of the true median in 6 runs of 100."""
TOKENS: Final = 48
WORDS: Final = 40
SEED: Final = 1
CONFIGURATION: Final = """\
[groups.chat]
[[groups.chat.launches]]
role = "chat"
model = "smollm2-135m"
context = 512
sequences = {sequences}
arguments = ["--threads", "{threads}"]
"""


def configuration(sequences: int) -> str:
    """What is run unless a configuration is named. On half of the cores: llama-server's threads wait for each other by turning
    in circles, and on a machine that does other things as well a run with all of them does not end in time."""
    return CONFIGURATION.format(sequences=sequences, threads=max(1, (os.cpu_count() or 2) // 2))


@frozen
class Level:
    """What came of one way at one number of streams, over all rounds. Times in seconds, rates in tokens a second.

    A percentile is the value that at least that share of all requests did not exceed (nearest rank): with fewer than a
    hundred requests the p99 is the longest of them."""

    streams: int
    way: str
    requests: int
    per_stream: float
    """Median of the streams' own rates."""
    aggregate: float
    """Median of the rounds: tokens of all streams through the time from the first request to the last token."""
    p50: float
    p95: float
    p99: float
    prompt: int


@frozen
class Sweep:
    """The result: a line for each number of streams and way, and what each way costs against `direct`."""

    levels: tuple[Level, ...]
    costs: tuple[Figure, ...]
    rounds: tuple[dict[str, Any], ...]
    """Everything that was measured, in the order it was."""


def levels_of(text: str) -> tuple[int, ...]:
    """`1,2,4-6` as numbers, in order. Raises ValueError."""
    found = set[int]()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last if dash else first)
        if not 1 <= low <= high <= MOST_LEVEL:
            raise ValueError(f"{part.strip()!r} is not from 1 to {MOST_LEVEL}")
        found |= set(range(low, high + 1))
    return tuple(sorted(found))


def wanted(path: Path, role: str, port: int) -> Config:
    """The group of a configuration that serves `role`, alone, with a gateway on that port. The bench and its load process ask
    for the same engine by it. Raises ConfigError."""
    config = configurations.load(path)
    group = _group(config, role)
    gateway = evolve(config.gateway, enabled=True, listen=f"127.0.0.1:{port}", api_key_file=None)
    return evolve(config, groups={group: config.groups[group]}, gateway=gateway)


def _group(config: Config, role: str) -> str:
    from supervisor.errors import UsageError

    for name, group in config.groups.items():
        if any(launch.role == role for launch in group.launches):
            return name
    raise UsageError(f"{config.path} has no role {role}", "a sweep asks for streamed chat; --role names another one")


def nearest_rank(values: Sequence[float], percent: float) -> float:
    """The least value that at least `percent` of all do not exceed. Raises ValueError without a value."""
    if not values:
        raise ValueError("nothing was measured")
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]


def level(streams: int, way: str, seen: Sequence[Streamed]) -> Level:
    """Of all rounds of one way at one number of streams."""
    firsts = [first for one in seen for first in one.firsts]
    p50, p95, p99 = (nearest_rank(firsts, percent) for percent in (50, 95, 99))
    return Level(
        streams,
        way,
        len(firsts),
        median([rate for one in seen for rate in one.rates] or [0.0]),
        median(one.tokens / one.seconds for one in seen),
        p50,
        p95,
        p99,
        max(one.prompt for one in seen),
    )


def costs(streams: int, way: str, ours: Sequence[Streamed], base: Sequence[Streamed]) -> list[Figure]:
    """What a way adds to the first token, and to the time that a token takes, by the pairs of each round."""
    pairs = list(zip(ours, base, strict=True))
    added = [1000 * (mean(one.firsts) - mean(other.firsts)) for one, other in pairs]
    times = [(one.seconds / one.tokens, other.seconds / other.tokens) for one, other in pairs]
    what = f"{way}, {streams} at once"
    return [
        measuring.amount("sweep", f"{what}: added to the first token", measuring.MILLISECONDS, added),
        measuring.ratio_figure("sweep", f"{what}: time per token", DIRECT, times),
    ]


def order(chance: random.Random) -> list[str]:
    """The ways in an order that is drawn: whatever one load leaves behind meets each way alike."""
    return chance.sample(WAYS, len(WAYS))


def measure(
    path: Path, slot: Slot, role: str, levels: Sequence[int], rounds: int, tokens: int, words: int,
    tell: Callable[[str, int, int], None],
) -> Sweep:  # fmt: skip
    """Run an engine in `slot` and sweep it. Raises QueenrightError for what cannot be measured."""
    chance = random.Random(SEED)
    lines: list[Level] = []
    found: list[Figure] = []
    everything: list[dict[str, Any]] = []
    with _driver(path, slot, role) as ask:
        for number, way in enumerate(WAYS):
            tell("sweep, connections", number, len(WAYS))
            ask({"way": way, "streams": max(levels), "tokens": 4, "words": 4, "round": 0})  # for nothing: connections
        for streams in levels:
            seen: dict[str, list[Streamed]] = {way: [] for way in WAYS}
            for number in range(rounds):
                tell(f"sweep, {streams} at once", number, rounds)
                for way in order(chance):
                    one = ask({"way": way, "streams": streams, "tokens": tokens, "words": words, "round": number + 1})
                    seen[way].append(one)
                    everything.append({"streams": streams, "round": number + 1, "way": way, **asdict(one)})
            tell(f"sweep, {streams} at once", rounds, rounds)
            lines += [level(streams, way, seen[way]) for way in WAYS]
            for way in WAYS[1:]:
                found += costs(streams, way, seen[way], seen[DIRECT])
    return Sweep(tuple(lines), tuple(found), tuple(everything))


@contextmanager
def _driver(path: Path, slot: Slot, role: str) -> Iterator[Callable[[dict[str, Any]], Streamed]]:
    """An engine, and the process that loads it."""
    port = ports.choose(None, set())
    config = wanted(path, role, port)
    spec = resolving.resolve(config)
    with rig.engine(slot, spec) as snapshot:
        answering(port, "the gateway of the bench's engine")
        name = spec.groups[0].name
        direct = server_of(slot, name, role)
        places = {
            "client": {"config": str(path), "slot": str(slot.path), "role": role, "port": port},
            "model": role,
            "ways": {
                DIRECT: {"url": f"http://{direct.host}:{direct.port}", "key": direct.key},
                "proxy": {
                    "url": rig.group_in(snapshot, name)["url"],
                    "key": slot.group_key(name).read_text(encoding="ascii").strip(),
                },
                "gateway": {"url": f"http://127.0.0.1:{port}", "key": ""},
            },
        }
        words = [sys.executable, "-m", "chaos.bench_streams"]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        ) as driver:
            try:
                _tell(driver, places)
                if (how := _heard(driver).get("how")) != "bind":
                    raise rig.NotMeasuredError(f"the load did not come to the bench's engine, but did {how}")
                yield lambda order: _loaded(driver, order)
            finally:
                driver.kill()


def server_of(slot: Slot, group: str, role: str) -> Target:
    """Where the llama-server itself listens, by the kernel's word, and the key that it was started with."""
    servers = observer.look(slot).servers.get(group, ())
    for server in servers:
        argv = Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")
        alias = argv[argv.index(b"--alias") + 1].decode() if b"--alias" in argv else ""
        if found := observer.listening_ports(server):
            key = ""
            if b"--api-key-file" in argv:
                file = Path(argv[argv.index(b"--api-key-file") + 1].decode())
                key = file.read_text(encoding="ascii").split()[0]
            if len(servers) == 1 or alias == role:
                return Target("127.0.0.1", found[0], key)
    raise rig.NotMeasuredError(
        f"no port of a server of group {group} was found", "it is asked directly, for comparison"
    )


def _tell(driver: subprocess.Popen[str], order: dict[str, Any]) -> None:
    assert driver.stdin is not None  # noqa: S101 - it is a pipe
    try:
        driver.stdin.write(json.dumps(order) + "\n")
        driver.stdin.flush()
    except BrokenPipeError:
        raise rig.NotMeasuredError("the process that makes the load has ended") from None


def _heard(driver: subprocess.Popen[str]) -> dict[str, Any]:
    assert driver.stdout is not None  # noqa: S101 - it is a pipe
    line = driver.stdout.readline()
    if not line:
        raise rig.NotMeasuredError("the process that makes the load has ended")
    return dict(json.loads(line))


def _loaded(driver: subprocess.Popen[str], order: dict[str, Any]) -> Streamed:
    _tell(driver, order)
    said = _heard(driver)
    if "error" in said:
        raise rig.NotMeasuredError(f"{order['streams']} streams, {order['way']}: {said['error']}")
    return Streamed(tuple(said["firsts"]), tuple(said["rates"]), said["tokens"], said["seconds"], said["prompt"])
