"""The kind `command`: what it makes of a configuration, and how it looks at a program's health."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from supervisor import config, resolving
from supervisor.errors import ConfigError, EngineBinaryError
from supervisor.kinds import PROXY, Answer, Birth, ServerState
from workers import command

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.contract import GroupSpec

KEY = "the-client-key"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUEENRIGHT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "serve"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def spec_of(folder: Path, options: str, launch: str = "") -> GroupSpec:
    text = f'[groups.web]\nkind = "command"\n[groups.web.options]\n{options}\n[[groups.web.launches]]\n'
    text += launch or 'role = "web"\nmodel = "some-model"\n'
    (group,) = resolving.resolve(config.parse(text, folder / "queenright.toml")).groups
    return group


def birth_of(spec: GroupSpec, port: int = 4711, folder: Path = Path("/slot")) -> Birth:
    (name,) = command.KIND.port_names(spec)
    return Birth("ab12", {name: port}, folder / "web.ab12.json", KEY, "generation-key", 1)


def test_what_stands_in_braces_is_filled_in_and_other_braces_stay(program: Path) -> None:
    argv = """["./serve", "--port={port}", "-k", "{key_file}", "--name", "{role}", '{"a": {}}']"""
    spec = spec_of(program.parent, f"argv = {argv}")
    birth = birth_of(spec)
    made = command.KIND.command(spec, birth)
    keys = "/slot/web.ab12.keys"
    assert made.argv == (str(program), "--port=4711", "-k", keys, "--name", "web", '{"a": {}}')
    assert dict(made.files) == {Path(keys): f"{KEY}\n"}
    assert made.workdir == "/"
    assert birth.url == "http://127.0.0.1:4711"


def test_the_key_is_in_no_word_and_no_file_is_written_that_nobody_asked_for(program: Path) -> None:
    options = 'argv = ["./serve", "{port}", "{key_file}x"]\nkey_variable = "API_KEY"'
    spec = spec_of(program.parent, options)
    made = command.KIND.command(spec, birth_of(spec))
    assert KEY not in " ".join(made.argv)
    assert made.environment == {"API_KEY": KEY}
    assert KEY not in repr(made)
    plain = spec_of(program.parent, 'argv = ["./serve", "{port}"]')
    made = command.KIND.command(plain, birth_of(plain))
    assert (made.files, made.environment) == ({}, {})


def test_it_is_what_the_contract_says(program: Path) -> None:
    launch = 'role = "web"\nmodel = "m"\ncontext = 512\nsequences = 2\narguments = ["-v", "a b"]\n'
    spec = spec_of(program.parent, 'argv = ["./serve", "{port}"]\nworkdir = "."', launch)
    assert (spec.kind, [(one.role, one.model, one.path) for one in spec.launches]) == ("command", [("web", "m", "m")])
    assert (spec.launches[0].context, spec.launches[0].sequences) == (512, 2)
    made = command.KIND.command(spec, birth_of(spec))
    assert made.argv == (str(program), "4711", "-v", "a b")
    assert made.workdir == str(program.parent)


def test_a_model_that_is_a_file_is_known_by_its_stem(program: Path) -> None:
    spec = spec_of(program.parent, 'argv = ["./serve", "{port}"]', 'role = "web"\nmodel = "./serve"\n')
    assert (spec.launches[0].model, spec.launches[0].path) == ("serve", str(program))


def test_the_pin_is_the_programs_content(program: Path) -> None:
    options = 'argv = ["./serve", "{port}"]'
    first = spec_of(program.parent, options).pin
    copy = program.parent / "elsewhere"
    copy.mkdir()
    (copy / "serve").write_bytes(program.read_bytes())
    (copy / "serve").chmod(0o755)
    assert spec_of(copy, options).pin == first
    program.write_text("#!/bin/sh\n:\n")
    assert spec_of(program.parent, options).pin != first


def test_a_bare_name_is_looked_for_on_path(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(program.parent))
    spec = spec_of(program.parent, 'argv = ["serve", "{port}"]')
    assert command.KIND.command(spec, birth_of(spec)).argv[0] == str(program)
    with pytest.raises(EngineBinaryError, match="no reverse on PATH"):
        spec_of(program.parent, 'argv = ["reverse", "{port}"]')
    with pytest.raises(EngineBinaryError, match=r"/none is not an executable file"):
        spec_of(program.parent, 'argv = ["./none", "{port}"]')


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", r"options.argv: expected the command line"),
        ('argv = "./serve {port}"', r"options.argv: expected the command line"),
        ("argv = []", r"options.argv: expected the command line"),
        ('argv = ["./serve", 1]', r"options.argv: expected the command line"),
        ('argv = ["./serve"]', r"options.argv: expected \{port\}"),
        ('argv = ["./serve", "{port}"]\nhealth = "health"', r"options.health: expected a path"),
        ('argv = ["./serve", "{port}"]\nhealth = "/a b"', r"options.health: expected a path"),
        ('argv = ["./serve", "{port}"]\nhelth = "/"', r"options.helth: unknown key; expected `health`\?"),
        ('argv = ["./serve", "{port}"]\nworkdir = "none"', r"options.workdir: there is no directory .*/none"),
        ('argv = ["./serve", "{port}"]\nworkdir = ""', r"options.workdir: expected the path"),
        ('argv = ["./serve", "{port}"]\nkey_variable = "QUEENRIGHT_KEY"', r"options.key_variable: expected"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_key(options: str, says: str, program: Path) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        spec_of(program.parent, options)
    assert str(raised.value).startswith(f"{program.parent}/queenright.toml: groups.web: ")


def test_all_that_is_wrong_is_said_at_once(program: Path) -> None:
    launch = 'role = "a"\nmodel = "m"\nidle_ttl_s = 5\n[[groups.web.launches]]\nrole = "b"\nmodel = "m"\n'
    with pytest.raises(ConfigError) as raised:
        spec_of(program.parent, 'argv = ["./serve"]\nhealth = 1', launch)
    for part in ("options.argv", "options.health", "launches: expected exactly one", "launches[0].idle_ttl_s"):
        assert part in str(raised.value)


# --- health -----------------------------------------------------------------------------------------------------------


async def serve(answer: Callable[[bytes], bytes], nursery: trio.Nursery) -> int:
    """A port that answers each connection's first bytes."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listener.socket.getsockname()[1]

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(answer(bytes(await stream.receive_some(4096))))

    nursery.start_soon(trio.serve_listeners, handle, [listener])
    return port


