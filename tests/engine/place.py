"""A place of a test's own: a slot, a configuration, front ends and commands; and how its engine looks from outside.

Real warden, real keeper, the proxy that is configured, and fake llama-servers that misbehave as the test says. Over
300 lines: it is one list of what a test can do and see there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from supervisor import control, identity, locks
from supervisor.control import ControlError
from supervisor.identity import Identity
from supervisor.slot import Slot
from tests import leak_check
from tests.engine.fronts import PATIENCE, Front
from tests.engine.kit import Kit, Launch
from tests.engine.seen import Family
from tests.engine.terminal import Running
from tests.leak_check import MARKER
from tests.support import RAN, Marker, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

OF_A_SLOT = ("run", "exec", "status", "stop", "logs", "apply", "retry", "hold", "release", "restart-keeper", "doctor", "unit",
             "ps", "events")  # fmt: skip
"""Commands that take `--config`."""

TRACEBACK = "Traceback (most recent call last)"


class Place:
    """See the module. `close` ends what the test started and fails for what is left."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.home = Path(tempfile.mkdtemp(prefix="qe-", dir="/tmp"))
        self.slot = Slot(self.home / "slot")
        self.config = self.home / "queenright.toml"
        self.marker = Marker()
        self.fronts: list[Front] = []
        self.running: list[Running] = []
        self.generations: set[str] = set()
        self.wardens: set[int] = set()
        self.prefix: list[str] = []
        """Words before the command of everything that is started here (`support.as_plain_user`)."""
        RAN.setdefault("proxies", set()).add(kit.proxy_title)
        RAN.setdefault("servers", set()).add(kit.title)

    def use_slot(self, path: Path) -> None:
        """Use another directory; before `configure`."""
        self.slot = Slot(path)

    # --- configuration ----------------------------------------------------------------------------------------------

    def configure(
        self,
        groups: Mapping[str, tuple[Launch, ...]] | None = None,
        *,
        engine: Mapping[str, object] | None = None,
        gateway: Mapping[str, object] | None = None,
        **options: object,
    ) -> None:
        """Write the configuration. By default two groups, `chat` and `embed`, with one server each. `options` go into
        every group, `engine` into the engine's section, `gateway` into the gateway's: without one there is none, since most
        tests have no use for the half second of its imports."""
        wanted = groups or {"chat": (Launch("chat"),), "embed": (Launch("embed", self.kit.embed),)}
        lines = ["[engine]", f"slot = {json.dumps(str(self.slot.path))}"]
        facts: dict[str, object] = {"llama_swap": self.kit.proxy, "llama_server": str(self.kit.server or "")}
        lines += [f"{key} = {json.dumps(value)}" for key, value in {**facts, **(engine or {})}.items() if value != ""]
        lines.append("[gateway]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in (gateway or {"enabled": False}).items()]
        for name, launches in wanted.items():
            lines.append(f"[groups.{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in options.items()]
            for launch in launches:
                lines += [f"[[groups.{name}.launches]]", f"role = {json.dumps(launch.role)}"]
                lines.append(f"model = {json.dumps(str(launch.model or self.kit.chat))}")
                lines.append(f"arguments = {json.dumps(self._arguments(launch))}")
                lines.append(f"idle_ttl_s = {launch.idle_ttl_s}")
                lines += [f"sequences = {launch.sequences}", f"pool = {launch.pool}"]
                if launch.context is not None:
                    lines.append(f"context = {launch.context}")
        self.config.write_text("\n".join(lines) + "\n")

    def _arguments(self, launch: Launch) -> list[str]:
        if not self.kit.is_fake:
            return list(launch.arguments)
        knobs = {
            "spawn_file": self.home / f"{launch.role}.spawns",
            "receipts_file": self.home / f"{launch.role}.receipts",
            **launch.knobs,
        }
        return [*(f"--fake-{name.replace('_', '-')}={value}" for name, value in knobs.items()), *launch.arguments]

    @property
    def environment(self) -> dict[str, str]:
        """For every process of the test: marked, and with nothing of the user's in it."""
        return {
            "HOME": str(self.home),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "QUEENRIGHT_CACHE": str(self.kit.cache),
            "QUEENRIGHT_RESERVATIONS": str(self.home / "reservations"),
            **({"QUEENRIGHT_ESTIMATOR": "none"} if self.kit.is_fake else {}),  # of a model of some bytes there is none
            MARKER: self.marker.value,
        }

    # --- processes of the test --------------------------------------------------------------------------------------

    def front(self, name: str = "front", **environment: str) -> Front:
        """A new front end. It has not asked for an engine yet."""
        front = Front(self, f"{name}-{len(self.fronts)}", self.environment | environment)
        self.fronts.append(front)
        return front

    def member(self, name: str = "front") -> Front:
        """A front end that has the engine, all of it serving."""
        front = self.front(name)
        front.open()
        self.family()
        return front

    def command(self, *words: str) -> list[str]:
        """The argv of a queenright command on this place's configuration."""
        place = ["--config", str(self.config)] if words[0] in OF_A_SLOT else []
        return [*self.prefix, str(Path(sys.executable).with_name("queenright")), *words[:1], *place, *words[1:]]

    def cli(self, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. No traceback may be in what it says."""
        done = subprocess.run(
            self.command(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            cwd=self.home,
            env=self.environment | dict(environment or {}),
            check=False,
        )
        assert TRACEBACK not in done.stdout + done.stderr, done.stdout + done.stderr
        return done

    def run(self, *words: str, wait: bool = True) -> Running:
        """`queenright run`, on a terminal of its own; with `wait`, once every group runs."""
        running = Running(self, self.command("run", *words))
        self.running.append(running)
        if wait:
            self.family()
        return running

    def status(self) -> tuple[int, dict[str, Any]]:
        """`queenright status --json`: exit status and data."""
        done = self.cli("status", "--json")
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    # --- the engine, seen from outside ------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """What the keeper says, asked directly. Raises ControlError."""
        found = control.ask(self.slot, "status", limit=PATIENCE)
        if (warden := (found["warden"] or {}).get("pid")) is not None:
            self.wardens.add(warden)
            self.generations |= {f"keeper.{warden}.{number}" for number in range(1, 30)}
        self.generations |= {group["generation"] for group in found["groups"] if group["generation"]}
        return found

    def group(self, name: str = "chat") -> dict[str, Any]:
        """One group of the snapshot."""
        return next(dict(group) for group in self.snapshot()["groups"] if group["name"] == name)

    def wait_state(self, state: str, name: str = "chat", *, within: float = PATIENCE) -> dict[str, Any]:
        """Wait for a group to be in a state."""

        def there() -> dict[str, Any] | None:
            try:
                found = self.group(name)
            except (ControlError, StopIteration):
                return None
            return found if found["state"] == state else None

        found = self.until(there, within=within, what=f"group {name} is {state}")
        assert found is not None
        return found

    def family(self, *, within: float = PATIENCE) -> Family:
        """Who is who, once every group runs and every server has a process."""

        def whole() -> Family | None:
            try:
                found = self.snapshot()
            except ControlError:
                return None
            if not found["groups"] or any(group["state"] != "running" for group in found["groups"]):
                return None
            servers = {server["role"]: server["pid"] for group in found["groups"] for server in group["servers"]}
            pids = {
                "warden": found["warden"]["pid"],
                "keeper": found["keeper"]["pid"],
                **{f"proxy {group['name']}": group["proxy"]["pid"] for group in found["groups"]},
                **servers,
            }
            known = {name: identity.of(pid) for name, pid in pids.items() if pid is not None}
            exact = {name: who for name, who in known.items() if who is not None}
            if len(exact) < len(pids):
                return None
            proxies = {name.removeprefix("proxy "): who for name, who in exact.items() if name.startswith("proxy ")}
            return Family(exact["warden"], exact["keeper"], proxies, {role: exact[role] for role in servers})

        found = self.until(whole, within=within, what="every group runs")
        assert found is not None
        return found

    def recorded(self) -> Family:
        """The same, once the groups' records on disk say so as well: they are written a moment after."""
        found = self.family()
        paths = [self.slot.group_record(name) for name in found.proxies]
        self.until(
            lambda: all(path.exists() and '"running"' in path.read_text() for path in paths),
            within=PATIENCE,
            what="the records say running",
        )
        return found

    def spawns(self, role: str = "chat") -> list[dict[str, Any]]:
        """Every start of a role's server, as the fake itself counted it."""
        path = self.home / f"{role}.spawns"
        told = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in told if line.endswith("\n")]  # of the last one only half may be there yet

    def started(self, role: str = "chat") -> list[Identity]:
        """Who they were."""
        boot, namespace = identity.boot_id(), identity.pid_namespace()
        return [Identity(boot, namespace, start["pid"], start["ticks"]) for start in self.spawns(role)]

    def receipts(self, role: str = "chat") -> int:
        """How many completions reached a role's servers."""
        path = self.home / f"{role}.receipts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def wait_empty(self, *, within: float = 15.0) -> None:
        """Wait until no warden holds the slot."""
        self.until(
            lambda: not self.slot.path.is_dir() or locks.is_held(self.slot.warden_lock) is False,
            within=within,
            what="the warden is gone",
        )

    def until(self, condition: Callable[[], T], *, within: float, what: str) -> T:
        """`wait_until`, with the slot's own words where it fails."""
        try:
            return wait_until(condition, within=within, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}; the slot: {self.slot_words()}") from None

    def assert_never_started(self) -> None:
        """No warden ever was here and no server was spawned."""
        assert not self.slot.warden_log.exists() or not self.slot.warden_log.read_text()
        assert not self.slot.warden_lock.exists()
        assert not self.slot.keeper_log.exists()
        assert not list(self.home.glob("*.spawns"))

    def slot_words(self) -> str:
        """What the slot's logs and journal say last, for a failure's text."""
        words = []
        for path in (self.slot.keeper_log, self.slot.warden_log, self.slot.events, *self.slot.logs.glob("*.log")):
            if path.exists():
                words.append(f"{path.name}: {path.read_text(errors='replace')[-1500:]}")
        return "\n".join(words) or "no logs"

    # --- the end ----------------------------------------------------------------------------------------------------

    def _question(self) -> dict[str, Any]:
        return {
            "slot": str(self.slot.path),
            "marker": f"{MARKER}={self.marker.value}",
            "generations": sorted(self.generations),
            "wardens": sorted(self.wardens),
        }

    def leaks(self) -> list[str]:
        """What is left, found by another process."""
        return leak_check.ask(**self._question())

    def assert_gone(self) -> None:
        """End the front ends; nothing of the engine may be left, now and not only at the end of the test."""
        for front in self.fronts:
            front.end()
        self.assert_nothing_left()

    def assert_nothing_left(self, *, within: float = leak_check.LINGER_S) -> None:
        """Fail, and kill it, if anything of the engine is still there after `within` seconds."""
        try:
            leak_check.assert_nothing_left(within=within, **self._question())
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.slot_words()}") from None

    def close(self) -> None:
        """End the front ends; the engine must then end by itself, and nothing may be left."""
        try:
            for front in self.fronts:
                front.end()
            for run in self.running:
                run.end()
            try:
                self.wait_empty()
            finally:
                self.assert_nothing_left()
            for path in (*self.slot.logs.glob("*.log"), *self.home.glob("*.stderr")):
                text = path.read_text(errors="replace")
                assert TRACEBACK not in text, f"{path.name}: {text}"
        finally:
            shutil.rmtree(self.home, ignore_errors=True)
