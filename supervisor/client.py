"""The public API: an engine that other processes share.

    from supervisor.client import open_engine

    with open_engine() as engine:
        answer = engine.http.post(
            engine.base_url("chat") + "/chat/completions",
            json={"model": "chat", "messages": [{"role": "user", "content": "Hello"}]},
        )

or, in a trio task, where `engine.http` is an httpx.AsyncClient:

    from supervisor.client import open_engine_async

    async with open_engine_async() as engine:
        answer = await engine.http.post(await engine.base_url("chat") + "/chat/completions", json=...)

`engine.http` is an httpx client. Its requests are held while the engine starts, swaps or is rebuilt, and sent again
where that does no harm (docs/reference/requests.md); so it can be given to any library that takes an httpx client. An engine that died is built
again by its members, without a request having to fail first. Works in any thread; no signal handler is installed.
Importing this module is cheap; what is heavy is imported when an engine is opened.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor import budgets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    import httpx

    from supervisor.client_async import AsyncEngine
    from supervisor.config_shape import Config
    from supervisor.contract import Endpoint, EngineSpec
    from supervisor.ladder import Decision
    from supervisor.membership import Membership
    from supervisor.slot import Slot
    from supervisor.tenure import Tenure
    from supervisor.transport import HoldingTransport


def open_engine(
    config: Config | Path | None = None,
    *,
    program: str = "",
    say: Callable[[str], None] = lambda _: None,
    slot: Path | None = None,
    deadline_s: float = budgets.REQUEST_DEADLINE,
) -> Engine:
    """Get the engine that the configuration asks for, and be a member of it until it is closed.

    `config` is a loaded configuration, a file, or None for the one found from the working directory upwards. Binds to
    the engine of the slot when there is one that serves all of it, has it extended, or builds it; where the slot has
    another one that is in use, the engine is a private one (`Engine.slot` says where). Returns as soon as the engine's
    keeper answers; models may still be loading, and requests wait for them. `slot` is instead of the configured one; `program` is how others see this process
    in `queenright status`; `deadline_s` bounds each request, holding and replays included.

    Raises ConfigError, ModelError, EngineBinaryError, SlotError, OwnedElsewhereError, LockTimeoutError or
    EngineStartError; each says what to do next.
    """
    from supervisor import acquire, resolving
    from supervisor.slot import Slot
    from supervisor.tenure import Tenure

    loaded = resolving.load(config)
    spec = resolving.resolve(loaded)
    place = Slot(slot) if slot is not None else resolving.slot_of(loaded)
    name = program or default_program()
    acquired = acquire.acquire(place, spec, program=name, say=say)
    return Engine(
        Tenure(acquired, lambda own: acquire.acquire(place, spec, program=name, own=own)),
        spec,
        acquired.decision,
        deadline_s,
    )


def watched(own: Membership, config: Config | Path | None, slot: Slot, program: str) -> Tenure:
    """The tenure of a process that became a member of the engine in `slot` by a ticket, and finds that engine gone: it is
    built again, as `open_engine` would have it done. Raises what reading the configuration does."""
    from supervisor import acquire, resolving
    from supervisor.ladder import Decision, Rung
    from supervisor.tenure import Tenure

    spec = resolving.resolve(resolving.load(config))
    acquired = acquire.Acquired(own, Decision(Rung.BIND, "by a ticket"), slot)
    tenure = Tenure(acquired, lambda own: acquire.acquire(slot, spec, program=program, own=own))
    tenure.watch()
    return tenure


def open_engine_async(
    config: Config | Path | None = None, *, program: str = "", deadline_s: float = budgets.REQUEST_DEADLINE
) -> AbstractAsyncContextManager[AsyncEngine]:
    """The same for a trio task: `async with open_engine_async() as engine:`. Getting the engine runs in a worker thread;
    cancelled there, it is given back as soon as it is got. Raises what `open_engine` raises."""
    from supervisor import client_async

    return client_async.opened(lambda: open_engine(config, program=program, deadline_s=deadline_s))


class Engine:
    """An engine in use by this process. Close it, or use it in a `with`."""

    def __init__(self, tenure: Tenure, spec: EngineSpec, decision: Decision, deadline_s: float) -> None:
        from supervisor.directory import Directory

        self.spec, self.how = spec, decision.rung.value
        self.tenure, self.deadline_s = tenure, deadline_s
        self.directory = Directory(tenure, spec)
        self._http: httpx.Client | None = None
        self._transport: HoldingTransport | None = None
        self._making = threading.Lock()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def slot(self) -> Slot:
        """Where the engine is."""
        return self.tenure.slot

    def close(self, *, wait: bool = False) -> bool:
        """Leave. The last member out stops the engine; with `wait`, this waits until it is gone, for at most HANDOFF_WAIT.
        True when it is known that no engine is left (never without `wait`)."""
        self.directory.closed.set()
        if self._http is not None:
            self._http.close()
            self._http = self._transport = None
        return self.tenure.leave(wait=wait)

    @property
    def http(self) -> httpx.Client:
        """A client whose requests are held and replayed. Thread-safe."""
        from supervisor.errors import UsageError

        with self._making:  # two threads that are first together must get the same one
            if self.directory.closed.is_set():
                raise UsageError("the engine was closed", "open it again with open_engine()")
            if self._http is None:
                import httpx

                from supervisor.transport import HoldingTransport

                self._transport = HoldingTransport(self.directory, deadline_s=self.deadline_s)
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
        self.tenure.watch()
        return self.directory.of_role(role, time.monotonic() + self.deadline_s)

    def wait_ready(self, limit_s: float = budgets.START_LIMIT) -> None:
        """Wait until every role of ours is served. Raises FailedForGoodError or EngineStartError."""
        deadline = time.monotonic() + limit_s
        self.directory.wait_ready(deadline)

    def status(self) -> dict[str, Any]:
        """What `queenright status --json` shows. Raises ControlError."""
        from supervisor import control

        return control.ask(self.slot, "status")

    def events(self) -> Iterator[dict[str, Any]]:
        """Snapshots as of `status`: one now, and one after each change. It only looks: nothing is started, and while no
        keeper answers there is silence. Ends within WAIT_ROUND of the engine's close."""
        from supervisor import control

        last: dict[str, Any] = {}
        while not self.directory.closed.is_set():
            try:
                for snapshot in control.converse(self.slot, "follow", limit=budgets.WAIT_ROUND):
                    if self.directory.closed.is_set():
                        return
                    if snapshot != last:
                        last = snapshot
                        yield snapshot
            except control.ControlError:
                self.directory.closed.wait(budgets.HOLD_DELAYS[-1])


def default_program() -> str:
    """How this process is shown to people who look at the members."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "python"
