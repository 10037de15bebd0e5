"""docs/guides/openai-python.md and docs/guides/shell.md: two programs that know nothing of each other share one engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from supervisor import identity
from supervisor.control import ControlError
from tests.engine.fronts import PATIENCE
from tests.engine.guide import write_programs
from tests.engine.kit import CHAT, ONE_THREAD, Launch
from tests.engine.place import Place
from tests.engine.seen import Deaths
from tests.support import free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.kit import Kit

pytestmark = [pytest.mark.process, pytest.mark.engine]

QUESTION = 'What do "bees" make?'


@pytest.fixture
def real(real_kit: Kit) -> Iterator[Place]:
    """A place with one real model, and both guides' programs in its directory."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    place = Place(real_kit)
    place.configure(
        {"chat": (Launch("chat", CHAT, arguments=ONE_THREAD, context=1024),)},
        gateway={"listen": f"127.0.0.1:{free_port()}"},
    )
    written = [path for page in ("openai-python.md", "shell.md") for path in write_programs(page, place.home)]
    assert [path.name for path in written] == ["chat.py", "ask.sh"]
    try:
        yield place
    finally:
        place.close()


@pytest.fixture
def started(real: Place) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """Both, at the same time, as the guides start them; but the script begins with a line on its standard input, so that
    it has not ended before the other one, which has more to import, is there."""
    facts = {"cwd": real.home, "env": real.environment, "text": True, "start_new_session": True}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    script = real.command("exec", "--", "sh", "-c", 'read -r _; exec sh ask.sh "$1"', "sh", QUESTION)
    programs = (
        subprocess.Popen([sys.executable, "chat.py", QUESTION], **facts, **pipes),  # type: ignore[call-overload]
        subprocess.Popen(script, **facts, **pipes),  # type: ignore[call-overload]
    )
    yield programs
    for program in programs:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)  # a curl that is left would hold the pipes
        program.communicate(timeout=PATIENCE)


def members_of(place: Place) -> set[str]:
    """Who uses the engine; nobody while there is none."""
    try:
        return {member["name"] for member in place.snapshot()["members"]}
    except ControlError:
        return set()


@pytest.mark.long
def test_a_python_program_and_a_shell_script_share_one_real_engine(
    real: Place, started: tuple[subprocess.Popen[str], subprocess.Popen[str]]
) -> None:
    python, shell = started
    wait_until(lambda: len(members_of(real)) == 2, within=PATIENCE, what="both are members")
    family = real.family()
    assert shell.stdin is not None
    shell.stdin.write("\n")
    shell.stdin.flush()
    below = identity.descendants(family.warden.pid)
    assert {family.warden, *below} == set(family.everybody)  # one keeper, one proxy, one server
    with Deaths(family.everybody) as deaths:
        wait_until(
            lambda: python.poll() is not None or shell.poll() is not None, within=PATIENCE, what="one of them has ended"
        )
        alive, other_runs = deaths.alive(), None in (python.poll(), shell.poll())  # in this order
        assert len(alive) == len(family.everybody) or not other_runs
        told, complaint = python.communicate(timeout=PATIENCE)
        assert (python.returncode, complaint) == (0, "")
        assert told.strip()  # how much it is, is the model's to choose
        said, complaint = shell.communicate(timeout=PATIENCE)
        assert shell.returncode == 0, complaint
        answer = json.loads(said)
        assert answer["choices"][0]["finish_reason"] in ("length", "stop")
        assert answer["choices"][0]["message"]["content"]
        deaths.wait()
    rungs = [note["rung"] for note in map(json.loads, real.slot.events.read_text().splitlines()) if "rung" in note]
    assert sorted(rung for rung in rungs if rung not in ("wait", "held")) == ["bind", "build"]
    real.assert_nothing_left()
