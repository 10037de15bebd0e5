"""The public API: an engine that other processes share.

    from supervisor.client import open_engine

    with open_engine() as engine:
        answer = engine.http.post(
            engine.base_url("chat") + "/chat/completions",
            json={"model": "chat", "messages": [{"role": "user", "content": "Hello"}]},
        )

`engine.http` is an httpx client. Its requests are held while the engine starts, swaps or is rebuilt, and sent again
where that does no harm (docs/reference/requests.md); so it can be given to any library that takes an httpx client.
Importing this module is cheap; what is heavy is imported when an engine is opened.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor import budgets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    import httpx

    from supervisor.config_shape import Config
    from supervisor.contract import Endpoint, EngineSpec, State
    from supervisor.membership import Membership
    from supervisor.slot import Slot
    from supervisor.transport import HoldingTransport


def open_engine(
    config: Config | Path | None = None,
    *,
    program: str = "",
    say: Callable[[str], None] = lambda _: None,
    deadline_s: float = budgets.REQUEST_DEADLINE,
) -> Engine:
    """Get the engine that the configuration asks for, and be a member of it until it is closed.

    `config` is a loaded configuration, a file, or None for the one found from the working directory upwards. Binds to
    the engine of the slot when there is one that serves all of it, else builds it. Returns as soon as the engine's
    keeper answers; models may still be loading, and requests wait for them. `program` is how others see this process
    in `queenright status`; `deadline_s` bounds each request, holding and replays included.

    Raises ConfigError, ModelError, EngineBinaryError, SlotError, OwnedElsewhereError, LockTimeoutError or
    EngineStartError; each says what to do next.
    """
    from supervisor import acquire, resolving

    loaded = resolving.load(config)
    spec = resolving.resolve(loaded)
    slot = resolving.slot_of(loaded)
    acquired = acquire.acquire(slot, spec, program=program or default_program(), say=say)
    return Engine(slot, spec, acquired.membership, acquired.decision.rung.value, deadline_s)


class Engine:
    """An engine in use by this process. Close it, or use it in a `with`."""

    def __init__(self, slot: Slot, spec: EngineSpec, membership: Membership, how: str, deadline_s: float) -> None:
        self.slot, self.spec, self.how = slot, spec, how
        self._membership, self._deadline_s = membership, deadline_s
        self._directory = Directory(slot, spec)
        self._http: httpx.Client | None = None
        self._transport: HoldingTransport | None = None
        self._making = threading.Lock()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave. The last member out stops the engine; this does not wait for it."""
        if self._http is not None:
            self._http.close()
            self._http = self._transport = None
        self._membership.leave()

    @property
    def http(self) -> httpx.Client:
        """A client whose requests are held and replayed. Thread-safe."""
        with self._making:  # two threads that are first together must get the same one
            if self._http is None:
                import httpx

                from supervisor.transport import HoldingTransport

                self._transport = HoldingTransport(self._directory, deadline_s=self._deadline_s)
                # Timeouts are the transport's: httpx's own 5 s would cut a prompt short. Nothing leaves loopback.
                self._http = httpx.Client(transport=self._transport, timeout=None, trust_env=False)  # noqa: S113
        return self._http

    def base_url(self, role: str) -> str:
        """`http://127.0.0.1:PORT/v1` of the group that serves `role`, for `engine.http` and for who is given it.

        Waits for the group to have a port. Raises UsageError for a role that the engine does not serve.
        """
        endpoint = self.endpoint(role)
        self.http  # noqa: B018 - makes the transport, which must know each URL that was handed out
        assert self._transport is not None  # noqa: S101 - the line above
        self._transport.learn(endpoint)
        return f"{endpoint.url}/v1"

    def endpoint(self, role: str) -> Endpoint:
        """Where `role` is served, and its key. Waits until it is; raises UsageError or what kept it from coming up."""
        return self._directory.of_role(role, time.monotonic() + self._deadline_s)

    def wait_ready(self, limit_s: float = budgets.START_LIMIT) -> None:
        """Wait until every group of ours serves. Raises FailedForGoodError or EngineStartError."""
        deadline = time.monotonic() + limit_s
        for group in self.spec.groups:
            self._directory.wait(group.name, unlike=None, deadline=deadline)

    def status(self) -> dict[str, Any]:
        """What `queenright status --json` shows. Raises ControlError."""
        from supervisor import control

        return control.ask(self.slot, "status")


