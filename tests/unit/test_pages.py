"""The pages under docs/ against the code and each other: no link into nowhere, no file, heading or figure that is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from supervisor import advice, budgets
from supervisor.slot import Slot

ROOT = Path(__file__).resolve().parents[2]
CONCEPTS = ROOT / "docs" / "concepts.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted(path for name in ("supervisor", "workers", "chaos") for path in (ROOT / name).rglob("*.py"))


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(page)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_what_the_code_says_of_pages_is_there() -> None:
    for source in SOURCES:
        text = source.read_text(encoding="utf-8")
        for name in re.findall(r"\bdocs/(?:adr/|reference/|guides/|concepts)[\w-]*\.md\b", text):
            assert (ROOT / name).is_file(), (source, name)
        for heading in re.findall(r'docs/concepts\.md(?: \(|, )"([^"]+)"', text):
            assert heading in headings(CONCEPTS), (source, heading)


def test_every_decision_is_in_the_list() -> None:
    folder = ROOT / "docs" / "adr"
    listed = set(re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in folder.glob("[0-9]*.md")}


def test_the_tree_of_a_slot_is_that_of_the_code() -> None:
    slot = Slot(Path("/slot"))
    ours = {
        slot.build_lock, slot.warden_lock, slot.keeper_lock, slot.contract_record, slot.keeper_record,
        slot.warden_record, slot.tickets,
        slot.control_socket, slot.events, slot.members / "<id>", slot.joining / "<id>", slot.keeper_log,
        *(path.with_name(path.name.replace("GROUP", "<group>").replace("GEN", "<gen>")) for path in (
            slot.start_log("GROUP", "GEN"), slot.group_record("GROUP"), slot.group_key("GROUP"),
            slot.group_port("GROUP"), slot.generation_lock("GROUP", "GEN"),
            slot.generation_config("GROUP", "GEN"), slot.generation_config("GROUP", "GEN").with_suffix(".keys"),
            slot.generation_undo("GROUP", "GEN"),
        )),
    }  # fmt: skip
    tree = CONCEPTS.read_text(encoding="utf-8").partition("```\n<slot>/\n")[2].partition("```")[0]
    assert {Path("/slot") / line.split()[0] for line in tree.splitlines()} == ours


def test_the_figures_are_those_of_the_budgets() -> None:
    text = CONCEPTS.read_text(encoding="utf-8")
    named = [(name, said) for name, said in re.findall(r"^\| `([A-Z_]+)` \| ([\d.]+) \|", text, flags=re.MULTILINE)]
    named += [(name, said) for said, name in re.findall(r"([\d.]+) s \(`([A-Z_]+)`\)", text)]
    assert len(named) > 8
    assert {(name, float(said)) for name, said in named} == {(name, getattr(budgets, name)) for name, _ in named}


def test_the_page_of_remedies_has_each_step_that_the_program_names() -> None:
    page = (ROOT / "docs" / "guides" / "what-to-do-when.md").read_text(encoding="utf-8")
    steps = [step.format(name="GROUP") for step in advice.NEXT.values()]
    assert [step for step in steps if f"| {step} |\n" not in page] == []
    assert page.partition("## It does not start")[0].count("\n| ") == len(steps) + 1  # and no others


def test_each_module_of_the_core_has_one_room() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = page.partition("Rooms of the core")[2].partition("\n\n`supervisor.warden`")[0]
    named = [name for row in rooms.splitlines()[4:] for name in re.findall(r"`(\w+)`", row.split("|")[2])]
    there = {path.stem for path in (ROOT / "supervisor").glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(there)
