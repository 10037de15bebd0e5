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

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from supervisor import budgets

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import httpx

    from supervisor.config_shape import Config
    from supervisor.contract import Endpoint, EngineSpec
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
    the engine of the slot when there is one that serves all of it, has it extended, or builds it; where the slot has
    another one that is in use, the engine is a private one (`Engine.slot` says where). Returns as soon as the engine's
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
    return Engine(acquired.slot, spec, acquired.membership, acquired.decision.rung.value, deadline_s)


class Engine:
    """An engine in use by this process. Close it, or use it in a `with`."""

    def __init__(self, slot: Slot, spec: EngineSpec, membership: Membership, how: str, deadline_s: float) -> None:
        self.slot, self.spec, self.how = slot, spec, how
        self._membership, self._deadline_s = membership, deadline_s
        from supervisor.directory import Directory

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
        self._directory.closed.set()
        if self._http is not None:
            self._http.close()
            self._http = self._transport = None
        self._membership.leave()

    @property
    def http(self) -> httpx.Client:
        """A client whose requests are held and replayed. Thread-safe."""
        from supervisor.errors import UsageError

        with self._making:  # two threads that are first together must get the same one
            if self._directory.closed.is_set():
                raise UsageError("the engine was closed", "open it again with open_engine()")
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
        """Wait until every role of ours is served. Raises FailedForGoodError or EngineStartError."""
        deadline = time.monotonic() + limit_s
        self._directory.wait_ready(deadline)

    def status(self) -> dict[str, Any]:
        """What `queenright status --json` shows. Raises ControlError."""
        from supervisor import control

        return control.ask(self.slot, "status")


def default_program() -> str:
    """How this process is shown to people who look at the members."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] not in ("", "-c") else "python"
