"""The llama-server made of a wheel: its refusals without the wheel, and the real thing with a real model."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import types
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import RAN
from workers import xllamacpp_server
from workers.launcher import __file__ as launcher_file
from workers.models import locate
from workers.xllamacpp_server import READY, STOPPING, UnusableWheelError

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = [sys.executable, "-P", str(Path(xllamacpp_server.__file__).resolve())]
MODEL = locate("smollm2-135m")
PATIENCE_S = 60.0
"""How long a test waits for a line, an answer or an end before it fails. No test is meant to come near it."""

needs_wheel = pytest.mark.skipif(find_spec("xllamacpp") is None, reason="the wheel xllamacpp is not installed")
needs_model = pytest.mark.skipif(
    MODEL is None, reason="smollm2-135m is not in the cache: queenright model pull smollm2-135m"
)


# Without the wheel


class FakeParams:
    """Keeps its fields nowhere near the head of the object."""

    __slots__ = ("n_batch", "n_ctx", "n_predict", "n_ubatch")


def test_a_struct_that_is_not_behind_the_objects_head_is_refused() -> None:
    with pytest.raises(UnusableWheelError, match="keeps llama\\.cpp's parameters elsewhere"):
        xllamacpp_server.prove_layout(FakeParams())


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "implementation", types.SimpleNamespace(name="pypy"))
    with pytest.raises(UnusableWheelError, match="this Python"):
        xllamacpp_server.prove_layout(FakeParams())


def test_an_object_without_room_for_the_struct_is_refused() -> None:
    with pytest.raises(UnusableWheelError, match="elsewhere"):
        xllamacpp_server.prove_layout(types.SimpleNamespace())  # 24 or 32 bytes, a head and a pointer or two


def test_renamed_parameters_are_refused() -> None:
    class Renamed:
        __slots__ = ("context", "more", "other", "predict")

    with pytest.raises(UnusableWheelError, match=r"other parameters .*n_predict"):
        xllamacpp_server.prove_layout(Renamed())


def fake_wheel(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    package, extension = types.ModuleType("xllamacpp"), types.ModuleType("xllamacpp.xllamacpp")
    extension.__file__ = file
    package.xllamacpp = extension  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "xllamacpp", package)


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """main() sets signals and a flag for the whole process: not for this one."""
    monkeypatch.setattr(xllamacpp_server, "STOPPING", ())
    monkeypatch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)


@pytest.mark.usefixtures("untouched")
def test_without_the_wheel_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert xllamacpp_server.main(["--model", "x.gguf"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the wheel xllamacpp cannot be imported")
    assert "queenright[engine]" in said
    assert said.count("\n") == 1


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("file", ["/nowhere/xllamacpp.so", "libc.so.6"])
def test_a_wheel_that_hides_the_parser_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    fake_wheel(monkeypatch, file)
    assert xllamacpp_server.main([]) == 1
    assert "does not export llama.cpp's argument parser" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_that_lands_on_another_thread_is_heard(number: signal.Signals) -> None:
    """The main thread refuses it, so the kernel gives it to the other one, as it may to llama.cpp's."""
    code = f"""
import signal, sys, threading; sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from workers.xllamacpp_server import wait_for_stop
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])
wait_for_stop('ready: now\\n')
print('stopping')
"""
    child = subprocess.Popen([sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stderr is not None
    with child:
        try:
            assert child.stderr.readline() == f"{READY}now\n"
            child.send_signal(number)
            out, err = child.communicate(timeout=PATIENCE_S)
        finally:
            child.kill()
    assert (child.returncode, out, err) == (0, "stopping\n", "")


# With the wheel


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program, as far as it ends by itself."""
    environment = {**os.environ, **variables}
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=environment
    )


@needs_wheel
@pytest.mark.process
@pytest.mark.engine
def test_help_names_the_flags_that_the_kind_looks_for() -> None:
    done = run("--help")
    assert done.returncode == 0
    words = (done.stdout + done.stderr).replace(",", " ").split()
    assert {"--sse-ping-interval", "--cache-ram", "--no-webui", "--api-key-file", "--parallel"} <= set(words)


@needs_wheel
@pytest.mark.process
@pytest.mark.engine
def test_version_is_llama_cpps() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert "version: " in done.stdout + done.stderr


@needs_wheel
@pytest.mark.process
@pytest.mark.engine
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nope"], "error: invalid argument: --nope"),
        (["--port", "abc"], "--port"),
        (["--port", "99999999999"], "--port"),
        (["--model"], "--model"),
        (["--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
        ([], "path is required"),
    ],
)
def test_a_command_line_that_cannot_be_is_refused_in_llama_cpps_words(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@needs_wheel
@pytest.mark.process
@pytest.mark.engine
def test_its_variables_are_llama_servers() -> None:
    done = run(LLAMA_ARG_PORT="abc")
    assert done.returncode == 1
    assert "LLAMA_ARG_PORT" in done.stderr


@needs_wheel
@pytest.mark.process
@pytest.mark.engine
def test_a_missing_model_is_named(tmp_path: Path) -> None:
    done = run("--model", str(tmp_path / "gone.gguf"), "--port", "0")
    assert done.returncode == 1
    assert f"failed to load model, '{tmp_path / 'gone.gguf'}'" in done.stderr
    assert "No such file" in done.stderr


@needs_wheel
@pytest.mark.process
@pytest.mark.engine
def test_a_broken_model_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    done = run("--model", str(broken), "--port", "0")
    assert done.returncode == 1
    assert f"failed to load model, '{broken}'" in done.stderr
    assert "Traceback" not in done.stderr


class Server:
    """A running program, whose stderr is read as it comes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.said = b""
        self.url = ""

    def hear_more(self) -> None:
        """Read what it says next."""
        assert self.process.stderr is not None
        heard, _, _ = select.select([self.process.stderr], [], [], PATIENCE_S)
        assert heard, f"it says no more after {self.said!r}"
        piece = os.read(self.process.stderr.fileno(), 65536)
        assert piece, f"it ended after {self.said!r}"
        self.said += piece

    def hear(self, wanted: bytes) -> None:
        """Read on until it has said `wanted`."""
        while wanted not in self.said:
            self.hear_more()

    def ready(self) -> None:
        """Read on until it is ready, and take its address from its word: it chooses a free port."""
        self.hear(READY.encode())
        while not self.said.split(READY.encode())[1].partition(b"\n")[1]:
            self.hear_more()
        self.url = self.said.split(READY.encode())[1].split(b"\n")[0].decode()

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str = "") -> tuple[int, Any]:
        """Status and JSON of an answer."""
        request = urllib.request.Request(self.url + path)  # noqa: S310 - http
        request.add_header("Content-Type", "application/json")
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        data = None if body is None else json.dumps(body).encode()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, data, timeout=PATIENCE_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@contextmanager
def started(*arguments: str, **options: Any) -> Iterator[Server]:
    RAN.setdefault("servers", set()).add(f"llama-server (xllamacpp {version('xllamacpp')})")
    process = subprocess.Popen(
        [*PROGRAM, "--host", "127.0.0.1", "--port", "0", "--threads", "2", *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        bufsize=0,
        **options,
    )
    with process:
        try:
            yield Server(process)
        finally:
            process.kill()


def loaded(*arguments: str) -> list[str]:
    """The command line as the kind makes it, for the small model."""
    size = ["--ctx-size", "1024", "--parallel", "2", "--sse-ping-interval", "1", "--cache-ram", "0", "--no-webui"]
    return ["--model", str(MODEL), "--alias", "smol", *size, *arguments]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("client\ngeneration\n")
    embedding = ["--embeddings", "--pooling", "mean"]  # this model names no pooling itself
    with started(*loaded("--api-key-file", str(keys), *embedding)) as one:
        one.ready()
        yield one


@needs_wheel
@needs_model
@pytest.mark.process
@pytest.mark.engine
def test_it_serves_like_llama_server(server: Server) -> None:
    assert server.ask("/health") == (200, {"status": "ok"})
    status, props = server.ask("/props", key="client")
    assert status == 200
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == 512  # --ctx-size over --parallel
    status, listing = server.ask("/v1/models", key="client")
    assert (status, listing["data"][0]["id"]) == (200, "smol")


@needs_wheel
@needs_model
@pytest.mark.process
@pytest.mark.engine
@pytest.mark.parametrize("key", ["client", "generation"])
def test_it_completes_and_embeds_for_either_key(server: Server, key: str) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    status, answer = server.ask("/v1/completions", body, key)
    assert status == 200
    assert answer["usage"]["completion_tokens"] >= 1
    status, answer = server.ask("/v1/embeddings", {"input": ["one", "two"]}, key)
    assert status == 200
    assert [len(row["embedding"]) for row in answer["data"]] == [576, 576]


@needs_wheel
@needs_model
@pytest.mark.process
@pytest.mark.engine
@pytest.mark.parametrize("key", ["", "wrong"])
def test_without_a_key_it_answers_nothing_but_health(server: Server, key: str) -> None:
    assert server.ask("/v1/completions", {"prompt": "x", "max_tokens": 1}, key)[0] == 401
    assert server.ask("/health", key=key)[0] == 200


@needs_wheel
@needs_model
@pytest.mark.process
@pytest.mark.engine
@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_stops_a_server_that_is_ready(number: signal.Signals) -> None:
    with started(*loaded()) as one:
        one.ready()
        one.process.send_signal(number)
        assert one.process.wait(PATIENCE_S) == 0


@needs_wheel
@pytest.mark.process
@pytest.mark.engine
@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_ends_a_loading_server_at_once(tmp_path: Path, number: signal.Signals) -> None:
    model = tmp_path / "model.gguf"
    os.mkfifo(model)  # opening it takes until somebody writes: a load that lasts as long as we like
    with started("--model", str(model)) as one:
        one.hear(b"loading model '")
        one.process.send_signal(number)
        assert one.process.wait(PATIENCE_S) == -number


@needs_wheel
@needs_model
@pytest.mark.process
@pytest.mark.engine
def test_an_open_request_does_not_hold_the_stop_up() -> None:
    """llama-server waits here until the client goes, which is not before the end of this test."""
    with started("--model", str(MODEL), "--ctx-size", "8192", "--parallel", "1") as one:
        one.ready()
        host, port = one.url.removeprefix("http://").split(":")
        body = json.dumps({"prompt": "a", "n_predict": -1, "ignore_eos": True}).encode()
        with socket.create_connection((host, int(port)), PATIENCE_S) as client:
            client.sendall(b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            one.hear(b"processing task")
            one.process.terminate()
            assert one.process.wait(PATIENCE_S) == 0
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""


@needs_wheel
@pytest.mark.process
@pytest.mark.engine
def test_it_holds_the_generations_lock_until_it_is_dead(tmp_path: Path) -> None:
    model, lock = tmp_path / "model.gguf", tmp_path / "generation.lock"
    os.mkfifo(model)

    def is_free() -> bool:
        with lock.open() as probe:
            try:
                fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with started("--model", str(model), pass_fds=[held.fileno()]) as one:
            held.close()
            one.hear(b"loading model '")
            assert not is_free()
            one.process.kill()
            one.process.wait(PATIENCE_S)
            assert is_free()


PROXY = """
import subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
print(server.pid, flush=True)
server.wait()
"""


@needs_wheel
@needs_model
@pytest.mark.process
@pytest.mark.engine
@pytest.mark.skipif(sys.platform != "linux", reason="there is no death signal")
def test_behind_the_launcher_it_dies_with_its_proxy() -> None:
    """prctl(2): the death signal outlives an exec, and belongs to the process: threads come and go without it."""
    launcher = [sys.executable, "-I", "-S", str(Path(launcher_file).resolve()), "--warden", "4000000", "--"]
    command = [*launcher, *PROGRAM, "--host", "127.0.0.1", "--port", "0", *loaded()]
    proxy = subprocess.Popen(
        [sys.executable, "-c", PROXY, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    with proxy:
        try:
            assert proxy.stdout is not None
            pid = int(proxy.stdout.readline())
            descriptor = os.pidfd_open(pid)
            try:
                Server(proxy).ready()
                proxy.kill()
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                assert poll.poll(PATIENCE_S * 1000), "the server lives on"
            finally:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                os.close(descriptor)
        finally:
            proxy.kill()


@needs_wheel
@needs_model
@pytest.mark.process
@pytest.mark.engine
def test_it_writes_no_file(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with started(*loaded(), cwd=tmp_path, env={**os.environ, **home}) as one:
        one.ready()
        one.process.terminate()
        assert one.process.wait(PATIENCE_S) == 0
    assert list(tmp_path.rglob("*")) == []
