"""What the llama-server that a user would get says of its own failures, and what that is named: its words drift between
builds, and a rule that matches nothing any more is found here."""

from __future__ import annotations

import resource
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from supervisor.causes import Evidence, Word, name
from supervisor.contract import Exit
from supervisor.errors import EngineBinaryError
from tests.support import free_port
from workers.engines import find_llama_server
from workers.models import locate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisor.causes import Cause

pytestmark = [pytest.mark.process, pytest.mark.engine]

MEMORY = 3 * 2**30
TRIES = 5
"""Of a server that ends without the words for it: its log has a thread of its own, and on a busy machine it is over before
that wrote them (1 of 40 said nothing at all, measured). A rule that matches no more finds nothing in any."""


@pytest.fixture(scope="module")
def model() -> Path:
    found = locate("smollm2-135m")
    if found is None:
        pytest.skip("smollm2-135m is not in the cache: queenright model pull smollm2-135m")
    return found


def end_of(*arguments: object, port: int | None = None, limit: Callable[[], None] | None = None) -> Cause:
    """Run it to its end; the cause as it would be named of a server in its first start."""
    try:
        server = find_llama_server()
    except EngineBinaryError as error:
        pytest.skip(str(error))
    argv = [*server.argv, "--port", str(port or free_port()), *map(str, arguments)]
    for _ in range(TRIES):
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, preexec_fn=limit, check=False
        )
        ended = Exit(1, done.returncode) if done.returncode >= 0 else Exit(2, -done.returncode)
        said = tuple((done.stdout + done.stderr).splitlines())
        found = name(Evidence(ended, "the chat server did not start", said))
        if found.word is not Word.UNKNOWN:
            break
    return found


def test_hal0_2037_a_bad_flag() -> None:
    assert end_of("--no-such-flag").word is Word.BAD_FLAG
    assert "--ctx-size" in end_of("--ctx-size", "many").detail


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    found = end_of("--model", tmp_path / "none.gguf")
    assert found.word is Word.MODEL_MISSING
    assert str(tmp_path / "none.gguf") in found.detail


@pytest.mark.parametrize("how", ["cut off", "empty", "another format"])
def test_a_model_that_is_broken(tmp_path: Path, model: Path, how: str) -> None:
    broken = tmp_path / "broken.gguf"
    with model.open("rb") as whole:
        start = whole.read(4_000_000)
    broken.write_bytes({"cut off": start, "empty": b"", "another format": b"hello, world"}[how])
    found = end_of("--model", broken)
    assert found.word is Word.MODEL_BROKEN
    assert str(broken) in found.detail


def test_a_port_that_is_taken(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as thief:
        port = thief.getsockname()[1]
        found = end_of("--model", model, port=port)
    assert (found.word, found.detail) == (Word.PORT_CONFLICT, str(port))


def test_a_context_that_does_not_fit(model: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    assert end_of("--model", model, "--ctx-size", 2_000_000, limit=limit).word is Word.HOST_MEMORY
