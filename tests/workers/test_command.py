"""The kind `command`: what it makes of a configuration, and how it looks at a program's health."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from attrs import evolve

from supervisor import config, resolving
from supervisor.errors import ConfigError, EngineBinaryError, PayloadError
from supervisor.kinds import PROXY, Answer, Birth, ServerState
from workers import command, container_run

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
        ('argv = ["./serve", "{port}"]\nready = "("', r"options.ready: expected a regular expression"),
        ('argv = ["./serve", "{port}"]\nstop = "kill"', r"options.stop: expected a command line"),
        ('argv = ["./podman", "run", "-p", "{port}:1", "image"]', r"options.health: expected one, or `ready`"),
        (
            'argv = ["./docker", "run", "-d", "-p", "{port}:1", "image"]\nhealth = "/"',
            r"options.argv: -d: leave it out, it has to stay in the foreground",
        ),
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
    for part in ("options.argv", "options.health", "launches[0].idle_ttl_s"):
        assert part in str(raised.value)


# --- in a container ----------------------------------------------------------------------------------------------------


@pytest.fixture
def podman(program: Path) -> Path:
    return program.rename(program.with_name("podman"))


def test_a_container_has_name_labels_and_id_file_and_its_variables_by_name_alone(podman: Path) -> None:
    options = (
        'argv = ["./podman", "run", "-p", "127.0.0.1:{port}:80", "image", "-d"]\nhealth = "/"\nkey_variable = "KEY"'
    )
    spec = spec_of(podman.parent, options)
    assert (spec.is_outside, spec.start_period_s) == (True, command.CONTAINER_START_PERIOD)
    slot = podman.parent / "slot"
    made = command.KIND.command(spec, birth_of(spec, folder=slot / "groups"))
    *words, last = made.argv
    assert words[words.index("start") + 1] == str(podman)
    name = words[words.index("--name") + 1]
    assert name.startswith("queenright-web-")
    added = " ".join(words[words.index("run") :])
    for part in (
        f"slot={slot}",
        "group=web",
        "generation=ab12",
        f"--cidfile {slot}/groups/web.ab12.cid",
        "--rm",
        "--env KEY",
    ):
        assert part in added
    assert added.endswith("-p 127.0.0.1:4711:80 image")
    assert last == "-d"  # the program's own, behind the image
    assert KEY not in " ".join(made.argv)
    assert made.undo[-3:] == (str(podman), "ab12", f"{slot}/groups/web.ab12.cid")


def test_a_name_of_the_configuration_stays_and_is_what_a_stop_command_gets(podman: Path) -> None:
    argv = 'argv = ["./podman", "run", "--rm", "--name=mine", "-p", "{port}:80", "image", "--name", "x"]\nhealth = "/"'
    spec = spec_of(podman.parent, f'{argv}\nstop = ["./podman", "stop", "{{container}}"]')
    made = command.KIND.command(spec, birth_of(spec))
    assert made.argv.count("--rm") == 1
    assert "queenright-web" not in " ".join(made.argv)
    assert '"stop", "mine"' in made.files[Path("/slot/web.ab12.json")]


def test_what_we_may_not_look_at_is_the_container_engines_to_find(
    podman: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker's is root's: it may see what its callers may not. What a dead disk says ends no keeper either."""
    says: OSError = PermissionError(errno.EACCES, "Permission denied")

    def refuse(_: Path) -> bool:
        raise says

    run = '"./podman", "run", "--rm"'
    end = '"-p", "{port}:80", "image"]\nhealth = "/"'
    spec = spec_of(podman.parent, f'argv = [{run}, "-v", "/root/models:/models", {end}')
    monkeypatch.setattr(Path, "exists", refuse)
    trio.run(command.KIND.prepare, spec, print)
    says = OSError(errno.ESTALE, "Stale file handle")
    with pytest.raises(PayloadError, match="/root/models, which cannot be looked at: Stale file handle"):
        trio.run(command.KIND.prepare, spec, print)


def test_a_stop_waits_for_no_disk_that_hangs(program: Path) -> None:
    """A pipe that nobody writes to is one, for who reads the manifest."""
    manifest = program.parent / "hangs"
    os.mkfifo(manifest)
    spec = evolve(spec_of(program.parent, 'argv = ["./serve", "{port}"]'), payload=("a",), manifest=str(manifest))

    async def look() -> bool:
        with trio.move_on_after(0.2) as scope:
            await command.KIND.prepare(spec, print)
        return scope.cancelled_caught

    release = threading.Timer(5.0, lambda: os.close(os.open(manifest, os.O_WRONLY)))
    release.start()
    began = time.monotonic()
    assert trio.run(look)
    assert time.monotonic() - began < 4
    release.cancel()
    os.close(os.open(manifest, os.O_WRONLY))


