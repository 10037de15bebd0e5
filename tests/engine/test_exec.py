"""`queenright exec`: any program is a user of the engine, and lives and dies with the command that runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import identity
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, kill
from tests.fakes.llama_server import story
from tests.support import free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.place import Place

pytestmark = pytest.mark.process

ASKER = """
import json, os, sys, urllib.request, urllib.error, time
for line in sys.stdin:
    body = json.dumps({"model": os.environ["QUEENRIGHT_MODEL"], "prompt": "bees", "max_tokens": 4}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/completions", body, headers)
    deadline = time.monotonic() + 60
    while True:
        try:
            answer = json.load(urllib.request.urlopen(request, timeout=60))
            break
        except OSError:  # it has no transport of ours: a curl would be told to retry as well
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    print(json.dumps([os.environ["OPENAI_BASE_URL"], answer["choices"][0]["text"]]), flush=True)
"""
"""What a shell script with curl does: one question for each line it reads."""

WHOLE = "".join(story("bees", 0, 4))


@pytest.fixture
def one_group(place: Place) -> Iterator[Place]:
    place.configure({"chat": (Launch("chat"),)})
    yield place
    place.wait_empty()


def start(place: Place, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        place.command("exec", "--", *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place.home,
        env=place.environment | environment,
    )


def question(program: subprocess.Popen[str]) -> list[str]:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("\n")
    program.stdin.flush()
    line = program.stdout.readline()
    assert line, program.stderr.read() if program.stderr else ""
    answer: list[str] = json.loads(line)
    return answer


def end(program: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = program.communicate(timeout=60)
    return program.returncode, errors


@pytest.mark.parametrize(("name", "status", "word"), [("no-such-program", 127, "not found"), ("/etc", 126, "not exec")])
def test_what_cannot_be_run_starts_no_engine(place: Place, name: str, status: int, word: str) -> None:
    done = place.cli("exec", "--", name)
    assert done.returncode == status
    assert word in done.stderr
    assert done.stderr.count("\n") == 1
    place.assert_never_started()


def test_a_role_that_is_not_served_is_said(one_group: Place) -> None:
    done = one_group.cli("exec", "--role", "embed", "--", "true")
    assert done.returncode == 2
    assert "embed" in done.stderr


@pytest.mark.long
def test_a_program_like_curl_works_over_kills_of_proxy_and_warden(one_group: Place) -> None:
    place = one_group
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    program = start(place, sys.executable, "-c", ASKER, **nowhere)
    url, text = question(program)
    assert text == WHOLE
    before = place.family()
    kill(before.proxies["chat"])
    assert question(program) == [url, WHOLE]
    family = place.family()
    assert family.proxies != before.proxies
    with Deaths(family.everybody) as deaths:
        kill(family.warden)
        deaths.wait(within=5.0)
    # Its member rebuilds the engine, on the same port and with the same key.
    assert question(program) == [url, WHOLE]
    place.family()
    assert end(program)[0] == 0


ONE_TRY = """
import json, os, sys, urllib.request
for line in sys.stdin:
    path, model = line.split()
    body = {"model": model, "prompt": "bees", "input": "bees", "max_tokens": 4}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    answer = json.load(urllib.request.urlopen(request, timeout=60))
    print(json.dumps([os.environ["OPENAI_BASE_URL"], os.environ["QUEENRIGHT_MODEL"], answer["object"]]), flush=True)
"""
"""A program that asks once, and takes any error for the last word."""


@pytest.mark.parametrize("is_keyed", [pytest.param(False, marks=pytest.mark.long), True])
def test_through_the_gateway_a_program_that_asks_once_lives_through_a_kill__and_has_all_roles_at_one_url(
    place: Place, is_keyed: bool
) -> None:
    keys = place.home / "gateway.keys"
    keys.touch(0o600)
    keys.write_text("sk-of-this-test-alone-0123456789abcdef\n")
    url = f"http://127.0.0.1:{free_port()}"
    gateway = {"listen": url.removeprefix("http://"), **({"api_key_file": str(keys)} if is_keyed else {})}
    place.configure({"chat": (Launch("chat"),), "embed": (Launch("embed", place.kit.embed),)}, gateway=gateway)

    def ask(program: subprocess.Popen[str], path: str, model: str) -> list[str]:
        assert program.stdin is not None
        program.stdin.write(f"{path} {model}")
        return question(program)

    program = start(place, sys.executable, "-c", ONE_TRY)
    try:
        assert ask(program, "/completions", "chat") == [f"{url}/v1", "chat", "text_completion"]
        assert ask(program, "/embeddings", "embed") == [f"{url}/v1", "chat", "list"]
        for proxy in ("chat", "embed"):
            kill(place.family().proxies[proxy])
        assert ask(program, "/embeddings", "embed")[2] == "list"
        assert ask(program, "/completions", "chat")[2] == "text_completion"
        second = start(place, sys.executable, "-c", ONE_TRY)  # by the ticket that the first one left
        assert ask(second, "/completions", "chat") == [f"{url}/v1", "chat", "text_completion"]
        assert end(second)[0] == 0
    finally:
        assert end(program)[0] == 0
    place.wait_empty()


@pytest.mark.long
def test_the_exit_status_is_the_programs(one_group: Place) -> None:
    place = one_group
    keeper = place.member("keeps-it-up")
    assert place.cli("exec", "--", "sh", "-c", "exit 7").returncode == 7
    assert place.cli("exec", "--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    assert place.cli("exec", "--", "sh", "-c", "kill -KILL $$").returncode == -signal.SIGKILL
    done = place.cli("exec", "--", "sh", "-c", "echo $OPENAI_BASE_URL $QUEENRIGHT_ROLE")
    assert done.stdout.endswith("/v1 chat\n")
    keeper.end()


@pytest.mark.long
def test_signals_reach_the_program_and_its_end_is_ours(one_group: Place) -> None:
    place = one_group
    keeper = place.member("keeps-it-up")
    script = (
        "trap 'echo term; exit 3' TERM; trap 'echo hup' HUP; trap 'echo int' INT; echo $$; while :; do sleep 0.05; done"
    )
    program = start(place, "sh", "-c", script)
    assert program.stdout is not None
    pid = int(program.stdout.readline())
    program.send_signal(signal.SIGINT)  # as a terminal sends it to both: ours is not ended by it, nor is it sent on
    program.send_signal(signal.SIGHUP)
    assert program.stdout.readline() == "hup\n"
    os.kill(pid, signal.SIGINT)
    assert program.stdout.readline() == "int\n"
    program.send_signal(signal.SIGTERM)
    assert program.stdout.readline() == "term\n"
    assert end(program)[0] == 3

    program = start(place, "sh", "-c", "echo $$; exec sleep 100")
    assert program.stdout is not None
    child = identity.of(int(program.stdout.readline()))
    assert child is not None
    program.kill()
    end(program)
    wait_until(lambda: identity.liveness(child) is identity.Liveness.DEAD, what="the program dies with its exec")
    keeper.end()


def test_who_looks_at_the_members_sees_the_program_and_none_of_its_arguments(one_group: Place) -> None:
    program = start(one_group, "sh", "-c", "echo up; read _; exit 0", "secret-argument")
    assert program.stdout is not None
    assert program.stdout.readline() == "up\n"
    assert [member["name"] for member in one_group.snapshot()["members"]] == ["exec sh"]
    assert "secret-argument" not in one_group.slot.events.read_text()
    assert end(program)[0] == 0


@pytest.mark.long
def test_what_is_waited_for_is_said(one_group: Place) -> None:
    assert one_group.cli("hold", "driver update").returncode == 0
    program = start(one_group, "true")
    assert program.stderr is not None
    assert "driver update" in program.stderr.readline()
    assert one_group.cli("release").returncode == 0
    assert end(program)[0] == 0


def test_help_has_an_example(place: Place) -> None:
    done: Any = place.cli("exec", "--help")
    assert "example:" in done.stdout
