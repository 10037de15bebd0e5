"""Fixtures of the engine tests. After every test another process looks for what is left of its engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from supervisor.errors import EngineBinaryError
from tests.engine.kit import CHAT, EMBED, Kit, make_kit, proxy
from tests.engine.place import Place
from workers.cache import cache_root
from workers.engines import Origin, find_llama_server
from workers.models import locate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """Models and the fake llama-server, made once."""
    return make_kit(tmp_path_factory.mktemp("engine-kit"))


@pytest.fixture(scope="session")
def real_kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """The llama-server that a user would get, and the catalog's models from the user's cache."""
    try:
        server = find_llama_server()
    except EngineBinaryError as error:
        pytest.skip(str(error))
    chat, embed = locate(CHAT), locate(EMBED)
    if chat is None or embed is None:
        missing = CHAT if chat is None else EMBED
        pytest.skip(f"{missing} is not in the cache: queenright model pull {missing}")
    made_by = f"{server.distribution} {server.version}" if server.distribution else str(server.path)
    named = None if server.origin is Origin.WHEEL else server.path
    root = tmp_path_factory.mktemp("real")
    return Kit(root, chat, embed, named, proxy(), cache_root(), f"llama-server ({made_by})", is_fake=False)


@pytest.fixture
def place(kit: Kit) -> Iterator[Place]:
    """A slot of the test's own, checked at its end for anything left behind."""
    place = Place(kit)
    place.configure()
    try:
        yield place
    finally:
        place.close()
