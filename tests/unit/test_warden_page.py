"""The page on the warden's protocol says what the code does: same commands, events, fields, settings, limits."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from supervisor import records, warden
from supervisor.contract import EngineSpec, GroupSpec, LaunchSpec

ROOT = Path(__file__).resolve().parents[2]
WARDEN = ROOT / "supervisor" / "warden.py"
STUB = ROOT / "supervisor" / "detach_stub.py"
PAGE = ROOT / "docs" / "reference" / "warden-protocol.md"


def commands() -> set[str]:
    tree = ast.parse(WARDEN.read_text(encoding="utf-8"))
    return {
        node.name.removeprefix("do_")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("do_")
    }


def events() -> dict[str, set[str]]:
    """Each event with its fields: of `send(ev=...)`, and of hello and row, which are made from lists of names."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(WARDEN.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            facts = {word.arg: word.value for word in node.keywords if word.arg is not None}
            if isinstance(event := facts.pop("ev", None), ast.Constant):
                found[str(event.value)] = set(facts)
            elif ast.unparse(node.func) == "dict" and facts:
                hello = set(facts)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROW":
            row = set(ast.literal_eval(node.value))
    found["hello"] |= hello
    found["row"] |= row
    return found


def rows(heading: str) -> dict[str, str]:
    """The table under a heading of the page: first column -> the second."""
    section = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (text,) = (part for part in section if part.startswith(heading + "\n"))
    found = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, flags=re.MULTILINE)
    return dict(found)


def test_the_page_names_every_command_and_no_other() -> None:
    assert set(rows("Commands")) == commands()


def test_the_page_names_every_event_with_its_fields_and_no_other() -> None:
    assert {event: set(re.findall(r"`(\w+)`", fields)) for event, fields in rows("Events").items()} == events()


def test_the_page_names_every_setting_and_no_other() -> None:
    source = WARDEN.read_text(encoding="utf-8") + STUB.read_text(encoding="utf-8")
    used = set(re.findall(r'settings(?:\.get\(|\.pop\(|\[)"(\w+)"', source)) | {"sweep_limit", "stop_limit"}
    assert set(rows("Settings")) == used


def test_the_page_has_the_limits_of_the_code() -> None:
    tree = ast.parse(WARDEN.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    values: dict[str, str] = {}
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
        ):
            names = [ast.unparse(name) for name in node.targets[0].elts]
            values |= dict(zip(names, map(ast.unparse, node.value.elts), strict=True))
    assert (values["MAX_LINE"], values["MAX_NOTE"], values["MAX_BACKLOG"]) == ("1 << 20", "512 << 10", "4 << 20")
    for said in ("1 MiB", "512 KiB", "4 MiB", f"`{values['MARKER'][1:-1]}`", f"protocol {values['PROTOCOL']}"):
        assert said in page, said


def test_the_contract_of_two_hundred_groups_fits_into_a_note() -> None:
    """A keeper that follows has it from there alone once it was changed. A hundred did not fit into 64 KiB."""
    groups = tuple(
        GroupSpec(
            name=f"group-{number}",
            kind="command",
            launches=(LaunchSpec(f"role-{number}", "a-model", f"/home/somebody/models/{'m' * 60}.gguf", 4096, 1),),
            pin=f"command={'0' * 64}",
            options={name: "x" * 40 for name in ("argv", "health", "ready", "stop", "key_variable", "workdir")},
        )
        for number in range(200)
    )
    assert len(json.dumps(records.unstructure(EngineSpec(groups)))) < warden.MAX_NOTE
