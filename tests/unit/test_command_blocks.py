"""Every block that a reader could type is run by a test, or says why not; and every `queenright` line of it parses."""

from __future__ import annotations

import argparse
import ast
import itertools
import re
import shlex

import pytest

from supervisor import cli
from tests.pages import RUNNABLE, Block, blocks, pages
from tests.support import ROOT

PAGES = [str(path.relative_to(ROOT)) for path in pages()]
TYPED = [block for page in PAGES for block in blocks(page) if block.language in RUNNABLE]
COMMANDS = re.compile(
    r"^(?:\$ |(?:sudo |\.venv/bin/)?(?:queenright|make|curl|pip|uv|systemctl|loginctl|tmux|podman|docker|git|python3?) )",
    re.M,
)
"""How a line begins that somebody would type."""
CI = (".ci/run",)
OUTPUT = "docs/reference/output.md"
"""It shows a command that is none, too, and its test runs them all."""
HELP = ROOT / "docs" / "reference" / "commands.md"


def used(command: str) -> list[list[str]]:
    """Each use of `queenright` in a line, as words, up to what a shell would take for itself."""
    found = []
    for line in re.findall(r"(?<![-\w])queenright ([a-z].*)", command):
        inner = line.partition("'")[0] if line.count("'") % 2 else line  # the end of a word in quotes around it
        words = shlex.shlex(inner, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        found.append(list(itertools.takewhile(lambda word: not set(word) <= set("();<>|&"), words)))
    return found


def queenright_lines() -> list[tuple[str, list[str]]]:
    """With where it stands: in a block that somebody types, in the text, or in an example of a command's own help."""
    blocks_of_others = [block for block in TYPED if block.page != OUTPUT]
    found = [(block.name, words) for block in blocks_of_others for command in block.commands for words in used(command)]
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
        if page not in (OUTPUT, "CHANGELOG.md") and ROOT / page != HELP:
            inline = re.findall(r"`(queenright [^`]*[a-zA-Z])`", text)
            found += [
                (page, words) for line in inline for words in used(line.replace("\n", " ")) if "--help" not in words
            ]
    for line in HELP.read_text(encoding="utf-8").splitlines():
        if line.startswith("      queenright "):
            found += [(line.strip(), words) for words in used(line.strip().partition("   ")[0])]
    return found


def exists(test: str, page: str) -> bool:
    """Whether `path::function` is a test whose module speaks of the page, as one that runs its blocks does."""
    path, _, name = test.partition("::")
    if not (ROOT / path).is_file():
        return False
    text = (ROOT / path).read_text(encoding="utf-8")
    names = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    return name in names and page.rpartition("/")[2] in text


@pytest.mark.parametrize("block", TYPED, ids=lambda block: block.name)
def test_each_block_is_run_by_a_test_or_says_why_not(block: Block) -> None:
    assert block.test or block.why_not, "name the test that runs it: see tests/pages.py"
    if block.test in CI:
        steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
        for command in block.commands:
            word = command.partition("#")[0].strip()
            assert word in CI or re.search(rf"^step \w+ \d+ {word}\b", steps, flags=re.M), (
                f"{word} is no step of .ci/run"
            )
    elif block.test:
        assert exists(block.test, block.page), f"no test {block.test} that reads {block.page}"


@pytest.mark.parametrize("page", PAGES)
def test_what_is_typed_stands_in_a_block_that_says_so(page: str) -> None:
    if ROOT / page == HELP:
        return  # made of --help
    text = (ROOT / page).read_text(encoding="utf-8")
    others = [block.text for block in blocks(page) if block.language not in RUNNABLE]
    indented = re.findall(r"(?:^\n(?: {4}.*\n)+)", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), flags=re.M)
    for block in [*others, *(re.sub(r"^ {4}", "", block, flags=re.M) for block in indented)]:
        found = COMMANDS.search(block)
        assert found is None, f"a command in a block without a language: {block[found.start() :].splitlines()[0]}"


def test_each_command_has_the_words_and_options_that_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    lines = queenright_lines()
    assert len(lines) > 20
    for where, words in lines:
        command = cli._find(words[0])
        parser = argparse.ArgumentParser(prog=where)
        command.configure(parser)
        try:
            parser.parse_args(words[1:])
        except SystemExit:
            said = capsys.readouterr().err
            assert where in PAGES, said  # a text may leave out what is not its subject
            assert "arguments are required" in said, f"{where}: `queenright {' '.join(words)}`: {said}"


def test_a_block_that_says_nothing_is_found() -> None:
    unmarked = Block("README.md", 1, "sh", "make nothing\n", None, None)
    with pytest.raises(AssertionError, match="name the test"):
        test_each_block_is_run_by_a_test_or_says_why_not(unmarked)
    for test in (".ci/run", "tests/unit/test_command_blocks.py::test_none", "tests/none.py::test_x"):
        with pytest.raises(AssertionError, match=r"no step|no test"):
            test_each_block_is_run_by_a_test_or_says_why_not(Block("README.md", 1, "sh", "make nothing\n", test, None))
