"""A caller of the gateway, as any OpenAI client is one: it knows a URL, and nothing of us."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from chaos import observer
from chaos.asking import Asked, Reading, carry_out
from chaos.soak.seen import Ended

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

NAME: Final = "gateway"
TOKENS: Final = 12
PATIENCE: Final = 15.0
"""budget: seconds above the deadline after which it hangs up: the refusal that it waits for is overdue then, and is judged so."""
PAUSE: Final = 0.1
"""budget: seconds between two requests of one worker. Embeddings in a tight loop took the cores from all that is judged: with
it a round has a tenth of the requests, takes half of the time, and has streams under way as before."""
REFUSED_PAUSE: Final = 0.2
"""budget: seconds after a request that was not answered: a gateway that refuses is not to be asked in a tight loop."""


class GatewayCaller:
    """Asks all kinds in turn, over and over, in a thread. `deadline_s` is what the gateway gives a request."""

    def __init__(self, url: Callable[[], str | None], deadline_s: float) -> None:
        self._find, self._url, self._stop = url, "", threading.Event()
        self._deadline_s = deadline_s
        self._lock, self._ended = threading.Lock(), list[Ended]()
        self._uncounted: list[Ended] = []
        self._open: Asked | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, limit_s: float) -> None:
        """Once there is a gateway, which comes after the engine's own processes; never where there is to be none. Raises
        NotObservedError: a load that was not there would be no proof."""

        def found() -> tuple[str] | None:
            url = self._find()
            return None if url is None else (url,)

        (self._url,) = observer.wait_until("the gateway is there", found, limit_s)
        if self._url:
            self._thread.start()

    @property
    def is_asked(self) -> bool:
        """Also where its thread came to an end: then nothing is answered any more, and that is seen."""
        return bool(self._url)

    @property
    def url(self) -> str:
        """Where it asks now."""
        return self._url

    def taken(self) -> list[Ended]:
        """Requests that ended since the last time."""
        with self._lock:
            found, self._ended = self._ended, []
        return found

    def uncounted(self) -> tuple[list[Ended], int]:
        """The same for the ledger, and how many are under way."""
        with self._lock:
            found, self._uncounted = self._uncounted, []
            return found, int(self._open is not None)

    def under_way(self) -> list[Asked]:
        """Requests that have not ended."""
        with self._lock:
            return [] if self._open is None else [self._open]

    def stop(self, limit_s: float) -> None:
        """After the request that is under way."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(limit_s)

    def _run(self) -> None:
        import httpx

        number = 0
        with httpx.Client(timeout=self._deadline_s + PATIENCE, trust_env=False) as http:
            while not self._stop.is_set():
                one = self._ask(http, number)
                number += 1
                if one.outcome != "complete":
                    self._url = self._find() or self._url
                self._stop.wait(PAUSE if one.outcome == "complete" else REFUSED_PAUSE)

    def _ask(self, http: httpx.Client, number: int) -> Ended:
        asked = Asked.in_turn(NAME, number, self._deadline_s)
        with self._lock:
            self._open = asked
        reading = Reading()
        outcome, why = carry_out(asked, http, f"{self._url}/v1", reading, TOKENS, lost="interrupted")
        one = Ended(
            "gateway",
            asked.role,
            outcome,
            time.monotonic() - asked.began,
            first_byte=reading.began_at is not None,
            why=why,
            id=asked.id,
            kind=asked.kind,
            prompt=asked.prompt,
            began=asked.began,
            first_s=None if reading.began_at is None else reading.began_at - asked.began,
            deadline_s=asked.deadline_s,
            text=reading.text,
        )
        with self._lock:
            self._open = None
            self._ended.append(one)
            self._uncounted.append(one)
        return one
