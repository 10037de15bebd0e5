"""The gateway's application: its routes, and the layers around them.

The layers are plain ASGI: Starlette's BaseHTTPMiddleware takes each piece of a stream through a channel and a task more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from supervisor.gateway import models, naming, saying

if TYPE_CHECKING:
    from starlette.middleware import Middleware
    from starlette.requests import Request

    from supervisor.gateway.forwarding import Forwarding
    from supervisor.gateway.upkeep import Keeper


def application(keeper: Keeper, forwarding: Forwarding) -> Starlette:
    """The whole of it, for one keeper. Routes of the gateway's own come first; every other path is a model's."""
    pages = _Pages(keeper)
    return Starlette(
        routes=[
            Route("/health", pages.health),
            Route("/v1/models", pages.models),
            Route("/models", pages.models),
            Route("/v1/models/{name:path}", pages.model),
            Route("/{path:path}", forwarding),
        ],
        middleware=layers(keeper),
    )


def layers(_: Keeper) -> list[Middleware]:
    """What stands around every route, the outermost first."""
    return []


class _Pages:
    """What the keeper answers from memory, in every state of the engine."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    async def health(self, _: Request) -> Response:
        """200 while the gateway can take requests, also for groups that are down: it holds those."""
        return JSONResponse(models.health(self._keeper.spec, self._keeper.tree, self._keeper.stopping))

    async def models(self, _: Request) -> Response:
        return JSONResponse(models.listed(self._keeper.spec, self._keeper.tree))

    async def model(self, request: Request) -> Response:
        found = models.one(self._keeper.spec, self._keeper.tree, request.path_params["name"])
        if found is None:
            names = [one.id for one in naming.served(self._keeper.spec)] if self._keeper.spec else []
            words = saying.unknown_model(request.path_params["name"], names)
            return Response(words, 404, media_type="application/json")
        return JSONResponse(found)
