"""The gateway's application: its routes, and the layers around them.

The layers are plain ASGI: Starlette's BaseHTTPMiddleware takes each piece of a stream through a channel and a task more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from supervisor.gateway import access, metrics, models, naming, saying
from supervisor.gateway.guard import Guard

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from supervisor.gateway.forwarding import Forwarding
    from supervisor.gateway.upkeep import Keeper


OWN: Final = (*access.HEALTH, access.METRICS, "/v1/models", "/models")
"""Paths that are the gateway's own, with all below them; every other is a model's."""


def application(keeper: Keeper, forwarding: Forwarding) -> ASGIApp:
    """The whole of it, for one keeper. What is passed on goes around Starlette, whose own layers would take every piece of
    a stream through two calls more."""
    pages = _Pages(keeper)
    own = Starlette(
        routes=[
            *(Route(path, pages.health) for path in access.HEALTH),
            Route(access.METRICS, pages.metrics),
            Route("/v1/models", pages.models),
            Route("/models", pages.models),
            Route("/v1/models/{name:path}", pages.model),
        ],
        exception_handlers={404: _refused, 405: _refused},
    )

    async def switch(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_own = scope["type"] != "http" or path in OWN or path.startswith("/v1/models/")
        await (own if is_own else forwarding)(scope, receive, send)

    whole: ASGIApp = switch
    for layer in reversed(layers(keeper)):
        whole = layer.cls(whole, *layer.args, **layer.kwargs)
    return whole


async def _refused(_: Request, error: Exception) -> Response:
    """Nothing that is no answer is without a body of OpenAI's shape."""
    assert isinstance(error, HTTPException)  # noqa: S101 - what Starlette has handlers of a status for
    words = saying.error(error.detail, "invalid_request_error", "not_found")
    return Response(words, error.status_code, media_type="application/json", headers=error.headers)


def layers(keeper: Keeper) -> list[Middleware]:
    """What stands around every route, the outermost first."""
    return [Middleware(Guard, keeper.gateway.rules, keeper.gateway.tally.refused)]


class _Pages:
    """What the keeper answers from memory, in every state of the engine."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._metrics = metrics.Page(keeper, keeper.gateway.tally)

    async def health(self, _: Request) -> Response:
        """200 while the gateway can take requests, also for groups that are down: it holds those."""
        return JSONResponse(models.health(self._keeper.spec, self._keeper.tree, self._keeper.stopping))

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        text, kind = self._metrics.render(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})

    async def models(self, _: Request) -> Response:
        return JSONResponse(models.listed(self._keeper.spec, self._keeper.tree))

    async def model(self, request: Request) -> Response:
        found = models.one(self._keeper.spec, self._keeper.tree, request.path_params["name"])
        if found is None:
            names = [one.id for one in naming.served(self._keeper.spec)] if self._keeper.spec else []
            words = saying.unknown_model(request.path_params["name"], names)
            return Response(words, 404, media_type="application/json")
        return JSONResponse(found)
