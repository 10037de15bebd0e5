"""docs/reference/output.md on a real engine: each command of it, in its order, prints what stands below it.

And the capture of a watch in README.md is of such a screen. QUEENRIGHT_WRITE_PAGES=1 writes anew what stands there. What differs from run to run is levelled before it is compared, and
of what differs from machine to machine (a plan, a diagnosis) the names of the lines alone are held.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisor import cli
from tests.engine.place import Place
from tests.pages import Block, blocks, of_test
from tests.support import ROOT, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engine.kit import Kit
    from tests.engine.terminal import Running

NAME = "docs/reference/output.md"
PAGE = ROOT / NAME
README = ROOT / "README.md"
THIS = "tests/engine/test_output_page.py::test_each_command_prints_what_the_page_shows"
WRITE = "QUEENRIGHT_WRITE_PAGES"
ELSEWHERE = {
    "demo": "README.md shows it, and makes it run",
    "agents": "docs/guides/four-agents.md shows it; it takes minutes",
}
"""Commands that the page does not show."""
PORT = "11411"

LABELS = re.compile(r"^(?:ok|note|warn\w*|bad|fail\w*)? *([A-Za-z][\w /:-]*?)(?=  |:|$)")
"""What a line is about, in a plan or a diagnosis."""
BY_LABEL = ("plan", "explain", "doctor", "logs")
"""Their lines depend on the machine, or are llama-server's."""
SUBSET = ("run", "events", "soak", "bench")
"""What happened first, and what a busy machine adds, differs: each line of the page has to be printed, in any order."""

OF_THE_MACHINE = ("this machine was busy", "machine/sys/", "queenright: waiting for ")
"""Words of lines that are there on some machines only."""

LEVELLED: tuple[tuple[str, str], ...] = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?", "TIME"),
    (r"\d\d:\d\d:\d\d", "TIME"),
    (r"/[\w./-]+", "PATH"),
    (r"\b[0-9a-f]{16,}\b", "HEX"),
    (r"loading[^,]*(?:, [\d.]+ of [\d.]+ MiB)?", "loading"),
    (r"-?\b\d[\d.,]*(?: (?:[KMG]iB|[kMG]B|ms|s|min|h|%)(?![\w/]))?", "N"),
    (r"\b(complete)\b.*", r"\1"),
    (r": (?:met|missed)(?:, but not surely)?", ": met"),
    (r"-+", "-"),
    (r"[ \t]+", " "),
)


def levelled(text: str) -> list[str]:
    """Lines without what differs from run to run."""
    for pattern, to in LEVELLED:
        text = re.sub(pattern, to, text)
    return [line.strip() for line in text.strip().splitlines()]


def labels(text: str) -> set[str]:
    """What the lines are about."""
    found = (LABELS.match(line.strip()) for line in text.splitlines())
    return {match[1] for match in found if match is not None}


def shown(block: Block) -> tuple[str, str]:
    """The command, and what stands below it."""
    command, _, below = block.text.partition("\n")
    return command.removeprefix("$ "), below


def compare(command: str, said: str, below: str) -> None:
    """Raises AssertionError."""
    word = command.split()[1]
    if word in BY_LABEL and "--bundle" not in command:
        missing = labels(below) - labels(said) if word != "logs" else set()
        assert said.strip(), command
        assert not missing, f"{command}: no line is about {missing} any more:\n{said}"
    elif word in SUBSET or "--bundle" in command:
        gone = set(levelled(below)) - set(levelled(said))
        assert not gone, f"{command}: these lines of the page were not printed: {gone}\n{said}"
    else:
        assert levelled(said) == levelled(below), f"{command}:\n{said}"


@pytest.fixture
def reader(real_kit: Kit) -> Iterator[Place]:
    """Whose slot and configuration are where a user's are, and who has a manifest of three small files."""
    place = Place(real_kit)
    place.use_slot(place.home / ".local" / "state" / "queenright" / "slot")
    models, origin, lines = place.home / "models", place.home / "origin", []
    models.mkdir()
    origin.mkdir()
    for name in ("chat", "old", "new"):
        content = f"the weights of {name}\n".encode() * 4096
        (origin / f"{name}.gguf").write_bytes(content)
        (models / f"{name}.gguf").write_bytes(content if name != "chat" else content.swapcase())
        lines += ["[[file]]", f'path = "models/{name}.gguf"', f"size = {len(content)}"]
        lines += [f'sha256 = "{hashlib.sha256(content).hexdigest()}"', f'source = "{origin}/{name}.gguf"']
    (place.home / "queenright.payload.toml").write_text("\n".join(lines) + "\n")
    try:
        yield place
    finally:
        place.close()