@pytest.mark.trio
@pytest.mark.parametrize(
    ("bytes_", "answer"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", Answer.ANSWERED),
        (b"HTTP/1.1 204\r\n\r\n", Answer.ANSWERED),
        (b"HTTP/1.0 503 Loading\r\n\r\n", Answer.NOT_YET),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", Answer.NOT_YET),
        (b"SSH-2.0-x\r\n", Answer.BROKE_OFF),
        (b"HTTP/1.1\r\n", Answer.BROKE_OFF),
        (b"HTTP/1.1 two\r\n", Answer.BROKE_OFF),
        (b"x" * 10000, Answer.BROKE_OFF),
        (b"", Answer.BROKE_OFF),
    ],
)
async def test_a_probe_is_its_page(bytes_: bytes, answer: Answer, program: Path) -> None:
    spec = spec_of(program.parent, 'argv = ["./serve", "{port}"]\nhealth = "/health"')
    asked: list[bytes] = []
    async with trio.open_nursery() as nursery:

        def reply(question: bytes) -> bytes:
            asked.append(question)
            return bytes_

        port = await serve(reply, nursery)
        for subject in (PROXY, "web"):
            assert await command.KIND.probe(spec, birth_of(spec, port), subject) is answer
        nursery.cancel_scope.cancel()
    assert asked[0].startswith(b"GET /health HTTP/1.1\r\n")
    assert f"Authorization: Bearer {KEY}\r\n".encode() in asked[0]


@pytest.mark.trio
async def test_without_a_page_nothing_is_known_and_nobody_is_asked(program: Path) -> None:
    spec = spec_of(program.parent, 'argv = ["./serve", "{port}"]')
    assert await command.KIND.probe(spec, birth_of(spec), PROXY) is Answer.UNKNOWN


@pytest.mark.trio
async def test_it_is_ready_once_its_page_is_well(program: Path) -> None:
    answers = [b"HTTP/1.1 503 no\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\n\r\n"]
    spec = spec_of(program.parent, 'argv = ["./serve", "{port}"]\nhealth = "/health"')
    told: list[Any] = []
    async with trio.open_nursery() as nursery:
        port = await serve(lambda _: answers.pop(0), nursery)
        await command.KIND.load(spec, birth_of(spec, port), ["web"], lambda *what: told.append(what))
        nursery.cancel_scope.cancel()
    assert answers == []
    assert told == [("web", ServerState.LOADING), ("web", ServerState.READY)]


@pytest.mark.trio
async def test_without_a_page_it_is_ready_as_it_listens_and_so_is_one_that_was_ready(program: Path) -> None:
    told: list[Any] = []
    plain = spec_of(program.parent, 'argv = ["./serve", "{port}"]')
    await command.KIND.load(plain, birth_of(plain), ["web"], lambda *what: told.append(what))
    paged = spec_of(program.parent, 'argv = ["./serve", "{port}"]\nhealth = "/health"')
    await command.KIND.load(paged, birth_of(paged), [], lambda *what: told.append(what))
    assert told == [("web", ServerState.READY)] * 2


@pytest.mark.trio
async def test_where_nobody_listens_it_refuses(program: Path) -> None:
    spec = spec_of(program.parent, 'argv = ["./serve", "{port}"]\nhealth = "/health"')
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    assert await command.KIND.probe(spec, birth_of(spec, port), PROXY) is Answer.REFUSED