class Directory:
    """Where groups are, asked of the keeper; see transport.Directory. A role is served by the group of the engine
    that has it, whatever that group is called in our own configuration."""

    def __init__(self, slot: Slot, spec: EngineSpec) -> None:
        self._slot, self._spec = slot, spec
        self._known: dict[str, Endpoint] = {}
        self._names: dict[str, str] = {}
        """What the engine calls the group that has our group's roles."""
        self._seen: dict[str, tuple[int, int] | None] = {}
        self._states: dict[str, State] = {}

    def current(self, group: str) -> Endpoint | None:
        """As last heard, unless the keeper has written of the group since: then it has to be asked again. Else a
        request could go, with its key, to whoever has the group's old port."""
        if self._record_stamp(group) != self._seen.get(group):
            return None
        return self._known.get(group)

    def _record_stamp(self, group: str) -> tuple[int, int] | None:
        """Which writing of the group's record is on disk: it is replaced as a whole each time."""
        try:
            facts = os.stat(self._slot.group_record(self._names.get(group, group)))
        except OSError:
            return None
        return facts.st_ino, facts.st_mtime_ns

    def state(self, group: str) -> State | None:
        """As last heard."""
        return self._states.get(group)

    def of_role(self, role: str, deadline: float) -> Endpoint:
        """The endpoint of a role of ours."""
        from attrs import evolve

        from supervisor.errors import UsageError

        for group in self._spec.groups:
            for launch in group.launches:
                if launch.role == role:
                    known = self._known.get(group.name) or self.wait(group.name, unlike=None, deadline=deadline)
                    return evolve(known, role=role, model=launch.model)
        roles = ", ".join(launch.role for group in self._spec.groups for launch in group.launches)
        raise UsageError(f"no role {role!r} in this engine", f"it serves: {roles}")

    def wait(self, group: str, *, unlike: str | None, deadline: float) -> Endpoint:
        """Ask the keeper, and wait until the group serves. A keeper that is being replaced is asked again."""
        from supervisor import control, locks
        from supervisor.contract import State
        from supervisor.control import ControlError
        from supervisor.errors import EngineStartError, FailedForGoodError, NoEngineError

        pauses = iter(budgets.HOLD_DELAYS)
        while (left := deadline - time.monotonic()) > 0:
            stamp = self._record_stamp(group)  # before the question: what is written meanwhile is news
            try:
                snapshot = control.ask(self._slot, "wait", limit=min(left, budgets.WAIT_ROUND), groups=[group])
            except ControlError as error:
                if not error.listening and locks.is_held(self._slot.warden_lock) is False:
                    raise NoEngineError(f"the engine in {self._slot.path} is gone", "open it again") from error
                self._pause(pauses)
                continue
            facts = self._facts(snapshot, group)
            self._names[group] = facts["name"]
            self._states[group] = State(facts["state"])
            if facts["state"] == State.FAILED:
                raise FailedForGoodError(
                    f"group {facts['name']} failed: {facts['reason']}",
                    f"`queenright logs {facts['name']}` has more; once it is mended, `queenright stop` and start again",
                )
            if facts["state"] in (State.RUNNING, State.DEGRADED) and facts["generation"] != unlike:
                self._known[group], self._seen[group] = self._endpoint(group, facts), stamp
                return self._known[group]
            self._pause(pauses)
        raise EngineStartError(f"group {group} did not come up in time", "`queenright status` says why")

    def _pause(self, pauses: Iterator[float]) -> None:
        time.sleep(next(pauses, budgets.HOLD_DELAYS[-1]))  # noqa: TID251 - the keeper has not noticed yet what we have

    def _facts(self, snapshot: dict[str, Any], group: str) -> dict[str, Any]:
        ours = next(spec for spec in self._spec.groups if spec.name == group)
        roles = {launch.role for launch in ours.launches}
        for facts in snapshot["groups"]:
            if roles <= {server["role"] for server in facts["servers"]}:
                return dict(facts)
        return {"name": group, "state": "down", "reason": "the engine does not have it (yet)", "generation": None}

    def _endpoint(self, group: str, facts: dict[str, Any]) -> Endpoint:
        from supervisor.contract import Endpoint

        key = self._slot.group_key(facts["name"]).read_text(encoding="ascii").strip()
        server = facts["servers"][0]
        return Endpoint(group, server["role"], server["model"], facts["url"], key, facts["generation"])


def default_program() -> str:
    """How this process is shown to people who look at the members."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "python"