def test_what_a_container_is_to_see_is_made_before_it_starts(podman: Path) -> None:
    """As whoever runs the engine; and nothing is made where a file or a device is meant, or what nobody can have meant."""
    home, run = podman.parent, '"./podman", "run", "--rm"'
    end = '"-p", "{port}:80", "image", "-v", "/not/ours:/x"]\nhealth = "/"'
    mounts = [
        f"{home}/models/halogen-2.5:/models:ro", "a-volume:/data", "/anonymous", f"{home}/podman:/bin/tool",
    ]  # fmt: skip
    words = ", ".join(f'"-v", "{mount}"' for mount in mounts)
    spec = spec_of(home, f'argv = [{run}, {words}, "--mount=type=bind,src={home}/more,target=/m", {end}')
    trio.run(command.KIND.prepare, spec, print)
    assert (home / "models" / "halogen-2.5").is_dir()
    assert (home / "models" / "halogen-2.5").stat().st_uid == os.getuid()
    assert (home / "more").is_dir()
    assert (home / "podman").is_file()
    for missing, says in ((f"{home}/x.gguf", "by its name it is a file"), ("/dev/nvidia-none", "check the device")):
        spec = spec_of(home, f'argv = [{run}, "-v", "{missing}:/x", {end}')
        with pytest.raises(PayloadError, match=says):
            trio.run(command.KIND.prepare, spec, print)
        assert not Path(missing).exists()
    spec = spec_of(home, f'argv = [{run}, "-v", "{home}/{"x" * 300}/models:/x", {end}')
    trio.run(command.KIND.prepare, spec, print)  # what may not be looked into is the container engine's to find
    for relative in ("./models", "~/models", f"{home}/../models"):
        with pytest.raises(ConfigError, match="expected an absolute path"):
            spec_of(home, f'argv = [{run}, "--volume={relative}:/x", {end}')


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("-it image -v /x:/y", ["-i", "-t"]),
        ("-ti -p8080:80 -v /a:/b image", ["-t", "-i", "-p=8080:80", "-v=/a:/b"]),
        ("-dit image", ["-d", "-i", "-t"]),
        ("-v/a:/b -iv /c:/d -e=X=1 image", ["-v=/a:/b", "-i", "-v=/c:/d", "-e=X=1"]),
        ("--no-hosts --tls-verify=false image --name x -v ./x:/y", ["--no-hosts", "--tls-verify=false"]),
        ("--gpus all --mount=type=bind,src=/a -- image -d", ["--gpus=all", "--mount=type=bind,src=/a"]),
    ],
)
def test_the_options_before_the_image_are_read_as_podman_and_docker_read_them(words: str, found: list[str]) -> None:
    pairs = list(container_run.pairs(["podman", "run", *words.split()]))
    assert [f"{name}={value}" if value else name for name, value in pairs] == found
    name = container_run.name_of(["podman", "run", *words.split()], Path("/slot"), "web")
    assert name.startswith("queenright-web-")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ('"--health-start-period", "20m", "--health-cmd", "x"', r"start_limit_s \(120\) is not longer than .* 20m"),
        ('"--health-start-period=1h30m", "--health-cmd=x"', r"is not longer than .* 1h30m"),
        ('"--health-start-period", "soon", "--health-cmd", "x"', r"is not longer than .* soon"),
    ],
)
def test_a_start_limit_is_longer_than_the_period_of_the_containers_own_check__podman_27290(
    words: str, says: str, podman: Path
) -> None:
    argv = f'argv = ["./podman", "run", {words}, "-p", "{{port}}:80", "image"]\nhealth = "/"'
    with pytest.raises(ConfigError, match=says):
        spec_of(podman.parent, argv)
    spec_of(podman.parent, argv.replace("20m", "1m").replace("1h30m", "90s").replace("soon", "1.5m"))


def test_a_start_period_that_the_container_engine_would_ignore_is_refused__podman_21476(podman: Path) -> None:
    argv = 'argv = ["./podman", "run", "--health-start-period", "2m", "-p", "{port}:80", "image"]\nhealth = "/"'
    with pytest.raises(ConfigError, match="--health-start-period is of no effect without --health-cmd"):
        spec_of(podman.parent, argv)


def test_without_a_container_nothing_is_undone_and_there_is_no_start_period(program: Path) -> None:
    spec = spec_of(program.parent, 'argv = ["./serve", "run", "{port}"]')
    assert (spec.is_outside, spec.start_period_s) == (False, 0.0)
    assert command.KIND.command(spec, birth_of(spec)).undo == ()


@pytest.mark.trio
async def test_a_line_of_the_log_says_that_it_is_ready_and_those_of_an_earlier_life_do_not(program: Path) -> None:
    spec = spec_of(program.parent, 'argv = ["./serve", "{port}"]\nready = "serving on \\\\d+"')
    log = program.parent / "web.log"
    log.write_text("serving on 1\n")
    birth = evolve(birth_of(spec), log=log, log_start=log.stat().st_size)
    told: list[Any] = []
    async with trio.open_nursery() as nursery:

        async def load() -> None:
            await command.KIND.load(spec, birth, ["web"], lambda *what: told.append(what))
            nursery.cancel_scope.cancel()

        nursery.start_soon(load)
        await trio.sleep(0.05)
        assert told == [("web", ServerState.LOADING)]
        with log.open("a") as file:
            file.write("serv")
            file.flush()
            await trio.sleep(0.05)
            file.write("ing on 4711")
            file.flush()
            await trio.sleep(10)
    assert told == [("web", ServerState.LOADING), ("web", ServerState.READY)]


@pytest.mark.process
def test_its_stop_command_is_run_before_it_is_signalled(program: Path) -> None:
    program.write_text(f"#!/bin/sh\necho $1 > {program.parent}/stopped\n")
    spec = spec_of(program.parent, 'argv = ["./serve", "{port}"]\nstop = ["./serve", "{port}"]')
    birth = birth_of(spec, folder=program.parent)
    for path, text in command.KIND.command(spec, birth).files.items():
        path.write_text(text)
    trio.run(command.KIND.release, birth)
    assert (program.parent / "stopped").read_text() == "4711\n"


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
