"""PyPI's `supervisor` (supervisord) owns the import name `supervisor` too, and machines with GPUs often have it.

Both live in one environment as long as no file of ours is one of theirs but for `__init__.py`, and nothing stands in
that one: whichever is installed second writes it.
"""

from __future__ import annotations

import ast
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.packaging.helpers import ROOT, Environment, assert_queenright_works, project

if TYPE_CHECKING:
    from pathlib import Path

THEIRS = "supervisor==4.3.0"
THEIR_MODULES = frozenset(
    {
        "childutils",
        "compat",
        "confecho",
        "datatypes",
        "dispatchers",
        "events",
        "http",
        "http_client",
        "loggers",
        "options",
        "pidproxy",
        "poller",
        "process",
        "rpcinterface",
        "socket_manager",
        "states",
        "supervisorctl",
        "supervisord",
        "templating",
        "web",
        "xmlrpc",
    }
)
THEIR_FOLDERS = frozenset({"medusa", "scripts", "skel", "tests", "ui"})
THEIR_COMMANDS = frozenset({"supervisord", "supervisorctl", "pidproxy", "echo_supervisord_conf"})


def test_no_module_of_ours_has_a_name_of_theirs() -> None:
    ours = {path.stem if path.suffix == ".py" else path.name for path in (ROOT / "supervisor").iterdir()}
    assert not ours & (THEIR_MODULES | THEIR_FOLDERS | {"version.txt"})


def test_no_command_of_ours_has_a_name_of_theirs() -> None:
    assert not set(project()["project"]["scripts"]) & THEIR_COMMANDS


def test_nothing_of_ours_stands_in_the_shared_init() -> None:
    (only,) = ast.parse((ROOT / "supervisor" / "__init__.py").read_text()).body
    assert isinstance(only, ast.Expr)
    assert isinstance(only.value, ast.Constant)
    assert isinstance(only.value.value, str)


@pytest.mark.long
@pytest.mark.parametrize("ours_first", [True, False], ids=["ours-then-theirs", "theirs-then-ours"])
def test_both_commands_work_whichever_was_installed_last(
    wheel: Path, dependencies: Environment, tmp_path: Path, *, ours_first: bool
) -> None:
    environment = Environment(tmp_path / "venv", extra_site=dependencies.site)
    steps = [["--no-deps", str(wheel)], [THEIRS]]
    for arguments in steps if ours_first else reversed(steps):
        environment.install(*arguments)

    assert (environment.site / "supervisor" / "supervisord.py").is_file()
    theirs = environment.run("supervisord", "--version")
    assert (theirs.returncode, theirs.stdout.strip()) == (0, "4.3.0"), theirs.stdout + theirs.stderr
    assert_queenright_works(environment, tmp_path / "slot")


@pytest.mark.long
def test_the_one_file_both_own_is_the_init(wheel: Path, tmp_path: Path) -> None:
    """Against the real wheel, so that the lists above cannot grow old unseen."""
    environment = Environment(tmp_path / "venv")
    environment.install("--no-deps", THEIRS)
    ours = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    theirs = {str(path.relative_to(environment.site)) for path in environment.site.rglob("*.py")}
    assert theirs & ours == {"supervisor/__init__.py"}
