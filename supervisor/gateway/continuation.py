"""Carries a cut stream on: waits for the group, asks for the rest, and hands it on as the caller's own chunks."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import httpx
import trio
from attrs import frozen

from supervisor import budgets
from supervisor.answers import broken_off
from supervisor.gateway.asking import Asked, parsed
from supervisor.gateway.gathering import Forwarded, GatheringHolding
from supervisor.gateway.replying import Comments, Reply
from supervisor.gateway.whereabouts import Whereabouts
from supervisor.request_policy import Action, Attempt, Outcome, Route, decide
from supervisor.streams import AnswerInterrupted

if TYPE_CHECKING:
    from supervisor.gateway.resuming import Delivered

_UNDONE: Final = "the stream was cut, and could not go on"


@frozen
class Continuation:
    """Of one request: `call` is the one that was cut, and its deadline is that of every continuation."""

    holding: GatheringHolding
    whereabouts: Whereabouts
    asked: Asked
    call: Forwarded
    reply: Reply
    comment_after_s: float

    async def go_on(self, delivered: Delivered, error: AnswerInterrupted, nursery: trio.Nursery) -> None:
        """Hand on the rest of the answer. Raises AnswerInterrupted where there is none."""
        for resumes_left in range(budgets.RESUMES_MOST, -1, -1):
            attempt = Attempt(broken_off(error.__cause__, Outcome.STREAM_CUT), 200, first_byte=True)
            left = resumes_left if delivered.may_go_on else 0
            decision = decide(Route.REPLAYABLE, attempt, counted=1, left_s=self.call.left, resumes_left=left)
            if decision.action is not Action.RESUME:
                raise error
            if delivered.left == 0:
                await self.reply.send(delivered.ended_by_limit())
                return
            answer = await self._rest(delivered, nursery)
            try:
                stream: Any = answer.stream
                async for piece in stream:
                    if rest := delivered.continued(piece):
                        await self.reply.send(rest)
            except AnswerInterrupted as again:
                error = again
            finally:
                with trio.CancelScope(shield=True):  # bounded: httpcore closes a socket, and waits for nothing
                    await answer.aclose()
            if delivered.is_over:
                return

    async def _rest(self, delivered: Delivered, nursery: trio.Nursery) -> httpx.Response:
        """The stream of it. Raises AnswerInterrupted if no server has one: they were asked often enough."""
        prompt = None
        if (wanted := delivered.template_request()) is not None:
            answer = await self._ask("/apply-template", wanted, nursery)
            said = parsed(await answer.aread())
            prompt = said.get("prompt") if isinstance(said, dict) else None
            if answer.status_code != 200 or not isinstance(prompt, str):
                raise AnswerInterrupted(f"{_UNDONE}: {_why(said)}")
        answer = await self._ask("/completion", delivered.request(prompt), nursery)
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            raise AnswerInterrupted(f"{_UNDONE}: {_why(parsed(await answer.aread()))}")
        return answer

    async def _ask(self, path: str, body: dict[str, Any], nursery: trio.Nursery) -> httpx.Response:
        model = self.asked.model
        target = f"/upstream/{model.launch.role}{path}" if self.whereabouts.has_proxy(model.group) else path
        call = Forwarded(
            request=httpx.Request("POST", f"http://gateway.invalid{target}", headers=self.asked.request.headers),
            body=json.dumps(body).encode(),
            group=model.group,
            route=Route.REPLAYABLE,
            started=time.monotonic(),
            deadline=self.call.deadline,
            asking=self.call.asking,
            path=path,
            gathers=False,
        )
        comments = Comments(self.reply, self.whereabouts, call, self.comment_after_s)
        nursery.start_soon(comments.run)
        try:
            return await self.holding.answer(call)
        finally:
            with trio.CancelScope(shield=True):  # as long as the caller does not read what was begun
                await comments.end()


def _why(said: Any) -> str:
    error = said.get("error") if isinstance(said, dict) else None
    return str(error.get("message")) if isinstance(error, dict) else "the server did not understand"
