"""The loop of a request as the gateway has it: it tells the tally what happens, and puts answers together.

Where the caller wants whole what the server streams, nothing of it has reached the caller before its end, so a stream that
is cut can be sent again like any other answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
from attrs import define

from supervisor.call import Call
from supervisor.gateway import reassembly, saying
from supervisor.gateway.tally import Asking
from supervisor.request_loop import Holding, read_on
from supervisor.request_policy import Action, Attempt, Outcome, decide
from supervisor.stream_watch import StreamWatch, wants_terminator
from supervisor.streams import watched

if TYPE_CHECKING:
    import httpcore

    from supervisor.contract import Endpoint


@define(kw_only=True)
class Forwarded(Call):
    """A request of the gateway, made by names alone: up to attrs 25.3 `kw_only` is for what is inherited, too. `path` is the
    caller's; `gathers`: its answer is to be put together."""

    asking: Asking
    path: str
    gathers: bool
    was_sent: bool = False


class GatheringHolding(Holding):
    """As Holding, for Forwarded."""

    async def _attempt(self, call: Any, endpoint: Endpoint) -> tuple[Attempt, httpx.Response | None]:
        call.asking.runs()
        if call.was_sent:
            call.asking.replayed()
        call.was_sent = True
        return await super()._attempt(call, endpoint)

    async def _find(self, call: Any, unlike: str | None) -> Endpoint:
        call.asking.held()
        call.asking.waits()
        return await super()._find(call, unlike)

    async def _open(self, call: Any, response: httpcore.Response) -> tuple[Attempt, httpx.Response | None]:
        if not call.gathers:
            return await super()._open(call, response)
        watch = StreamWatch(strict=wants_terminator(call.path, call.body))
        upstream = self._carrier.upstream(response, self.upstreams)
        pieces: list[bytes] = []
        try:
            outcome = await read_on(upstream, call, pieces, watch.feed)
        finally:
            await upstream.aclose()
        attempt = watched(outcome, watch, first_byte=False)
        if decide(call.route, attempt, counted=call.counted, left_s=call.left).action is not Action.DELIVER:
            return attempt, None
        try:
            status, answer = reassembly.whole(call.path, b"".join(pieces))
        except reassembly.UnreadableStreamError:
            return Attempt(Outcome.BODY_CUT), None
        text = saying.encoded(answer)
        headers = [(b"Content-Type", b"application/json; charset=utf-8"), (b"Content-Length", b"%d" % len(text))]
        whole = httpx.Response(status, headers=headers, stream=httpx.ByteStream(text))
        return Attempt(Outcome.ANSWER, status), whole
