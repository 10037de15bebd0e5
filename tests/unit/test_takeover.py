"""Asking a server to end: whom the token is told, and what an answer means. The servers are threads of the test."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from supervisor import identity, takeover
from supervisor.holders import Holder
from supervisor.ports import Owner, Ownership
from supervisor.takeover import ask
from tests.support import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "server.token"
    path.write_text("the-token\n")
    path.chmod(0o600)
    return path


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """Somebody who listens, and reads one request before `answer`; its URL, and what it heard."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                heard.append(connection.recv(65536))
                try:
                    answer(connection)
                except OSError:
                    return

        thread = threading.Thread(target=run)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        assert not thread.is_alive()


def holder(url: str | None, token: Path) -> Holder:
    return Holder(identity.own(), "other", 0.0, "/data", url, str(token))


def replies(text: str) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(text.replace("\n", "\r\n").encode())


def test_it_posts_with_the_holders_token(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with server(replies("HTTP/1.1 202 Accepted\ncontent-length: 0\n\n")) as (url, heard):
        answer = ask(holder(f"{url}/", token))
    assert answer.agreed, answer
    assert "202" in answer.said
    lines = heard[0].decode().split("\r\n")
    assert lines[0] == "POST /api/shutdown HTTP/1.1"
    assert "Authorization: Bearer the-token" in lines
    assert f"Host: {url.removeprefix('http://')}" in lines


@pytest.mark.parametrize("status", ["401 Unauthorized", "404 Not Found", "302 Found\nlocation: http://127.0.0.1:1/"])
def test_a_refusal_is_an_answer(token: Path, status: str) -> None:
    with server(replies(f"HTTP/1.1 {status}\ncontent-length: 5\n\nno\tno")) as (url, _):
        answer = ask(holder(url, token))
    assert not answer.agreed
    assert f"{status[:3]} no no" in answer.said


@pytest.mark.parametrize("content", ["", "garbage\n\n"])
def test_no_answer_is_an_answer(token: Path, content: str) -> None:
    with server(replies(content)) as (url, _):
        answer = ask(holder(url, token))
    assert not answer.agreed
    assert url in answer.said


@pytest.mark.parametrize("trickles", [False, True])
def test_who_does_not_answer_is_not_waited_for(token: Path, trickles: bool) -> None:
    told = threading.Event()

    def slow(connection: socket.socket) -> None:
        while not told.wait(0.02):
            if trickles:
                connection.sendall(b"H")

    with server(slow) as (url, _):
        began = time.monotonic()
        answer = ask(holder(url, token), limit_s=0.3)
        took = time.monotonic() - began
        told.set()
    assert not answer.agreed
    assert url in answer.said
    assert took < 5


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.1:8080",
        "http://127.0.0.1.example.org:8080",
        "http://user@127.0.0.1:8080",
        "http://127.0.0.1:8080@192.0.2.1",
        "http://127.0.0.1:99999",
        "http://[::ffff:192.0.2.1]:80",
        "ftp://127.0.0.1",
        "http://0x7f000001",
        "https://127.0.0.1",
        "nonsense",
        "",
    ],
)
def test_only_this_machine_is_asked(token: Path, url: str) -> None:
    answer = ask(holder(url, token))
    assert not answer.agreed
    assert "not plain HTTP on this machine" in answer.said


def test_whoever_took_the_holders_port_is_not_told_the_token(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.ports.owned_by", lambda *_: Ownership(Owner.FOREIGN))
    with server(replies("HTTP/1.1 202 A\ncontent-length: 0\n\n")) as (url, heard):
        assert "another process listens" in ask(holder(url, token)).said
    assert heard == []
    monkeypatch.undo()
    assert "nobody listens" in ask(holder(f"http://127.0.0.1:{free_port()}", token)).said


@pytest.mark.parametrize("flaw", ["others may read it", "link", "missing", "empty", "binary", "pipe"])
def test_a_token_file_must_be_ours_alone(token: Path, flaw: str) -> None:
    if flaw == "others may read it":
        token.chmod(0o640)
    elif flaw == "link":
        token.rename(token.with_name("elsewhere"))
        token.symlink_to(token.with_name("elsewhere"))
    elif flaw == "empty":
        token.write_bytes(b"\n")
    elif flaw == "binary":
        token.write_bytes(b"\xff")
    else:
        token.unlink()
        if flaw == "pipe":
            os.mkfifo(token, 0o600)
    with pytest.raises(ValueError, match="its token file"):
        takeover.read_token(str(token))
    with server(replies("HTTP/1.1 202 A\ncontent-length: 0\n\n")) as (url, heard):
        answer = ask(holder(url, token))
    assert not answer.agreed
    assert "its token file" in answer.said
    assert heard == []


def test_no_other_secret_of_ours_is_sent(token: Path) -> None:
    token.rename(token.with_name("api-key"))
    with server(replies("HTTP/1.1 202 A\ncontent-length: 0\n\n")) as (url, heard):
        answer = ask(holder(url, token.with_name("api-key")))
    assert not answer.agreed
    assert "api-key is none" in answer.said
    assert heard == []


def test_another_users_token_file_is_not_used(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(ValueError, match="not a file of ours"):
        takeover.read_token(str(token))
