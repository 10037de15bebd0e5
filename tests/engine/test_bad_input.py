"""What a user can get wrong: one message that names the thing and the next step, the right exit status, nothing started."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, NamedTuple

import pytest

from supervisor.errors import ExitCode
from tests.engine.fronts import OrderFailedError
from tests.engine.kit import Launch
from tests.engine.seen import Deaths, foreign_listener, kill
from tests.support import as_plain_user, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.engine.place import Place

pytestmark = pytest.mark.process


class Expected(NamedTuple):
    """What a message must hold: the thing, and the next step."""

    thing: str
    step: str
    code: ExitCode = ExitCode.ERROR


def refuse_run(place: Place, expected: Expected, environment: Mapping[str, str] | None = None) -> None:
    """`queenright run` refuses, in one message on stderr, and starts nothing."""
    done = place.cli("run", environment=environment)
    assert (done.returncode, done.stdout) == (expected.code, "")
    message = done.stderr
    assert message.startswith("queenright: ")
    assert expected.thing in message
    assert expected.step in message
    assert len(message.splitlines()) <= 3, message
    place.assert_never_started()


# --- models -------------------------------------------------------------------------------------------------------------

MODELS: dict[str, tuple[Callable[[Path, bytes], None], str]] = {
    "missing": (lambda path, whole: None, "does not exist"),
    "empty": (lambda path, whole: path.touch(), "empty"),
    "truncated in its header": (lambda path, whole: _write(path, whole[:40]), ""),
    "truncated in its weights": (lambda path, whole: _write(path, whole[:-16]), ""),
    "not a GGUF": (lambda path, whole: _write(path, b"<html>404 not found</html>" * 20), "GGUF"),
    "a directory": (lambda path, whole: path.mkdir(), "is a directory"),
}


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.parametrize("what", MODELS)
def test_a_model_that_cannot_be_used_is_named(place: Place, what: str) -> None:
    model = place.home / "model.gguf"
    make, word = MODELS[what]
    make(model, place.kit.chat.read_bytes())
    place.configure({"embed": (Launch("embed", place.kit.embed),), "chat": (Launch("chat", model),)})
    done = place.cli("run")
    assert (done.returncode, done.stdout) == (ExitCode.ERROR, "")
    lines = done.stderr.splitlines()
    assert str(model) in lines[0]
    assert word in lines[0]
    assert len(lines) == 2, "what is wrong, and the next step"
    place.assert_never_started()


def test_a_model_that_may_not_be_read_is_named(place: Place) -> None:
    model = place.home / "model.gguf"
    model.write_bytes(place.kit.chat.read_bytes())
    model.chmod(0)
    place.prefix = as_plain_user()
    place.configure({"chat": (Launch("chat", model),)})
    refuse_run(place, Expected(str(model), ""))


def test_a_model_of_the_catalog_that_is_not_here_yet_comes_with_the_command_that_brings_it(place: Place) -> None:
    place.configure({"chat": (Launch("chat", "smollm2-135m"),)})
    refuse_run(place, Expected("smollm2-135m", "queenright model pull smollm2-135m"))
    place.configure({"chat": (Launch("chat", "smollm2-135"),)})
    refuse_run(place, Expected("smollm2-135", "did you mean smollm2-135m"))


def test_a_front_end_gets_the_same_refusal_as_an_error_of_ours(place: Place) -> None:
    place.configure({"chat": (Launch("chat", place.home / "missing.gguf"),)})
    with pytest.raises(OrderFailedError) as refused:
        place.front().open()
    assert refused.value.facts["error"] == "ModelError"
    assert str(place.home / "missing.gguf") in refused.value.facts["what"]
    assert refused.value.facts["next_step"]
    place.assert_never_started()


# --- binaries -----------------------------------------------------------------------------------------------------------

BINARIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "does not exist"),
    "not executable": (lambda path: path.touch(), "is not executable"),
    "a directory": (lambda path: path.mkdir(), "is a directory"),
}


@pytest.mark.parametrize("what", BINARIES)
def test_a_binary_that_cannot_be_used_is_named_with_where_it_was_named(place: Place, what: str) -> None:
    make, words = BINARIES[what]
    binary = place.home / "some-binary"
    make(binary)
    place.configure(engine={"llama_server": str(binary)})
    refuse_run(place, Expected(f"{binary}, {words}", "the configuration"))
    place.configure(engine={"llama_swap": str(binary)})
    refuse_run(place, Expected(f"{binary}, {words}", "the configuration"))
    place.configure(engine={"llama_server": ""})
    variable = "QUEENRIGHT_LLAMA_SERVER"
    refuse_run(place, Expected(f"{binary}, {words}", variable), {variable: str(binary)})


def test_a_binary_that_is_no_program_is_named(place: Place) -> None:
    binary = place.home / "some-binary"
    binary.write_bytes(b"\x7fELF of another machine")
    binary.chmod(0o755)
    place.configure(engine={"llama_server": str(binary)})
    refuse_run(place, Expected(str(binary), "name another binary"))


# --- slots --------------------------------------------------------------------------------------------------------------


def _a_symlink(path: Path) -> None:
    path.with_name("elsewhere").mkdir(0o700)
    path.symlink_to(path.with_name("elsewhere"))


def _of_another_user(path: Path) -> None:
    path.mkdir(0o700)
    os.chown(path, 65534, 65534)


SLOTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a symlink": (_a_symlink, "is a symbolic link"),
    "a file": (lambda path: path.touch(), "is not a directory"),
    "of another user": (_of_another_user, "belongs to user id 65534"),
    "read-only": (lambda path: path.mkdir(0o500), "cannot be written"),
}


@pytest.mark.parametrize("what", SLOTS)
def test_a_slot_that_cannot_be_used_is_refused_by_every_command(place: Place, what: str) -> None:
    if what == "of another user" and os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    make, words = SLOTS[what]
    make(place.slot.path)
    if what == "read-only":
        place.prefix = as_plain_user()
    for command in ("run", "status", "stop", "logs", "events"):
        done = place.cli(command)
        assert (done.returncode, done.stdout) == (ExitCode.ERROR, "")
        assert f"{place.slot.path} {words}" in done.stderr
        assert len(done.stderr.splitlines()) == 2, "what is wrong, and the next step"
    for command in ("status", "stop"):
        done = place.cli(command, "--json")
        facts = json.loads(done.stdout)
        assert done.returncode == facts["exit_code"] == ExitCode.ERROR
        assert facts["error"] == "SlotError"
        assert words in facts["what"]
        assert facts["next_step"]
    with pytest.raises(OrderFailedError) as refused:
        place.front().open()
    assert refused.value.facts["error"] == "SlotError"
    os.chown(place.slot.path, os.geteuid(), -1, follow_symlinks=False)
    assert not (place.slot.path / "warden.lock").exists()


def test_a_slot_given_by_a_relative_path_is_taken_from_where_the_user_stands(place: Place) -> None:
    done = place.cli("status", "--slot", "slot", "--json")
    assert (done.returncode, json.loads(done.stdout)["slot"]) == (ExitCode.NO_ENGINE, str(place.slot.path))


# --- ports --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stranger", ["hangs up", "says nothing"])
def test_a_port_that_somebody_took_meanwhile_is_not_fought_for(place: Place, stranger: str) -> None:
    place.configure({"chat": (Launch("chat"),)})
    front = place.front()
    front.open(deadline=5.0)
    assert front.ask("chat", "before")
    family, was = place.family(), place.group()
    proxy, server = was["proxy"]["port"], was["servers"][0]["port"]
    kill(family.keeper, signal.SIGSTOP)  # so that nothing is rebuilt before the ports are taken
    with Deaths(family.engine.values()) as deaths:
        kill(family.proxies["chat"])
        deaths.wait()
    closes = stranger == "hangs up"
    with foreign_listener(proxy, closes=closes), foreign_listener(server, closes=closes) as heard:
        kill(family.keeper, signal.SIGCONT)
        wait_until(lambda: place.group()["generation"] not in (None, was["generation"]), what="another generation")
        place.wait_state("running")
        now = place.group()
        assert {now["proxy"]["port"], now["servers"][0]["port"]}.isdisjoint({proxy, server})
        assert heard == []
        # The front end still has the address it was given first, and must not send prompt and key there.
        assert front.ask("chat", "after")
        assert heard == []


# --- configuration and command line -------------------------------------------------------------------------------------

BROKEN = {
    "an unknown key": ("[engine]\nkeep_wram = true\n", "keep_wram", "keep_warm"),
    "no TOML": ("[engine\n", "line 1", ""),
    "a wrong type": ('[engine]\nkeep_warm = "yes"\n', "keep_warm", "true or false"),
    "no group": ("[engine]\n", "groups", ""),
    "an unknown kind": (
        '[groups.chat]\nkind = "vlm"\n[[groups.chat.launches]]\nrole = "chat"\nmodel = "smollm2-135m"\n',
        "vlm",
        "llama-swap",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_configuration_that_is_wrong_is_refused_with_file_key_and_what_was_expected(place: Place, what: str) -> None:
    text, thing, step = BROKEN[what]
    place.config.write_text(text)
    done = place.cli("run")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert thing in done.stderr
    assert step in done.stderr
    if what != "an unknown kind":
        assert str(place.config) in done.stderr
    with pytest.raises(OrderFailedError) as refused:
        place.front().open()
    assert refused.value.facts["error"] == "ConfigError"
    place.assert_never_started()


def test_a_configuration_that_is_not_there_is_named_in_words_and_as_data(place: Place) -> None:
    place.config.unlink()
    for command in (["run"], ["status"], ["stop"], ["status", "--json"]):
        done = place.cli(*command)
        assert done.returncode == ExitCode.USAGE
        assert str(place.config) in done.stderr
        assert "queenright init" in done.stderr
        if "--json" in command:
            assert json.loads(done.stdout)["error"] == "ConfigError"


@pytest.mark.parametrize(
    ("words", "thing", "step"),
    [
        (["stats"], "'stats'", "queenright status"),
        (["xyzzy"], "'xyzzy'", "queenright --help"),
        (["status", "--jsn"], "--jsn", "usage: queenright status"),
        (["logs", "--lines", "many"], "many", "usage: queenright logs"),
        (["stop", "now"], "now", "usage: queenright stop"),
    ],
)
def test_a_command_line_that_is_wrong_is_refused_with_what_there_is(
    place: Place, words: list[str], thing: str, step: str
) -> None:
    done = place.cli(*words)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert thing in done.stderr
    assert step in done.stderr
    place.assert_never_started()
