"""The example of docs/guides/new-kind.md: found by its entry point, and what it starts is served."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
import trio

from supervisor import config, kinds, resolving
from supervisor.errors import QueenrightError
from supervisor.kinds import PROXY, Answer, Birth
from tests.support import ROOT, free_port, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

EXAMPLE = ROOT / "docs" / "examples" / "queenright-static"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an installer leaves it: the module, and the entry points that its pyproject.toml says."""
    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = tmp_path / "queenright_static-1.0.dist-info"
    folder.mkdir()
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in each.items()) for group, each in points.items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "queenright_static", raising=False)
    kinds.find.cache_clear()


@pytest.mark.usefixtures("installed")
def test_the_example_kind_is_found_by_its_entry_point_and_serves(tmp_path: Path) -> None:
    text = '[groups.web]\nkind = "static"\noptions = { folder = "." }\n[[groups.web.launches]]\nrole = "web"\nmodel = "none"\n'
    (spec,) = resolving.resolve(config.parse(text, tmp_path / "queenright.toml")).groups
    kind = kinds.find("static")
    (name,) = kind.port_names(spec)
    birth = Birth("ab12", {name: free_port()}, tmp_path / "web.ab12.json", "key", "generation-key", 1)
    assert trio.run(kind.probe, spec, birth, PROXY) is Answer.REFUSED
    command = kind.command(spec, birth)
    with subprocess.Popen(
        command.argv, env=dict(command.environment), cwd=command.workdir, stderr=subprocess.DEVNULL
    ) as server:
        try:
            wait_until(
                lambda: trio.run(kind.probe, spec, birth, PROXY) is Answer.ANSWERED, within=30, what="it answers"
            )
        finally:
            server.terminate()


@pytest.mark.usefixtures("installed")
def test_what_is_wrong_with_its_options_is_said_in_its_own_words(tmp_path: Path) -> None:
    text = '[groups.web]\nkind = "static"\n[[groups.web.launches]]\nrole = "web"\nmodel = "none"\n'
    with pytest.raises(QueenrightError, match="expected `folder`"):
        resolving.resolve(config.parse(text, tmp_path / "queenright.toml"))