def mild(place: Place, text: str, port: str) -> str:
    """What belongs to this machine alone is named as a reader's would be."""
    bin_folder = str(Path(sys.executable).parent)
    for ours, theirs in (
        (bin_folder, "/home/me/queenright/.venv/bin"),
        (str(place.kit.cache), "/home/me/.cache/queenright"),
        (str(place.home), "/home/me"),
        (str(ROOT), "/home/me/queenright"),
        (f":{port}", f":{PORT}"),
        ("user id 0", "user id 1000"),
    ):
        text = text.replace(ours, theirs)
    text = re.sub(r"(Linux \d+\.\d+)\S*", r"\1", text)
    lines = (line.rstrip() for line in text.replace("\r", "").strip().splitlines())
    return "\n".join(line for line in lines if not any(word in line for word in OF_THE_MACHINE))


@pytest.mark.long
@pytest.mark.process
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_each_command_prints_what_the_page_shows(reader: Place) -> None:
    port = str(free_port())
    environment = reader.environment | {"COLUMNS": "100"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    running: Running | None = None
    texts: dict[Block, str] = {}
    the_run: Block | None = None
    for block in of_test(NAME, THIS):
        command, _ = shown(block)
        if command == "queenright run" and the_run is None:
            the_run, running = block, reader.run()
            continue
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=reader.home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        texts[block] = done.stdout
        if command == "queenright doctor" and "devices: none" not in done.stdout:
            pytest.skip("the page shows a machine without a GPU")
        if command == "queenright init":
            text = reader.config.read_text(encoding="utf-8")
            reader.config.write_text(text.replace(f'# listen = "127.0.0.1:{PORT}"', f'listen = "127.0.0.1:{port}"'))
        if command == "queenright stop" and running is not None:
            assert the_run is not None
            running.wait()
            texts[the_run], running = running.said(), None
    said = {block: mild(reader, text, port) for block, text in texts.items()}
    if os.environ.get(WRITE):
        at, parts, page = 0, [], PAGE.read_text(encoding="utf-8")
        for block, text in sorted(said.items(), key=lambda one: one[0].line):
            start = page.index(f"```console\n{block.text}```", at)
            parts.append(f"{page[at:start]}```console\n$ {shown(block)[0]}\n{text}\n```")
            at = start + len(f"```console\n{block.text}```")
        PAGE.write_text("".join([*parts, page[at:]]), encoding="utf-8")
        return
    for block, text in said.items():
        compare(shown(block)[0], text, shown(block)[1])
    watch = README.read_text(encoding="utf-8").partition("`queenright status --watch`, on a terminal:\n\n")[2]
    *screen, now = watch.partition("\n\n")[0].splitlines()
    status = next(text for block, text in said.items() if shown(block)[0] == "queenright status" and "running" in text)
    assert levelled("\n".join(screen)) == levelled(status)
    assert "Ctrl-C ends this" in now


def test_every_command_is_shown() -> None:
    there = {shown(block)[0].split()[1] for block in blocks(NAME) if block.language == "console"}
    missing = {*cli.CORE, *cli._added()} - there - ELSEWHERE.keys()
    assert not missing, f"{NAME} shows nothing of {sorted(missing)}: add `$ queenright ...` there, and write it anew"


def test_another_output_is_not_what_the_page_shows() -> None:
    compare("queenright status", "chat   running for 8 s", "chat   running for 12 min")
    compare("queenright events", "b: down\na: up", "a: up")
    compare("queenright doctor", "ok   memory: 1 of 2\nbad  disk: full", "ok   memory: 4 of 4")
    for command, said in (("status", "chat   down"), ("events", "a: down"), ("doctor", "ok  disk: full")):
        with pytest.raises(AssertionError):
            compare(f"queenright {command}", said, "memory   running")
